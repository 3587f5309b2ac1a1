"""Examines the kept counts of a story's folders, which must be equal to what is in the folders."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from retake.checking import CheckFinding, CheckView, found
from retake.clock import Clock
from retake.errors import StateError
from retake.retrying.dead_letters import LettersKept
from retake.retrying.kept_counts import (
    DECODING_ERRORS,
    INDEX,
    KEPT,
    CountedFolder,
    KeptCounts,
    KeptKind,
    by_item,
    decoded_index,
    decoded_rows,
    month_of,
)
from retake.story.checked_part import CheckedPart
from retake.story.kept_bills import BillsKept
from retake.story.settings import Settings


class KeptExamination(CheckedPart):
    """The counts of one folder. A subject is one of their documents: "kept/dead_letters/202601.json"."""

    kind: KeptKind
    items: str  # in messages: "letters"

    def __init__(self, prefix: str, settings: Settings, clock: Clock) -> None:
        super().__init__(prefix, settings, clock)
        self.place = f"{KEPT}{self.kind.folder}"
        self._read_once: Callable[[], CountedFolder] | None = None  # during the first look

    def subjects(self, view: CheckView) -> Iterator[str]:
        part = view.below(self.prefix)
        self._read_once = cache(KeptCounts(part.bucket, self.clock, self.kind).read)
        try:
            yield from (part.where(entry.key) for entry in part.entries(self.place) if entry.key.endswith(".json"))
        finally:
            self._read_once = None

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        part, name = view.below(self.prefix), self._name(subject)
        data = part.read(f"{self.place}{name}.json")
        if data is None:
            return
        part.looked_at["counts"] += 1
        try:
            if name == INDEX:
                for sums in decoded_index(data).months.values():
                    self.kind.check(sums)
            else:
                self.kind.sums(decoded_rows(data))
        except DECODING_ERRORS as error:
            what = str(error) if isinstance(error, ValueError) else "it does not hold counts"
            yield found("counts-invalid", subject, what)
            return
        if name == INDEX:
            return
        counts = KeptCounts(part.bucket, self.clock, self.kind)
        counted = (self._read_once or counts.read)()
        if name in counted.stored.months:
            yield from self._month(part, name, counted, counts.rows(counted, name) or {})

    def repair(self, view: CheckView, subject: str) -> list[str]:
        """Remove the index and the document that is wrong, so that the next reader of the folder counts again."""
        name = self._name(subject)
        try:
            with self.leased(view) as store:
                store.lease.check()
                KeptCounts(store.bucket, self.clock, self.kind).forget(name)
        except StateError:
            return []  # an invalid document is a finding of its own
        return [f"the counts of {self.prefix}{self.kind.folder} were dropped: the next look counts them again"]

    def _name(self, subject: str) -> str:
        return subject.removeprefix(f"{self.prefix}{self.place}").removesuffix(".json")

    def knows(self, key: str) -> bool:
        return key.startswith(f"{self.prefix}{self.place}") and key.endswith(".json")

    def _month(
        self, part: CheckView, month: str, counted: CountedFolder, rows: Mapping[str, Any]
    ) -> Iterator[CheckFinding]:
        beginning = f"{self.kind.folder}{month if month.isdecimal() else ''}"
        items = by_item(self.kind, part.entries(beginning))
        there = {
            name: json.loads(json.dumps(self.kind.row(part.bucket, name, files)))
            for name, files in items.items()
            if counted.has(name) and month_of(name) == month
        }
        where = part.where(f"{self.place}{month}.json")
        if wrong := sorted(name for name in {*there, *rows} if there.get(name) != rows.get(name)):
            what = f"{len(wrong)} {self.items} are not as they were counted, the first of them {wrong[0]}"
            yield found("counts-wrong", where, what)
        elif self.kind.sums(rows) != counted.stored.months[month]:
            index = part.where(f"{self.place}{INDEX}.json")
            yield found("counts-wrong", where, f"{index} has other sums than its rows")


class LetterCounts(KeptExamination):
    """The counts of dead letters."""

    things, items, kind = "counts of dead letters", "letters", LettersKept()


class BillCounts(KeptExamination):
    """The sums of bills."""

    things, items, kind = "sums of bills", "records", BillsKept()
