"""The bills of generations that have ended, from their records in spend/ID.json. The bills of old months are kept with
their sums, so that not all records have to be listed and read (`retake.retrying.kept_counts`)."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from retake.bucket import Bucket, Entry, NotFound
from retake.clock import Clock
from retake.errors import StateError
from retake.operations.bills import UNSURE, PaidSums, paid_sums
from retake.operations.port import Bill, PaidMonth
from retake.paid.bills import Call, calls_of, day_of, step_of
from retake.paid.day_book import is_day
from retake.retrying.kept_counts import CountedFolder, KeptCounts, Row
from retake.story.generation import NOBODYS, SPEND

_CALL_KEYS = ("step", "price_usd", "requested_at_utc", "counted_on")

_MAX_RECORD_BYTES = 65_536
"""Maximum bytes of the calls in a row. A record with more is read each time."""


class BillsKept(NamedTuple):
    """The kept bills (`retake.retrying.kept_counts.KeptKind`).

    A row says how the generation ended, when the record was written, and for each call what sums need. Its calls are
    null for a record that is invalid or too large, which is read each time.
    """

    folder: str = SPEND

    def stem(self, item_id: str) -> str:
        return f"{self.folder}{item_id}.json"

    def name_of(self, key: str) -> tuple[str, str] | None:
        name = key.removeprefix(self.folder)
        return (name.removesuffix(".json"), "") if name.endswith(".json") else None

    def row(self, bucket: Bucket, item_id: str, files: Mapping[str, Entry]) -> Row | None:
        if not (entry := files.get("")):
            return None
        try:
            return _row(entry, read_bill(bucket, entry.key))
        except StateError:
            return _row(entry, None)

    def sums(self, rows: Mapping[str, Row]) -> Mapping[str, Any]:
        times = [float(row["modified"]) for row in rows.values()]
        days, steps = dict[str, list[Call]](), dict[str, list[Call]]()
        whole = all(row["calls"] is not None for row in rows.values())
        for call in (call for row in rows.values() for call in row["calls"] or ()):
            days.setdefault(day_of(call), []).append(call)
            steps.setdefault(step_of(call), []).append(call)
        by_day, by_step = _summed(days), _summed(steps)
        known = whole and by_day is not None and by_step is not None
        return {
            "records": len(rows),
            "modified": [min(times, default=0.0), max(times, default=0.0)],
            "days": by_day if known else None,
            "steps": by_step if known else None,
        }

    def check(self, sums: Mapping[str, Any]) -> None:
        first, last = sums["modified"]
        _ = int(sums["records"]) + float(first) + float(last)
        for it in [*(sums["days"] or {}).values(), *(sums["steps"] or {}).values()]:
            if not all(type(number) is int for number in PaidSums(*it)):
                raise ValueError("a sum is not a whole number")
        if not all(map(is_day, sums["days"] or ())):  # earlier versions took "counted_on" as it is
            raise ValueError("a sum is of no day")


def ended_bills(
    bucket: Bucket, clock: Clock, day: str, not_summed: Iterable[str] = ()
) -> tuple[list[Bill], list[PaidMonth]]:
    """Return the bills that may have calls counted on `day` or later, and the whole months that are kept as sums. The
    sums leave out the bills of the generations `not_summed`. Raises StateError, StorageError.

    A record is written when its generation ends, so older records have no calls of these days.
    """
    counts = KeptCounts(bucket, clock, BillsKept())
    counted = counts.read(overruled=not_summed)
    kept = _kept(bucket, counts, counted, day)
    if kept is None:
        counts.forget()
        counted, kept = counts.uncounted(), ([], [])
    bills, months = kept
    known: dict[str, Row | None] = {}
    for item_id, files in sorted(counted.fresh.items()):
        if may_count(item_id, (entry := files[""]).modified, day):
            record = read_bill(bucket, entry.key)
            known[item_id] = _row(entry, record)
            bills.append(Bill(item_id, _outcome(record), calls_of(record)))
    counts.count_settled(counted, known)
    return bills, months


def may_count(item_id: str, modified: float, day: str) -> bool:
    """Return whether a record that was written at `modified` may have calls that count on `day` or later.

    One that seems older than the day in its id was written by a wrong clock, such as 1970 before NTP.
    """
    if modified >= start_of(day):
        return True
    begun = item_id.removeprefix(NOBODYS)[:8]
    return begun.isdecimal() and datetime.fromtimestamp(modified, UTC).strftime("%Y%m%d") < begun


def start_of(day: str) -> float:
    """Return the beginning of a day in UNIX seconds, less one hour, since clocks may differ."""
    return datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp() - 3600


def read_bill(bucket: Bucket, key: str) -> dict[str, Any]:
    """Return the record (or any document with paid calls) at `key`, or {} if it is missing or not an object. Raises
    StateError, StorageError."""
    try:
        value = json.loads(bucket.read(key)[0])
    except NotFound:
        return {}
    except (ValueError, RecursionError) as error:
        raise StateError(f"{key}: not JSON ({error}); fix it or remove it") from error
    return value if isinstance(value, dict) else {}


def _kept(
    bucket: Bucket, counts: KeptCounts, counted: CountedFolder, day: str
) -> tuple[list[Bill], list[PaidMonth]] | None:
    """Return the kept bills and months since a day, or None if a month's document is missing or invalid."""
    bills, months, since = list[Bill](), list[PaidMonth](), start_of(day)
    for name, sums in counted.stored.months.items():
        (first, last), days, steps = sums["modified"], sums["days"], sums["steps"]
        if (last < since) if days is None else (max(days, default="") < day):  # a clock that was behind may date all
            continue
        if days is not None and first >= since and min(days) >= day:
            read = partial(_read_month, bucket, counts, counted, name)
            months.append(PaidMonth(sums["records"], _decoded(days), _decoded(steps), read))
            continue
        rows = counts.rows(counted, name)
        if rows is None:
            return None
        bills += _bills(bucket, {it: row for it, row in rows.items() if may_count(it, row["modified"], day)})
    return bills, months


def _read_month(bucket: Bucket, counts: KeptCounts, counted: CountedFolder, name: str) -> list[Bill]:
    return _bills(bucket, counts.require_rows(counted, name))


def _bills(bucket: Bucket, rows: Mapping[str, Row]) -> list[Bill]:
    found = []
    for item_id, row in rows.items():
        record = {**row, "paid_calls": row["calls"]}
        if row["calls"] is None:
            record = read_bill(bucket, BillsKept().stem(item_id))
        found.append(Bill(item_id, _outcome(record), calls_of(record)))
    return found


def _row(entry: Entry, record: Mapping[str, Any] | None) -> Row | None:
    """Return the row of a record, or None if none of its calls counts on any day."""
    row = {"outcome": "", "modified": entry.modified, "calls": None}
    if record is None:
        return row
    try:
        calls = [_kept_call(call) for call in calls_of(record) if day_of(call)]
        paid_sums(calls)
        if len(json.dumps(calls, allow_nan=False)) <= _MAX_RECORD_BYTES:
            row |= {"outcome": _outcome(record), "calls": calls}
    except (ValueError, ArithmeticError, RecursionError):
        return row
    return row if calls else None


def _kept_call(call: Call) -> dict[str, Any]:
    kept = {key: call[key] for key in _CALL_KEYS if key in call}
    if call.get("outcome") in UNSURE:
        kept["outcome"] = call["outcome"]
    if call.get("possible_duplicate"):
        kept["possible_duplicate"] = True
    return kept


def _outcome(record: Mapping[str, Any]) -> str:
    return str(record.get("outcome") or "")


def _summed(groups: Mapping[str, list[Call]]) -> dict[str, list[int]] | None:
    """Return the sums of the calls in each group, or None if they cannot be exact."""
    sums = {name: paid_sums(calls) for name, calls in sorted(groups.items())}
    return {name: [*it] for name, it in sums.items() if it} if all(sums.values()) else None


def _decoded(sums: Mapping[str, Iterable[int]]) -> dict[str, PaidSums]:
    return {name: PaidSums(*it) for name, it in sums.items()}
