"""Snapshots: the facts counted so far, kept in `kpi/` at the bucket's root, so that only new runs are read.

    kpi/LEDGER.json            the index: the sums of each segment of the ledger, of old days by month (`parts_of`), and
                               when the snapshot was taken
    kpi/LEDGER.SEGMENT.json    the facts of the segment's runs (retake.runs.history)

A snapshot is derived from the ledger. Each segment has the fingerprint of the runs that it was made from, and each run
its mark; what no longer agrees with the ledger is read again. So a document that is lost, invalid, outdated or written
by two processes at once changes no figure and only costs time. Only `remembered` does without a look at the ledger: a
tick over many channels uses it for those in which it did nothing.

While `kpi/` cannot be written, snapshots stay in memory and are written as soon as that is possible. A process that
ends before that loses nothing: the next one counts again from the ledger.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from logging import getLogger
from typing import Self, TypeVar

from retake.bucket import ABSENT, ANY, Bucket, Conflict, Expect, NotFound
from retake.bucket.contract import Sight, look
from retake.clock import Clock
from retake.errors import StorageError
from retake.kpi.facts import Cell, Fact, Source, added_up, micros
from retake.kpi.sheet import RECENT_S, Index, SegmentSums, Sheet, decode_index, decode_sheet, is_month, parts_of, summed
from retake.runs.history import together

KPI = "kpi/"
"""The folder of a bucket that holds the snapshots."""

EVERY_S = 300.0
"""Minimum seconds between two snapshots."""

_UNREADABLE = "the snapshots of the figures cannot be read, so all runs are counted again: %s"

_log = getLogger(__name__)

T = TypeVar("T")


class OutdatedSnapshot(Exception):
    """A sheet of a snapshot is missing or does not agree with the index, so the ledger has to be counted."""


class CountedRuns:
    """All facts of one ledger, as of the moment when this was made. `parts` are the parts of the index, `sheets` the
    sheets of those already read; `load` returns the sheets of any other part."""

    def __init__(
        self,
        parts: Mapping[str, SegmentSums],
        sheets: Mapping[str, Sequence[Sheet]],
        load: Callable[[str], Sequence[Sheet]],
    ) -> None:
        self._parts, self._sheets, self._load = parts, dict(sheets), load

    def totals(self) -> Counter[Cell]:
        """Return the sums of all facts since the ledger began."""
        return added_up(it.totals for it in self._parts.values())

    def between(self, since: int, until: int) -> Counter[Cell]:
        """Return the sums of the facts from `since` to `until` (microseconds), both included. Raises StorageError."""
        total: Counter[Cell] = Counter()
        for name, it in self._parts.items():
            if since <= it.first and it.last <= until:
                total.update(it.totals)
            elif it.first <= until and it.last >= since:
                total.update(added_up(sheet.between(since, until) for sheet in self._of(name)))
        return total

    def facts(self, since: int, until: int) -> Iterator[Fact]:
        """Yield the facts from `since` to `until`, in no particular order. Raises StorageError."""
        for name, it in self._parts.items():
            if it.first <= until and it.last >= since:
                for sheet in self._of(name):
                    yield from (fact for fact in sheet.facts() if since <= fact.at <= until)

    def _of(self, part: str) -> Sequence[Sheet]:
        if part not in self._sheets:
            self._sheets[part] = self._load(part)
        return self._sheets[part]


class _UnsavedSnapshot:
    """What is known of one ledger's snapshot. It is kept only while it has documents to be written, to save memory, for
    10,000 ledgers; otherwise the documents are read again."""

    def __init__(self, ledger: str) -> None:
        self._ledger, self.index = ledger, f"{ledger}.json"
        self.version: str | Expect = ABSENT  # of the index that was read
        self.buffer: dict[str, bytes] = {}  # documents that are still to be written

    def filled(self, index: Index, sheets: Mapping[str, Sheet]) -> Self:
        """Add documents to the buffer, the index last."""
        self.buffer.pop(self.index, None)
        self.buffer |= {f"{self._ledger}.{name}.json": sheet.encode() for name, sheet in sheets.items()}
        self.buffer[self.index] = index.encode()
        return self


class KpiSnapshots:
    """The snapshots in `bucket`, which is the whole bucket, taken every `every_s` seconds. With `read_only` they stay
    in memory. `recent_s` is how far back windows usually go (`parts_of`). Several threads may count different ledgers
    at the same time."""

    def __init__(
        self,
        bucket: Bucket,
        clock: Clock,
        *,
        every_s: float = EVERY_S,
        recent_s: float = RECENT_S,
        read_only: bool = False,
    ) -> None:
        self._bucket, self._clock, self._every_s, self._read_only = bucket, clock, every_s, read_only
        self._recent_s = recent_s
        self._unsaved: dict[str, _UnsavedSnapshot] = {}  # of the ledgers whose snapshots could not be written
        self._warned = False

    def remembered(self, ledgers: Sequence[str], max_age_s: float) -> dict[str, CountedRuns]:
        """Return the facts in the last snapshots of these ledgers, by name, without a look at the ledgers themselves.

        A snapshot that was taken `max_age_s` seconds ago or earlier, or cannot be read, is left out. The methods of the
        facts raise OutdatedSnapshot if they need a sheet that does not agree with its index.
        """
        try:
            seen = look(self._bucket, [f"{KPI}{it}.json" for it in ledgers], []) if ledgers else self._bucket
        except StorageError as error:
            self._warn(_UNREADABLE, error)
            return {}
        return {it: found for it in ledgers if (found := self._remembered(it, max_age_s, seen))}

    def _remembered(self, ledger: str, max_age_s: float, seen: Sight) -> CountedRuns | None:
        unsaved = _UnsavedSnapshot(ledger)
        index = None if ledger in self._unsaved else self._read(unsaved, unsaved.index, decode_index, seen)
        if index is None or self._is_older(index, max_age_s):
            return None

        def load(part: str) -> list[Sheet]:
            sheet = self._read(unsaved, f"{ledger}.{part}.json", decode_sheet)
            if sheet is None or not sheet.fingerprint.agrees(index.segments[part].fingerprint):
                raise OutdatedSnapshot
            return [sheet]

        return CountedRuns(index.segments, {}, load)

    def counted(self, ledger: str, source: Source, *, rebuild: bool = False, every_change: bool = False) -> CountedRuns:
        """Return all facts of the ledger, and take a snapshot if one is due. `ledger` is its name in `kpi/`.

        With `rebuild` everything is read from the ledger and written again. With `every_change` a snapshot is also due
        if anything has changed since the last one. Raises StorageError if the ledger cannot be read. Trouble with the
        snapshots is only logged.
        """
        unsaved = self._unsaved.setdefault(ledger, _UnsavedSnapshot(ledger))
        index = Index() if rebuild else self._read(unsaved, unsaved.index, decode_index) or Index()
        found, now = source.segments(), self._clock.now()
        parts = parts_of(found, now, self._recent_s)
        kept = self._by_part(index.segments, now)
        sums: dict[str, SegmentSums] = {}
        sheets: dict[str, Sheet] = {}

        def stored(name: str) -> Sheet:
            return (None if rebuild else self._read(unsaved, f"{ledger}.{name}.json", decode_sheet)) or Sheet()

        def fresh(name: str) -> Sheet:
            sheet = stored(name)
            return sheet if sheet.fingerprint == found[name] else sheet.updated(name, source)

        def load(part: str) -> list[Sheet]:
            names = [part] if part in found else parts[part]
            several = [stored(name) for name in names]
            agrees = together(it.fingerprint for it in several) == sums[part].fingerprint
            return several if agrees else [*map(fresh, names)]

        for part, names in parts.items():
            whole = kept.get(part)
            if whole and whole.fingerprint.agrees(together(found[name] for name in names)):
                sums[part] = whole
                continue
            for name in names:  # a month in which a day has changed is kept by day until it agrees again
                day = index.segments.get(name)
                if day and day.fingerprint.agrees(found[name]):
                    sums[name] = day
                else:
                    sheets[name] = fresh(name)
                    sums[name] = sheets[name].sums()
        due = self._is_older(index, self._every_s) or (every_change and sums != index.segments)
        if (due or unsaved.buffer) and (sums or index.segments):
            gone = (f"{ledger}.{it}.json" for it in self._gone(ledger, index.segments.keys() - sums.keys(), found))
            self._save(unsaved.filled(Index(micros(now), sums), sheets), gone, overwrite=rebuild)
        if not unsaved.buffer:
            self._unsaved.pop(ledger, None)
        return CountedRuns(sums, {name: [sheet] for name, sheet in sheets.items()}, load)

    def _by_part(self, segments: Mapping[str, SegmentSums], now: datetime) -> dict[str, SegmentSums]:
        """Return the sums in an index by part as of `now`: since it was saved, days may have become part of a month."""
        parts = parts_of(segments, now, self._recent_s)
        return {part: summed(segments[name] for name in names) for part, names in parts.items()}

    def _gone(self, ledger: str, parts: Iterable[str], found: Container[str]) -> Iterator[str]:
        """Yield the segments in these parts of an index that the ledger no longer has. Raises StorageError."""
        stem = f"{KPI}{ledger}."
        for part in sorted(parts):
            days = self._bucket.list(f"{stem}{part}-") if is_month(part) else ()
            names = [it.key.removeprefix(stem).removesuffix(".json") for it in days] or [part]
            yield from (name for name in names if name not in found)

    def _is_older(self, index: Index, seconds: float) -> bool:
        """Return whether the snapshot was taken at least `seconds` ago, or in the future: clocks are set back."""
        if index.taken_at is None:
            return True
        age_s = (micros(self._clock.now()) - index.taken_at) / 1e6
        return not 0 <= age_s < seconds

    def _save(self, unsaved: _UnsavedSnapshot, gone: Iterable[str], *, overwrite: bool) -> None:
        """Write the snapshot, the index last. Without `overwrite`, an index that another process has written since ours
        was read stays."""
        if self._read_only:
            return
        try:
            for key, data in [*unsaved.buffer.items()]:
                expect = unsaved.version if key == unsaved.index and not overwrite else ANY
                try:
                    self._bucket.write(f"{KPI}{key}", data, expect)
                except Conflict:
                    _log.debug("%s%s was written by another process just now", KPI, key)
                del unsaved.buffer[key]
            for name in gone:
                self._bucket.delete(f"{KPI}{name}")
        except StorageError as error:
            self._warn("the snapshot of the figures could not be written; they are right without it: %s", error)
        else:
            self._warned = False

    def _read(
        self, unsaved: _UnsavedSnapshot, name: str, decode: Callable[[bytes], T], seen: Sight | None = None
    ) -> T | None:
        """Return a document of a snapshot, or None if it is missing, invalid or unreadable."""
        try:
            if name in unsaved.buffer:
                return decode(unsaved.buffer[name])
            data, version = (seen or self._bucket).read(f"{KPI}{name}")
            if name == unsaved.index:
                unsaved.version = version
            return decode(data)
        except NotFound:
            if name == unsaved.index:
                unsaved.version = ABSENT
        except StorageError as error:
            self._warn(_UNREADABLE, error)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            _log.warning("%s%s is invalid (%s); its runs are counted again", KPI, name, error)
        return None

    def _warn(self, message: str, error: StorageError) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(message, error)
