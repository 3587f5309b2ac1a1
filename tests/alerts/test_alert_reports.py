"""When reports are due, whatever the clocks do."""

from datetime import UTC, datetime, timedelta

from alert_world import alert_settings

from retake.alerts.board import Board
from retake.alerts.reports import ReportMessage, due_reports, with_report
from retake.alerts.settings import AlertSettings

OFFICE = {"office": {"kind": "webhook", "reports": ["daily"]}}


class Reports:
    """The reports made so far, each with its day and time."""

    def __init__(self, settings: AlertSettings) -> None:
        self.settings, self.board, self.made = settings, Board(), list[str]()

    def look(self, now: datetime) -> None:
        for kind in due_reports(["daily"], self.board.reports, self.settings, now):
            self.board = with_report(self.board, ReportMessage(kind, "title\ntext", {}), self.settings, now)
            self.made.append(now.strftime("%d %H:%M"))


def test_a_time_of_day_that_comes_twice_makes_one_report() -> None:
    """In Berlin it is 02:30 at 00:30 and at 01:30 UTC on 25 October 2026."""
    reports = Reports(alert_settings(channels=OFFICE, timezone="Europe/Berlin", report_at="02:30"))
    for ten_minutes in range(6 * 48):
        reports.look(datetime(2026, 10, 24, tzinfo=UTC) + timedelta(minutes=10 * ten_minutes))
    assert reports.made == ["24 00:00", "24 00:30", "25 00:30"]


def test_a_time_of_day_that_is_skipped_makes_one_report() -> None:
    """In Berlin 02:30 is missing on 29 March 2026, and 03:30 is at 01:30 UTC."""
    reports = Reports(alert_settings(channels=OFFICE, timezone="Europe/Berlin", report_at="02:30"))
    for ten_minutes in range(6 * 48):
        reports.look(datetime(2026, 3, 28, tzinfo=UTC) + timedelta(minutes=10 * ten_minutes))
    assert reports.made == ["28 00:00", "28 01:30", "29 01:30"]


def test_a_clock_that_is_set_back_makes_no_report_twice() -> None:
    reports = Reports(alert_settings(channels=OFFICE))
    seven = datetime(2026, 3, 2, 7, tzinfo=UTC)
    for minutes in (0, -2, 2, -30, 30):
        reports.look(seven + timedelta(minutes=minutes))
    assert reports.made == ["02 07:00"]
    reports.look(seven - timedelta(days=30))  # it was far ahead: the reports made then prove nothing
    assert reports.made == ["02 07:00", "31 07:00"]


def test_another_time_of_day_makes_no_report_twice() -> None:
    reports = Reports(alert_settings(channels=OFFICE))
    eight = datetime(2026, 3, 2, 8, tzinfo=UTC)
    reports.look(eight)
    reports.settings = alert_settings(channels=OFFICE, report_at="09:00")
    reports.look(eight)
    reports.look(eight + timedelta(hours=1))
    assert reports.made == ["02 08:00", "02 09:00"]
