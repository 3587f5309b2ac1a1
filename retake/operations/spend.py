"""What was paid: by day, by step and by item; what is left of the caps; which day is the latest."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from retake.operations.bills import Call, total_usd, unsure
from retake.operations.pipelines import Operations
from retake.operations.port import Bill, OperatedPipeline, Refusal
from retake.operations.words import read_moment, usd
from retake.paid.caps import DayBook, Today


class SpendReport(NamedTuple):
    """What was paid since a day, and the present day as each pipeline sees it."""

    since: str
    bills: list[tuple[str | None, Bill]]  # with the channel; only calls counted since then
    today: list[tuple[str | None, Today]]
    own: tuple[Today, ...] = ()  # of the pipelines whose day is a book of their own, beside others


def spend_report(operations: Operations, days: int) -> SpendReport:
    """Return what was paid in the last `days` days (UTC). Raises StateError, StorageError."""
    first = (operations.clock.now().astimezone(UTC) - timedelta(days=days - 1)).strftime("%Y-%m-%d")
    today = operations.caps.today("")

    def one(pipeline: OperatedPipeline) -> tuple[list[Bill], Today, bool]:
        bills, known, own = pipeline.paid_since(first)
        cut = (bill._replace(calls=[call for call in bill.calls if day_of(call) >= first]) for bill in bills)
        return [bill for bill in cut if bill.calls], own or today.seen_by(pipeline.name, known), own is not None

    found = [*zip([it.channel for it in operations.pipelines], operations.each(one), strict=True)]
    bills = [(channel, bill) for channel, (bills, _, _) in found for bill in bills]
    shared = [(channel, seen) for channel, (_, seen, own) in found if not own]
    others = [seen for _, (_, seen, own) in found if own]
    return (
        SpendReport(first, bills, shared, tuple(others)) if shared else SpendReport(first, bills, [(None, others[0])])
    )


def day_of(call: Call) -> str:
    """Return the day (UTC) on which the call counts: the one on which it was requested, or a later one that was the
    latest on record; "" where the record does not say."""
    if isinstance(counted := call.get("counted_on"), str):
        return counted
    asked = read_moment(call.get("requested_at_utc"))
    return asked.strftime("%Y-%m-%d") if asked else ""


# --- as data ----------------------------------------------------------------------------------------------------------


def as_document(report: SpendReport) -> dict[str, Any]:
    """Return the report as JSON has it."""
    calls = [call for _, bill in report.bills for call in bill.calls]
    days, steps = _grouped(calls, day_of), _grouped(calls, lambda call: str(call.get("step") or ""))
    newest = sorted(report.bills, key=lambda it: (max(map(day_of, it[1].calls)), it[1].item_id), reverse=True)
    return {
        "since": report.since,
        "total": _sums(calls),
        "today": _day_document(report.today, report.own),
        "by_day": [{"day": day, **_sums(days[day])} for day in sorted(days, reverse=True)],
        "by_step": [{"step": step, **_sums(found)} for step, found in sorted(steps.items())],
        "by_generation": [
            {"channel": channel, "generation_id": bill.item_id, "outcome": bill.outcome, **_sums(bill.calls)}
            for channel, bill in newest
        ],
    }


def _grouped(calls: Iterable[Call], key: Callable[[Call], str]) -> dict[str, list[Call]]:
    groups: dict[str, list[Call]] = {}
    for call in calls:
        groups.setdefault(key(call), []).append(call)
    return groups


def _sums(calls: Iterable[Call]) -> dict[str, Any]:
    calls = list(calls)
    doubtful = unsure(calls)
    return {
        "calls": len(calls),
        "usd": total_usd(calls),
        "unsure_calls": len(doubtful),
        "unsure_usd": total_usd(doubtful),
        "possible_duplicates": sum(bool(call.get("possible_duplicate")) for call in calls),
    }


def _day_document(today: list[tuple[str | None, Today]], own: tuple[Today, ...]) -> dict[str, Any]:
    _, day = today[0]
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
            *({"channel": channel, **_sums_of_day(it)} for channel, it in today),
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
    """That `day` is to be the latest on record, and the books of later days that then count on it."""

    day: str
    clock_day: str
    later: list[DayBook]

    @property
    def sums(self) -> str:
        return ", ".join(f"{book.day}: {usd(book.spent)}" for book in self.later)

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it, once it is done."""
        return {
            "done": "latest-day",
            "day": self.day,
            "moved": [{"day": book.day, "usd": book.spent} for book in self.later],
            "what": f"{self.day} is the latest day on record, and counts what was on later ones ({self.sums})",
            "next": f"the next payment counts on {max(self.day, self.clock_day)}",
        }


def plan_latest_day(operations: Operations, latest: datetime) -> DayCorrection:
    """Return what making that day the latest on record would do; `operations.caps.correct` does it. Raises Refusal."""
    caps, day = operations.caps, latest.strftime("%Y-%m-%d")
    later, clock_day = caps.later(day), caps.clock_day()
    if day > clock_day:
        raise Refusal(f"{day} has not come: the clock says {clock_day}. Set the clock first if that is wrong")
    if not later:
        raise Refusal(f"no day after {day} is on record: there is nothing to correct")
    return DayCorrection(day, clock_day, later)
