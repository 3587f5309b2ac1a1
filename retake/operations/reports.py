"""The daily and weekly reports: what was made, what failed, what it cost."""

from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from math import ceil
from typing import Any, NamedTuple

from retake.alerts.board import Alert
from retake.alerts.reports import WINDOWS, ReportMessage, due_at, with_report
from retake.alerts.settings import AlertSettings
from retake.alerts.store import BoardStore
from retake.clock import parse_stamp, stamp
from retake.errors import StateError
from retake.kpi.figures import Figures, ratio, retry_rate_of
from retake.operations.bills import total_usd
from retake.operations.kpi import KpiReader
from retake.operations.pipelines import Operations
from retake.operations.spend import spend_report
from retake.operations.words import read_moment, usd
from retake.percent import percent
from retake.retrying.dead_letters import DeadLetters
from retake.runs.states import RunStatus

_rate = partial(percent, unknown="unknown")


class PeriodFigures(NamedTuple):
    """The figures of one period."""

    since: datetime
    until: datetime
    made: int
    failed: int
    success_rate: float | None
    retry_rate: float | None
    spend_usd: float
    alerts: int  # that were raised

    def document(self) -> dict[str, Any]:
        return {**self._asdict(), "since": stamp(self.since), "until": stamp(self.until)}


class PeriodReport(NamedTuple):
    """A report. `before` is the previous period, for comparison in a weekly report."""

    kind: str  # "daily", "weekly"
    figures: PeriodFigures
    before: PeriodFigures | None
    dead_letters: int
    open_alerts: tuple[Alert, ...]

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "kind": self.kind,
            **self.figures.document(),
            "dead_letters": self.dead_letters,
            "open_alerts": [it.title for it in self.open_alerts],
            "before": self.before.document() if self.before else None,
        }

    def sent(self) -> ReportMessage:
        """Return the message to send."""
        return ReportMessage(self.kind, self.words(), self.document())

    def words(self) -> str:
        """Return the report as text, with a title in the first line."""
        it, old = self.figures, self.before
        lines = [
            f"{self.kind.capitalize()} report, {stamp(it.since)[:10]} to {stamp(it.until)[:10]}",
            f"Made: {it.made}{_difference(it.made, old and old.made)}",
            f"Failed: {it.failed}{_difference(it.failed, old and old.failed)}",
            f"Success: {_rate(it.success_rate)}{_previous(old, old and _rate(old.success_rate))}",
            f"Retries: {_rate(it.retry_rate)}{_previous(old, old and _rate(old.retry_rate))}",
            f"Spend: {usd(it.spend_usd)}{_previous(old, old and usd(old.spend_usd))}",
            f"Dead letters: {self.dead_letters}",
            f"Alerts raised: {it.alerts}{_difference(it.alerts, old and old.alerts)}",
        ]
        return "\n".join([*lines, *(f"Open: [{alert.level.upper()}] {alert.title}" for alert in self.open_alerts)])


def make_report(operations: Operations, kind: str, now: datetime, *, scheduled: bool = False) -> PeriodReport:
    """Return the report of the day or the week before `now`.

    With `scheduled` the period ends when the report was last due, so that late reports neither overlap nor leave a gap.
    Raises SettingsError, StateError, StorageError.
    """
    reader, store = KpiReader(operations), BoardStore(operations.bucket, operations.clock)
    board = store.read()
    alerts = [*board.alerts.values(), *board.ended, *store.history(now, tolerant=True)]
    periods = _periods(kind, now, operations.terms.alerts if scheduled else None)
    spent = _spent(operations, periods, now)
    found = [
        _period_figures(_figures_between(reader, since, until), since, until, usd_spent, alerts)
        for (since, until), usd_spent in zip(periods, spent, strict=True)
    ]
    letters = sum(DeadLetters(it.bucket, operations.clock, counted=True).count() for it in operations.pipelines)
    active = tuple(it for it in board.alerts.values() if it.active)
    return PeriodReport(kind, found[0], found[1] if found[1:] else None, letters, active)


def _periods(kind: str, now: datetime, settings: AlertSettings | None) -> list[tuple[datetime, datetime]]:
    """Return the period of a report and, for a weekly one, the previous period. `settings` say when it was due."""
    ends = [due_at(kind, settings, now) if settings else now]
    for _ in range(2 if kind == "weekly" else 1):
        before = due_at(kind, settings, ends[-1] - timedelta(seconds=1)) if settings else ends[-1] - WINDOWS[kind]
        ends.append(before)
    return [(since, until) for until, since in pairwise(ends)]


def _figures_between(reader: KpiReader, since: datetime, until: datetime) -> Figures:
    """Return the figures after `since`, which belongs to the previous period, up to `until`."""
    length = until - since - timedelta(microseconds=1)
    return reader.report(length.total_seconds(), until=until).figures


def send_report(operations: Operations, kind: str, now: datetime) -> bool:
    """Queue the report, once each time it is due, for the channels that take it. Return whether any does."""
    settings = operations.terms.alerts
    if not any(kind in it.reports for it in settings.channels):
        return False
    sent = make_report(operations, kind, now, scheduled=True).sent()
    store = BoardStore(operations.bucket, operations.clock)
    store.change(lambda board: (with_report(board, sent, settings, now), None))
    return True


def _period_figures(
    figures: Figures, since: datetime, until: datetime, spend_usd: float, alerts: list[Alert]
) -> PeriodFigures:
    made = sum(it.runs[RunStatus.SUCCEEDED] for it in figures.pipelines)
    failed = sum(it.runs[RunStatus.FAILED] for it in figures.pipelines)
    retry_rate = retry_rate_of(step for it in figures.pipelines for step in it.steps)
    raised = {it.id for it in alerts if since <= parse_stamp(it.first_at) < until}
    return PeriodFigures(since, until, made, failed, ratio(made, made + failed), retry_rate, spend_usd, len(raised))


def _spent(operations: Operations, periods: list[tuple[datetime, datetime]], now: datetime) -> list[float]:
    """Return the spend of each period, by the time at which calls were requested."""
    days = ceil((now - periods[-1][0]) / timedelta(days=1)) + 1
    report = spend_report(operations, days)
    if report.unreadable:
        raise StateError("; ".join(report.unreadable))  # an incomplete sum would pass for the whole
    calls = [call for _, bill in report.newest() for call in bill.calls]
    dated = [(moment, call) for call in calls if (moment := read_moment(call.get("requested_at_utc")))]
    return [total_usd(call for moment, call in dated if since <= moment < until) for since, until in periods]


def _difference(value: int, before: int | None) -> str:
    return "" if before is None else f" ({value - before:+d} from the week before)"


def _previous(before: PeriodFigures | None, value: str | None) -> str:
    return f" (the week before: {value})" if before else ""
