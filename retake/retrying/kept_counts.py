"""Counts of a folder that only grows, without listing all of it: old items are counted once, new ones are listed.

    kept/FOLDER/index.json     up to which id items are counted, and their sums by month
    kept/FOLDER/202611.json    a row for each item of a month, from which its sums are computed

Items have ids that begin with a date and sort by it. Readers do the counting: once there are enough items older than
`SETTLED_DAYS`, any reader may count them, but none has to. Writers have only one rule: before they write or remove an
item that is not from the last days, they call `mark_changes`. A marked item is listed by its name until it has settled
again. If counting an item means reading it, a reader does so for `COUNTING_S`, the oldest first, and the next reader
continues. The index is replaced by compare-and-set, after the months, and says which of their rows it covers. So a
crash, or two readers that count at once, leave the older counts, which are still right.

All of this is derived. If a document is missing or invalid, everything is counted again from the folder; `retake check`
compares the two.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, timedelta
from logging import getLogger
from typing import Any, NamedTuple, Protocol, TypeVar

from retake.attempts import attempts, countdown
from retake.bucket import ABSENT, Bucket, Conflict, Entry, Expect, NotFound
from retake.bucket.contract import scan
from retake.clock import Clock
from retake.errors import StateError, StorageError

KEPT = "kept/"
INDEX = "index"

SETTLED_DAYS = 3
"""Age in days from which items count as settled. Younger ones may change without a mark, and are listed each time."""

MARKED_DAYS = 2
"""Age in days from which items are marked before they change. Less than SETTLED_DAYS, since clocks differ."""

KEEP_AFTER = 100
"""Number of settled items from which a reader counts them into the documents."""

COUNTING_S = 2.0
"""Maximum seconds that a reader spends reading items only to count them."""

_OVERRULED = "overruled"  # in place of the day of a mark

_PAUSES_S = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)

DECODING_ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What decoding or adding up an invalid document may raise."""

_INVALID = object()  # in place of a row

_log = getLogger(__name__)

T = TypeVar("T", bound=tuple[Any, ...])

Row = Any
"""The data kept about one item, as JSON types."""

Files = Mapping[str, Entry]
"""The objects of one item, by their names in its folder, or "" for an item that is one object."""


class KeptKind(Protocol):
    """Defines what is counted in a folder, and how."""

    @property
    def folder(self) -> str:
        """The folder, ending in "/"."""
        ...

    def stem(self, item_id: str) -> str:
        """Return the prefix of the keys of an item, which no other item's keys have."""
        ...

    def name_of(self, key: str) -> tuple[str, str] | None:
        """Return the id of the item that an object in the folder belongs to, and its name in Files; None if it belongs
        to none."""
        ...

    def row(self, bucket: Bucket, item_id: str, files: Files) -> Row | None:
        """Return the row of an item, or None if it needs none. Raises StorageError, and StateError for an invalid item,
        which stays marked."""
        ...

    def sums(self, rows: Mapping[str, Row]) -> Mapping[str, Any]:
        """Return what the rows add up to, as JSON types. Raises one of DECODING_ERRORS for invalid rows."""
        ...

    def check(self, sums: Mapping[str, Any]) -> None:
        """Raise one of DECODING_ERRORS for invalid sums."""
        ...


class KeptIndex(NamedTuple):
    """The index of a folder. `until` and `marked` say which rows the sums in `months` cover."""

    until: str = ""  # ids that sort before this are counted, unless marked
    marked: Mapping[str, str] = {}  # ids that are listed by name, with the day on which they were marked
    months: Mapping[str, Mapping[str, Any]] = {}  # the sums of each month's rows

    def encode(self) -> bytes:
        months = ",\n".join(f"    {json.dumps(name)}: {_compact(it)}" for name, it in sorted(self.months.items()))
        head = f'{{\n  "until": {json.dumps(self.until)},\n  "marked": {_compact(self.marked)},\n  "months": {{'
        return f"{head}\n{months}\n  }}\n}}\n".encode()


class CountedFolder(NamedTuple):
    """A folder as read: the sums of the counted items, and the files of the others."""

    stored: KeptIndex
    version: str | Expect  # of the index in the bucket
    until: str  # ids that sort before this, and are not marked, are covered by the index
    fresh: Mapping[str, Files]  # all other items

    def has(self, item_id: str) -> bool:
        """Return whether the index covers the item."""
        return item_id < self.until and item_id not in self.stored.marked


class KeptCounts:
    """The counts of one folder of `bucket`. Every method may raise StorageError."""

    def __init__(self, bucket: Bucket, clock: Clock, kind: KeptKind) -> None:
        self._bucket, self._clock, self._kind = bucket, clock, kind
        self._place = f"{KEPT}{kind.folder}"

    def read(self, *, overruled: Iterable[str] = ()) -> CountedFolder:
        """Return what is counted, and the rest of the folder. Takes one listing, and one for each marked item.

        Items with an `overruled` id are treated as marked. The sums in the returned index are only those of the items
        that it covers; a month is read if its stored sums include others.
        """
        index, version = self._index()
        marked = {it: _OVERRULED for it in overruled if it < index.until}
        index = index._replace(marked={**index.marked, **marked})
        until = min(index.until, days_ago(self._clock, SETTLED_DAYS))
        folder = self._kind.folder
        entries = [*scan(self._bucket, folder, f"{folder}{until}" if until else "")]
        for item_id in index.marked:
            if item_id < until:
                entries += self._bucket.list(self._kind.stem(item_id))
        counted = CountedFolder(index, version, until, by_item(self._kind, entries))
        counted = counted._replace(fresh={it: files for it, files in counted.fresh.items() if not counted.has(it)})
        sums = self._sums(counted)
        if sums is None:
            return self.uncounted()._replace(stored=KeptIndex(marked=index.marked), version=version)
        return counted._replace(stored=index._replace(months=sums))

    def uncounted(self) -> CountedFolder:
        """Return the whole folder, listed, with nothing counted."""
        every = self._bucket.list(self._kind.folder)
        return CountedFolder(KeptIndex(), ABSENT, "", by_item(self._kind, every))

    def _sums(self, counted: CountedFolder) -> dict[str, Mapping[str, Any]] | None:
        """Return the sums of the items that the index covers, by month; None if a month's document is missing or
        invalid."""
        found: dict[str, Mapping[str, Any]] = {}
        doubtful = {month_of(it) for it in counted.stored.marked if it < counted.stored.until}
        for month, sums in counted.stored.months.items():
            if month in doubtful or (counted.until < counted.stored.until and month >= month_of(counted.until)):
                rows = self.rows(counted, month)
                if rows is None:
                    return None
                sums = self._kind.sums(rows)
            found[month] = sums
        return found

    def rows(self, counted: CountedFolder, month: str) -> dict[str, Row] | None:
        """Return the rows of a month that the index covers; None if the month's document is missing or invalid."""
        rows, _ = self._month(month)
        return None if rows is None else {name: row for name, row in rows.items() if counted.has(name)}

    def require_rows(self, counted: CountedFolder, month: str) -> dict[str, Row]:
        """Return the rows of a month that the index covers.

        If the month's document is missing or invalid, remove the index, so that the next reader counts again, and
        raise StateError.
        """
        rows = self.rows(counted, month)
        if rows is None:
            self.forget()
            raise StateError(f"{self._key(month)} is gone or invalid: look again, and all is counted again")
        return rows

    def merged(
        self,
        counted: CountedFolder,
        fresh: Iterable[T],
        bound: Callable[[Mapping[str, Any]], Any],
        made: Callable[..., T],
    ) -> Iterator[T]:
        """Yield all items, the greatest first: `fresh`, and what `made(id, row)` makes of the counted rows.

        `bound(sums)` is an upper bound of the first field of a month's items, so that a month is read only when it may
        hold the next item. Raises StateError as `require_rows` does.
        """
        found, months = sorted(fresh), sorted((bound(sums), name) for name, sums in counted.stored.months.items())
        while found or months:
            if months and (not found or found[-1][0] <= months[-1][0]):
                rows = self.require_rows(counted, months.pop()[1])
                found = sorted([*found, *(made(*it) for it in rows.items())])
            else:
                yield found.pop()

    def count_settled(self, counted: CountedFolder, known: Mapping[str, Row | None] | None = None) -> None:
        """Count the items that have settled, if there are enough of them. `known` are rows that the caller already has.

        Any reader may do this, and nothing depends on it: what cannot be written now is counted later.
        """
        settled, until = self._settled(counted)
        if len(settled) < KEEP_AFTER or _OVERRULED in counted.stored.marked.values():
            return
        try:
            if counted.version is ABSENT:  # find out whether the index can be written before reading items
                counted = counted._replace(version=self._bucket.write(self._key(INDEX), KeptIndex().encode(), ABSENT))
            self._keep(counted, settled, until, known or {})
        except StorageError as error:  # or its subclass Conflict: another reader counts, or an item was marked
            _log.debug("%s is counted another time: %s", self._kind.folder, error)

    def _settled(self, counted: CountedFolder) -> tuple[set[str], str]:
        until, marked = days_ago(self._clock, SETTLED_DAYS), counted.stored.marked
        settled = {it for it, day in marked.items() if it < until and day < until}
        settled |= {it for it in counted.fresh if it < until and it not in marked}
        # No further than the last item, so that a clock that is ahead hides nothing. "0" sorts right after "/".
        last = f"{max(settled, default='')}0"
        return settled, max(counted.until, min(until, last))

    def _keep(self, counted: CountedFolder, settled: set[str], until: str, known: Mapping[str, Row | None]) -> None:
        made = self._made(counted, settled, known)
        if later := [it for it in settled - made.keys() if it not in counted.stored.marked]:
            until = max(counted.until, min(until, *later))
        marked = {it: day for it, day in counted.stored.marked.items() if it not in made}
        months = dict(counted.stored.months)
        rows_of: dict[str, dict[str, Row]] = {month_of(until): {}}
        for item_id, row in made.items():
            rows = rows_of.setdefault(month_of(item_id), {})
            if row is _INVALID:
                marked[item_id] = days_ago(self._clock, 0)
            elif row is not None:
                rows[item_id] = row
        for month in {*rows_of, *(it for it in months if it > month_of(until))}:
            old, version = self._month(month)
            if old is None and month in months:
                self.forget()
                return
            kept = {it: row for it, row in (old or {}).items() if it not in made and not counted.until <= it < until}
            rows = {**kept, **rows_of.get(month, {})}
            self._bucket.write(self._key(month), _encoded_rows(rows), version)
            months[month] = self._kind.sums({it: row for it, row in rows.items() if it < until and it not in marked})
        self._bucket.write(self._key(INDEX), KeptIndex(until, marked, months).encode(), counted.version)

    def _made(
        self, counted: CountedFolder, settled: set[str], known: Mapping[str, Row | None]
    ) -> dict[str, Row | None]:
        """Return the rows of settled items (None for an item that needs none), the oldest first, until `COUNTING_S`
        is over."""
        found: dict[str, Row | None] = {}
        left_s = countdown(COUNTING_S, self._clock)
        for item_id in sorted(settled):
            if item_id in known:
                found[item_id] = known[item_id]
                continue
            if left_s() < 0:
                break
            try:
                found[item_id] = self._kind.row(self._bucket, item_id, counted.fresh.get(item_id, {}))
            except StateError:
                found[item_id] = _INVALID
        return found

    def forget(self, name: str = INDEX) -> None:
        """Remove the index, so that everything is counted again, and the document `name`, if that is invalid."""
        self._bucket.delete(self._key(INDEX))
        self._bucket.delete(self._key(name))

    # --- documents ---

    def _index(self) -> tuple[KeptIndex, str | Expect]:
        index, version = _read_index(self._bucket, self._kind.folder)
        try:
            for sums in index.months.values():
                self._kind.check(sums)
        except DECODING_ERRORS as error:
            _warn(self._key(INDEX), error, self._kind.folder)
            return KeptIndex(), version
        return index, version

    def _month(self, month: str) -> tuple[dict[str, Row] | None, str | Expect]:
        try:
            data, version = self._bucket.read(self._key(month))
        except NotFound:
            return None, ABSENT
        try:
            rows = decoded_rows(data)
            self._kind.sums(rows)
        except DECODING_ERRORS as error:
            _warn(self._key(month), error, self._kind.folder)
            return None, version
        return rows, version

    def _key(self, name: str) -> str:
        return f"{self._place}{name}.json"


def mark_changes(bucket: Bucket, clock: Clock, folder: str, item_ids: Iterable[str]) -> None:
    """Mark these items of a folder as about to change, so that each is listed by its name from now on.

    Call this before the change. Items of the last days need no mark, and cost nothing. Raises StorageError.
    """
    before, today = days_ago(clock, MARKED_DAYS), days_ago(clock, 0)
    if not (old := [it for it in item_ids if it < before]):
        return
    for attempt in attempts(_PAUSES_S, clock.sleep):
        index, version = _read_index(bucket, folder)
        marked = {**index.marked, **dict.fromkeys(old, today)}
        if marked == index.marked:
            return
        try:
            bucket.write(f"{KEPT}{folder}{INDEX}.json", index._replace(marked=marked).encode(), version)
        except Conflict:
            if attempt.last:
                raise
        else:
            return


def _read_index(bucket: Bucket, folder: str) -> tuple[KeptIndex, str | Expect]:
    try:
        data, version = bucket.read(key := f"{KEPT}{folder}{INDEX}.json")
    except NotFound:
        return KeptIndex(), ABSENT
    try:
        return decoded_index(data), version
    except DECODING_ERRORS as error:
        _warn(key, error, folder)
        return KeptIndex(), version


def _warn(key: str, error: Exception, folder: str) -> None:
    _log.warning("%s is invalid (%s); %s is counted again", key, error, folder)


def by_item(kind: KeptKind, entries: Iterable[Entry]) -> dict[str, dict[str, Entry]]:
    """Return the objects grouped by the item that they belong to."""
    found: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        if named := kind.name_of(entry.key):
            found.setdefault(named[0], {})[named[1]] = entry
    return found


def days_ago(clock: Clock, days: int) -> str:
    """Return the day `days` days ago, in the form that ids begin with: "20261122"."""
    return (clock.now().astimezone(UTC) - timedelta(days=days)).strftime("%Y%m%d")


def month_of(item_id: str) -> str:
    """Return the name of the document with the item's row: "202611", or "other" for an id without a date."""
    return item_id[:6] if item_id[:6].isascii() and item_id[:6].isdecimal() and len(item_id) >= 6 else "other"


def decoded_index(data: bytes) -> KeptIndex:
    """Return the index in `data`. Raises ValueError, KeyError or AttributeError if it is invalid."""
    raw = json.loads(data)
    if not isinstance(raw, dict):
        raise ValueError("no object")  # noqa: TRY004  like what json raises
    until, marked, months = raw["until"], raw["marked"], raw["months"]
    if not isinstance(until, str) or not all(isinstance(it, str) for it in marked.values()):
        raise ValueError("until or marked is not text")
    if not all(isinstance(it, dict) for it in months.values()):
        raise ValueError("months: no object")
    return KeptIndex(until, marked, months)


def decoded_rows(data: bytes) -> dict[str, Row]:
    """Return the rows in `data`. Raises ValueError if they are invalid."""
    raw = json.loads(data)
    rows = raw.get("items") if isinstance(raw, dict) else None
    if not isinstance(rows, dict):
        raise ValueError("items: no object")  # noqa: TRY004  like what json raises
    return rows


def _encoded_rows(rows: Mapping[str, Row]) -> bytes:
    lines = ",\n".join(f"    {json.dumps(name)}: {_compact(row)}" for name, row in sorted(rows.items()))
    return f'{{\n  "items": {{\n{lines}\n  }}\n}}\n'.encode()


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
