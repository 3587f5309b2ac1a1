"""The facts of one segment's runs, and their stored form in a snapshot."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from retake.bucket.contract import is_key
from retake.kpi.facts import PARTS, Cell, Fact, Source, added_up
from retake.runs.history import Fingerprint, fingerprint, together

_MAX_NUMBER = 2**100  # in a valid document; much larger ones could not be converted to float

VERSION = 1
"""The version of the documents and of how facts are derived. Snapshots of another version are made again."""


RECENT_S = 31 * 86_400.0
"""Minimum seconds for which the index has the sums of each day."""

_OF_A_DAY = re.compile(r"\d{4}-\d\d-\d\d(\.\d+)?")
_OF_A_MONTH = re.compile(r"\d{4}-\d\d")


class SegmentSums(NamedTuple):
    """The sums of one segment's runs. `first` and `last` are the times of their first and last fact."""

    fingerprint: Fingerprint
    first: int
    last: int
    totals: Mapping[Cell, int]


def parts_of(segments: Iterable[str], now: datetime, recent_s: float = RECENT_S) -> dict[str, list[str]]:
    """Return the segments of each part of an index, in order: those that its sums add up.

    Each day is a part until its month has been over for `recent_s` seconds; then the month is one part. So the index,
    which every tick that does something reads, grows by twelve parts a year. Any other segment is a part of its own.
    """
    try:
        first_month = (now - timedelta(seconds=recent_s)).strftime("%Y-%m")
    except OverflowError:
        first_month = ""
    found: dict[str, list[str]] = {}
    for name in sorted(segments):
        old = name[:7] < first_month and _OF_A_DAY.fullmatch(name)
        found.setdefault(name[:7] if old else name, []).append(name)
    return found


def is_month(part: str) -> bool:
    """Return whether a part of an index may be a month of days."""
    return _OF_A_MONTH.fullmatch(part) is not None


def summed(several: Iterable[SegmentSums]) -> SegmentSums:
    """Return the sums of several segments together."""
    each = [*several]
    if len(each) == 1:
        return each[0]
    totals = added_up(it.totals for it in each)
    first, last = ([getattr(it, name) for it in each if it.totals] for name in ("first", "last"))
    return SegmentSums(together(it.fingerprint for it in each), min(first, default=0), max(last, default=0), totals)


class Sheet:
    """The facts of the runs of one segment.

    There may be 100,000 runs, so the facts are stored as columns of numbers: `numbers` (indices into `cells`), `times`
    and `amounts`. The run `ids[n]`, as of its mark `marks[n]`, has the next `sizes[n]` facts.
    """

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.marks: list[int] = []
        self.sizes: list[int] = []
        self.cells: list[Cell] = []
        self.numbers: list[int] = []
        self.times: list[int] = []
        self.amounts: list[int] = []
        self._number_of: dict[Cell, int] = {}

    def updated(self, segment: str, source: Source) -> "Sheet":
        """Return the sheet, updated from `source`; only runs whose mark has changed are read. Raises StorageError."""
        marks, sheet = source.marks(segment), Sheet()
        start = 0
        for run_id, mark, size in zip(self.ids, self.marks, self.sizes, strict=True):
            if marks.get(run_id) == mark:
                sheet.put(run_id, mark, self._slice(start, start + size))
            start += size
        kept = {*sheet.ids}
        for item in source.read(segment, [run_id for run_id in marks if run_id not in kept]):
            if item.segment == segment:  # otherwise it has changed meanwhile, and now belongs to another segment
                sheet.put(item.id, item.mark, item.facts)
        return sheet

    def put(self, run_id: str, mark: int, facts: Sequence[Fact]) -> None:
        """Add the facts of a run."""
        self.ids.append(run_id)
        self.marks.append(mark)
        self.sizes.append(len(facts))
        for at, cell, amount in facts:
            number = self._number_of.get(cell)
            if number is None:
                number = self._number_of[cell] = len(self.cells)
                self.cells.append(cell)
            self.numbers.append(number)
            self.times.append(at)
            self.amounts.append(amount)

    def _slice(self, start: int, end: int) -> list[Fact]:
        return [Fact(self.times[it], self.cells[self.numbers[it]], self.amounts[it]) for it in range(start, end)]

    @property
    def fingerprint(self) -> Fingerprint:
        return fingerprint(self.marks)

    def sums(self) -> SegmentSums:
        """Return the sums of all facts."""
        first, last = min(self.times, default=0), max(self.times, default=0)
        return SegmentSums(self.fingerprint, first, last, self.between(first, last))

    def between(self, since: int, until: int) -> Counter[Cell]:
        """Return the sums of the facts from `since` to `until`, both included."""
        sums = [0] * len(self.cells)
        for number, at, amount in zip(self.numbers, self.times, self.amounts, strict=True):
            if since <= at <= until:
                sums[number] += amount
        return Counter({cell: amount for cell, amount in zip(self.cells, sums, strict=True) if amount})

    def facts(self) -> Iterator[Fact]:
        """Yield all facts, in no particular order."""
        for number, at, amount in zip(self.numbers, self.times, self.amounts, strict=True):
            yield Fact(at, self.cells[number], amount)

    def encode(self) -> bytes:
        """Return the sheet as stored."""
        return _encoded({"version": VERSION, "cells": self.cells, **{name: getattr(self, name) for name in _COLUMNS}})


_COLUMNS = {"ids": str, "marks": int, "sizes": int, "numbers": int, "times": int, "amounts": int}


def decode_sheet(data: bytes) -> Sheet:
    """Return the stored sheet. Raises ValueError for an invalid document."""
    raw, sheet = _object(data), Sheet()
    sheet.cells = [*map(_cell, raw["cells"])]
    for name, kind in _COLUMNS.items():
        if not isinstance(raw[name], list) or not {*map(type, raw[name])} <= {kind}:
            raise ValueError(f"{name}: not a column of its kind")
        setattr(sheet, name, raw[name])
    lengths = {sum(sheet.sizes), len(sheet.numbers), len(sheet.times), len(sheet.amounts)}
    if (
        len(lengths) > 1
        or len({len(sheet.ids), len(sheet.marks), len(sheet.sizes)}) > 1
        or min(sheet.sizes, default=0) < 0
    ):
        raise ValueError("columns of different lengths")
    if any(abs(it) > _MAX_NUMBER for it in (*_extremes(sheet.amounts), *_extremes(sheet.times))):
        raise ValueError("amounts or times: a number that is none of ours")
    if sheet.numbers and not 0 <= min(sheet.numbers) <= max(sheet.numbers) < len(sheet.cells):
        raise ValueError("numbers: a cell that is not there")
    sheet._number_of = {cell: number for number, cell in enumerate(sheet.cells)}
    return sheet


def _extremes(column: Sequence[int]) -> tuple[int, ...]:
    return (min(column), max(column)) if column else ()


class Index(NamedTuple):
    """The sums of all segments, and when the snapshot was taken."""

    taken_at: int | None = None  # microseconds since the epoch; None: never
    segments: Mapping[str, SegmentSums] = {}

    def encode(self) -> bytes:
        """Return the index as stored."""
        segments = {
            name: {
                "runs": it.fingerprint.runs,
                "marks": it.fingerprint.marks,
                "first": it.first,
                "last": it.last,
                "totals": [[amount, *cell] for cell, amount in it.totals.items()],
            }
            for name, it in self.segments.items()
        }
        return _encoded({"version": VERSION, "taken_at": self.taken_at, "segments": segments})


def decode_index(data: bytes) -> Index:
    """Return the stored index. Raises ValueError for an invalid document."""
    raw = _object(data)
    taken_at = None if raw["taken_at"] is None else _number(raw["taken_at"])
    if odd := [name for name in raw["segments"] if not is_key(f"kpi/{name}.json")]:
        raise ValueError(f"{odd[0]!r:.50} is not a segment")
    return Index(taken_at, {name: _sums(it) for name, it in raw["segments"].items()})


def _sums(raw: Mapping[str, Any]) -> SegmentSums:
    totals = {_cell(cell): _number(amount) for amount, *cell in raw["totals"]}
    runs, marks, first, last = (_number(raw[name]) for name in ("runs", "marks", "first", "last"))
    return SegmentSums(Fingerprint(runs, marks), first, last, totals)


def _cell(value: Any) -> Cell:
    cell = tuple(value)
    if not cell or not all(isinstance(part, str) for part in cell) or PARTS.get(cell[0]) != len(cell):
        raise ValueError("cells: nothing that is counted")
    return cell


def _number(value: Any) -> int:
    if type(value) is not int or abs(value) > _MAX_NUMBER:
        raise ValueError(f"{value!r:.50} is not a whole number")
    return value


def _object(data: bytes) -> dict[str, Any]:
    raw = json.loads(data)
    if not isinstance(raw, dict) or raw.get("version") != VERSION:
        raise ValueError(f"not a snapshot of version {VERSION}")
    return raw


def _encoded(raw: Mapping[str, Any]) -> bytes:
    return json.dumps(raw, separators=(",", ":")).encode() + b"\n"
