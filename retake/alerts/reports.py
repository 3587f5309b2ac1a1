"""When the daily and the weekly report are due. An idle tick imports this module if a channel takes reports."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from retake.alerts.hours import WEEK, last_due, minutes_of, next_due, zone_of
from retake.alerts.settings import AlertSettings
from retake.clock import stamp

if TYPE_CHECKING:
    from retake.alerts.board import Board

WINDOWS = {"daily": timedelta(days=1), "weekly": timedelta(days=7)}
"""The time that each report covers."""


def due_reports(wanted: Collection[str], done: Mapping[str, str], settings: AlertSettings, now: datetime) -> list[str]:
    """Return the reports that are due and not made yet. `done` has, for each kind, the time for which the last one was
    made."""
    return [kind for kind in sorted(wanted) if not _is_made(done.get(kind), due_at(kind, settings, now), now)]


def _is_made(made_for: object, due: datetime, now: datetime) -> bool:
    """Return whether the report that was last due has been made.

    A report for a time in the future was made before the clock was set back. If it is more than a day ahead, the clock
    was wrong then, and it does not count.
    """
    return isinstance(made_for, str) and stamp(due) <= made_for <= stamp(now + timedelta(days=1))


def due_at(kind: str, settings: AlertSettings, now: datetime) -> datetime:
    """Return the last time at which the report of this kind was due."""
    weekday = WEEK.index(settings.report_day) if kind == "weekly" else None
    return last_due(now, zone_of(settings.timezone), minutes_of(settings.report_at), weekday)


def next_due_at(settings: AlertSettings, now: datetime) -> datetime:
    """Return the next time at which a report may be due, daily or weekly."""
    return next_due(now, zone_of(settings.timezone), minutes_of(settings.report_at))


class ReportMessage(NamedTuple):
    """A report to be sent: its text, whose first line is the title, and its figures."""

    kind: str
    words: str
    figures: Mapping[str, object]


def with_report(
    board: "Board", report: ReportMessage, settings: AlertSettings, now: datetime, *, again: bool = False
) -> "Board":
    """Return the board with a report in the queues of the channels that take it.

    It is queued once for each time it is due, unless `again`.
    """
    from retake.alerts.routing import queued_report

    kind, words, figures = report
    due_since = due_at(kind, settings, now)
    if _is_made(board.reports.get(kind), due_since, now) and not again:
        return board
    due = stamp(due_since)
    names = [it.name for it in settings.channels if kind in it.reports]
    channels = queued_report(board.channels, f"{kind}-{due[:10]}", words, figures, names, stamp(now))
    return board._replace(channels=channels, reports={**board.reports, kind: due})
