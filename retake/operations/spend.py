"""Spend by day, by step and by item; what is left of the caps; correcting the latest day."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, timedelta
from itertools import islice
from typing import Any, NamedTuple

from retake.errors import RetakeError
from retake.operations.bills import PaidSums, sums_document, total_of
from retake.operations.pipelines import UNREADABLE, Operations
from retake.operations.port import Bill, OperatedPipeline, PaidMonth, PaidWork, Refusal
from retake.operations.words import usd
from retake.paid.bills import Call, day_of, step_of
from retake.paid.caps import Today
from retake.paid.day_book import DayBook


class SpendReport(NamedTuple):
    """What was paid since a day, and the current day as each pipeline sees it."""

    since: str
    bills: list[tuple[str | None, Bill]]  # with the channel; only calls counted since then
    today: list[tuple[str | None, Today]]
    own: tuple[Today, ...] = ()  # of the pipelines that keep their own book, beside those that share one
    months: Sequence[tuple[str | None, PaidMonth]] = ()  # further bills, with the channel
    unreadable: Sequence[str] = ()  # what is wrong with pipelines that are left out because they cannot be read

    @property
    def number(self) -> int:
        """The number of bills."""
        return len(self.bills) + sum(month.number for _, month in self.months)

    def newest(self) -> Iterator[tuple[str | None, Bill]]:
        """Yield all bills, the newest first. A month is read only when it may hold the next one. Raises StateError,
        StorageError."""
        order = {channel: -number for number, (channel, _) in enumerate(self.today)}

        def place(it: tuple[str | None, Bill]) -> tuple[str, str, int]:
            channel, bill = it
            return max(map(day_of, bill.calls)), bill.item_id, order.get(channel, 0)

        found = self.bills[::-1]
        found.sort(key=place)
        months = sorted(self.months, key=lambda it: it[1].last_day)
        while found or months:
            last = months[-1][1].last_day if months else ""
            if months and (not found or place(found[-1])[0] <= last):
                while months and months[-1][1].last_day == last:
                    channel, month = months.pop()
                    found += [(channel, bill) for bill in month.bills()]
                found.sort(key=place)
            else:
                yield found.pop()


def spend_report(operations: Operations, days: int) -> SpendReport:
    """Return what was paid in the last `days` days (UTC), by the pipelines that can be read. Raises StateError,
    StorageError if none can."""
    first = (operations.clock.now().astimezone(UTC) - timedelta(days=days - 1)).strftime("%Y-%m-%d")
    today = operations.caps.today("")

    def one(pipeline: OperatedPipeline) -> tuple[PaidWork, Today] | RetakeError:
        try:
            paid = pipeline.paid_since(first)
        except UNREADABLE as error:
            return error
        cut = (bill._replace(calls=[call for call in bill.calls if day_of(call) >= first]) for bill in paid.bills)
        seen = paid.today or today.seen_by(pipeline.name, paid.known)
        return paid._replace(bills=[bill for bill in cut if bill.calls]), seen

    each = [*zip(operations.pipelines, operations.each(one), strict=True)]
    faults = [(it.name, error) for it, error in each if isinstance(error, RetakeError)]
    if len(faults) == len(each):
        raise faults[0][1]
    unreadable = [f"{name} is left out: {error}" for name, error in faults]
    found = [(it.channel, read) for it, read in each if not isinstance(read, RetakeError)]
    bills = [(channel, bill) for channel, (paid, _) in found for bill in paid.bills]
    months = [(channel, month) for channel, (paid, _) in found for month in paid.months]
    shared = [(channel, seen) for channel, (paid, seen) in found if paid.today is None]
    others = [seen for _, (paid, seen) in found if paid.today is not None]
    if not shared:
        return SpendReport(first, bills, [(None, others[0])], months=months, unreadable=unreadable)
    return SpendReport(first, bills, shared, tuple(others), months, unreadable)


# --- as data ----------------------------------------------------------------------------------------------------------


def as_document(report: SpendReport, newest: int | None = None) -> dict[str, Any]:
    """Return the JSON document of the report, with only the `newest` bills if that is given, which saves reading the
    others. Raises StateError, StorageError."""
    calls = [call for _, bill in report.bills for call in bill.calls]
    days = _grouped(calls, day_of, [month.by_day for _, month in report.months])
    steps = _grouped(calls, step_of, [month.by_step for _, month in report.months])
    return {
        "since": report.since,
        "unreadable": [*report.unreadable],
        "total": sums_document(calls, total_of(further for _, further in days.values())),
        "today": _day_document(report.today, report.own),
        "by_day": [{"day": day, **sums_document(*days[day])} for day in sorted(days, reverse=True)],
        "by_step": [{"step": step, **sums_document(*found)} for step, found in sorted(steps.items())],
        "by_generation": [
            {"channel": channel, "generation_id": bill.item_id, "outcome": bill.outcome, **sums_document(bill.calls)}
            for channel, bill in islice(report.newest(), newest)
        ],
    }


def _grouped(
    calls: Iterable[Call], key: Callable[[Call], str], further: Iterable[Mapping[str, PaidSums]]
) -> dict[str, tuple[list[Call], PaidSums]]:
    """Group the calls, and the sums of further ones, by key."""
    groups: dict[str, list[Call]] = {}
    for call in calls:
        groups.setdefault(key(call), []).append(call)
    sums: dict[str, list[PaidSums]] = {}
    for month in further:
        for name, it in month.items():
            sums.setdefault(name, []).append(it)
    return {name: (groups.get(name, []), total_of(sums.get(name, ()))) for name in {**groups, **sums}}


def _day_document(today: list[tuple[str | None, Today]], own: tuple[Today, ...]) -> dict[str, Any]:
    _, day = today[0]
    several = len(today) > 1
    cap, spent = day.limits.bucket_usd, day.book.spent
    return {
        "day": day.day,
        "clock_day": day.clock_day,
        "cap_usd": cap,
        "channel_cap_usd": day.limits.pipeline_usd,
        "spent_usd": spent,  # by all channels
        "left_usd": None if cap is None else max(0.0, round(cap - spent, 6)),
        "doubt": day.doubt or None,
        "pipelines": [
            *(
                {"channel": channel, **({} if channel or not several else {"name": it.pipeline}), **_sums_of_day(it)}
                for channel, it in today
            ),
            *(
                {"channel": None, "pipeline": it.pipeline, "cap_usd": it.limits.bucket_usd, **_sums_of_day(it)}
                for it in own
            ),
        ],
    }


def _sums_of_day(it: Today) -> dict[str, Any]:
    return {"settled_usd": it.sums.settled, "reserved_usd": it.sums.reserved, "left_usd": it.left}


# --- the latest day ---------------------------------------------------------------------------------------------------


class DayCorrection(NamedTuple):
    """A correction that makes `day` the latest on record. What is in the books of `later` days then counts on it."""

    day: str
    clock_day: str
    later: list[DayBook]

    @property
    def sums(self) -> str:
        return ", ".join(f"{book.day}: {usd(book.spent)}" for book in self.later)

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the finished correction."""
        return {
            "done": "latest-day",
            "day": self.day,
            "moved": [{"day": book.day, "usd": book.spent} for book in self.later],
            "what": f"{self.day} is the latest day on record, and counts what was on later ones ({self.sums})",
            "next": f"the next payment counts on {max(self.day, self.clock_day)}",
        }


def plan_latest_day(operations: Operations, latest: date) -> DayCorrection:
    """Plan to make `latest` the latest day on record; `operations.caps.correct` carries it out. Raises Refusal."""
    caps, day = operations.caps, latest.isoformat()
    later, clock_day = caps.later(day), caps.clock_day()
    if day > clock_day:
        raise Refusal(f"{day} is in the future: the clock says {clock_day}. Set the clock first if that is wrong")
    if not later:
        raise Refusal(f"no day after {day} is on record: there is nothing to correct")
    return DayCorrection(day, clock_day, later)
