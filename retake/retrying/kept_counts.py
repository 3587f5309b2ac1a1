"""What is in a folder that only grows, without listing it whole: counts of what is old are kept, what is new is listed.

    kept/FOLDER/index.json     up to which id the folder is counted, and what that comes to, by month
    kept/FOLDER/202611.json    a row for each item of a month, from which its sums are added up

Items are known by ids that begin with a date, and sort by it. Whoever reads the folder may count, once there is enough
that is older than `SETTLED_DAYS`; nobody has to. So work pays nothing for these documents, but for one rule: whoever
writes or removes an item that is not of the last days calls `mark_changes` before, and a marked item is looked at by
its name from then on, until it has settled again. Where counting an item means reading it, it is done for `COUNTING_S`,
the oldest first, and the next reader goes on. The index is replaced by compare-and-set, after the months, and says of
which of their rows it holds: a crash, or two readers that count at once, leave the older counts, which are right too.

Nothing here is a source. What is not there or invalid is counted from the folder; `retake check` compares.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, timedelta
from logging import getLogger
from typing import Any, NamedTuple, Protocol, TypeVar

from retake.attempts import attempts
from retake.bucket import ABSENT, Bucket, Conflict, Entry, Expect, NotFound
from retake.bucket.scanning import scan
from retake.clock import Clock
from retake.errors import StateError, StorageError

KEPT = "kept/"
INDEX = "index"

SETTLED_DAYS = 3
"""Items of the last days are listed each time: they may change without a mark."""

MARKED_DAYS = 2
"""Older items are marked before they change. Less than the above, since clocks differ."""

KEEP_AFTER = 100
"""How many settled items are listed before they are counted into the documents."""

COUNTING_S = 2.0
"""How long one reader reads items that it does not need itself, to count them."""

_OVERRULED = "overruled"  # instead of the day

_PAUSES_S = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)

NO_COUNTS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What decoding and adding up raises for what is not a count."""

_INVALID = object()  # instead of a row

_log = getLogger(__name__)

T = TypeVar("T", bound=tuple[Any, ...])

Row = Any
"""What is kept of one item, ready for JSON."""

Files = Mapping[str, Entry]
"""The objects of one item: by their names in its folder, or by ""."""


class KeptKind(Protocol):
    """What is counted in a folder."""

    @property
    def folder(self) -> str:
        """The folder, ending in "/"."""
        ...

    def stem(self, item_id: str) -> str:
        """Return the beginning of the keys of an item, which no other item's keys have."""
        ...

    def name_of(self, key: str) -> tuple[str, str] | None:
        """Return the item to which an object in the folder belongs, and its name there; None: to none."""
        ...

    def row(self, bucket: Bucket, item_id: str, files: Files) -> Row | None:
        """Return what is kept of an item, or None where there is nothing to keep. Raises StorageError, and StateError
        for an item that is invalid: it stays marked."""
        ...

    def sums(self, rows: Mapping[str, Row]) -> Mapping[str, Any]:
        """Return what the rows add up to, ready for JSON. Raises ValueError and the like for invalid rows."""
        ...

    def check(self, sums: Mapping[str, Any]) -> None:
        """Raise ValueError or the like for invalid sums."""
        ...


class KeptIndex(NamedTuple):
    """The index of a folder: `until` and `marked` say which rows the sums in `months` are of."""

    until: str = ""  # ids that sort before are counted
    marked: Mapping[str, str] = {}  # ids that are looked at by name, with the day on which they were marked
    months: Mapping[str, Mapping[str, Any]] = {}  # the sums of each month's rows

    def encode(self) -> bytes:
        months = ",\n".join(f"    {json.dumps(name)}: {_dense(it)}" for name, it in sorted(self.months.items()))
        head = f'{{\n  "until": {json.dumps(self.until)},\n  "marked": {_dense(self.marked)},\n  "months": {{'
        return f"{head}\n{months}\n  }}\n}}\n".encode()


class CountedFolder(NamedTuple):
    """A folder as it was read: the sums of what is counted, and the files of what is not."""

    kept: KeptIndex
    version: str | Expect
    until: str  # ids that sort before, and are not marked, are in the index
    fresh: Mapping[str, Files]  # all other items

    def has(self, item_id: str) -> bool:
        """Return whether the index counts the item."""
        return item_id < self.until and item_id not in self.kept.marked


class KeptCounts:
    """The counts of one folder of `bucket`. Every method may raise StorageError."""

    def __init__(self, bucket: Bucket, clock: Clock, kind: KeptKind) -> None:
        self._bucket, self._clock, self._kind = bucket, clock, kind
        self._place = f"{KEPT}{kind.folder}"

    def read(self, *, overruled: Iterable[str] = ()) -> CountedFolder:
        """Return what is counted, and the rest of the folder: one listing, and one more for each marked item. What is
        `overruled` counts as marked.

        The sums in the returned index are those of what it counts: a month is read where its own are of more.
        """
        index, version = self._index()
        ruled = {it: _OVERRULED for it in overruled if it < index.until}
        index = index._replace(marked={**index.marked, **ruled})
        until = min(index.until, day_before(self._clock, SETTLED_DAYS))
        folder = self._kind.folder
        entries = [*scan(self._bucket, folder, f"{folder}{until}" if until else "")]
        for item_id in index.marked:
            if item_id < until:
                entries += self._bucket.list(self._kind.stem(item_id))
        counted = CountedFolder(index, version, until, gathered(self._kind, entries))
        counted = counted._replace(fresh={it: files for it, files in counted.fresh.items() if not counted.has(it)})
        sums = self._sums(counted)
        if sums is None:
            return self.uncounted()._replace(kept=KeptIndex(marked=index.marked), version=version)
        return counted._replace(kept=index._replace(months=sums))

    def uncounted(self) -> CountedFolder:
        """Return the whole folder, listed."""
        every = self._bucket.list(self._kind.folder)
        return CountedFolder(KeptIndex(), ABSENT, "", gathered(self._kind, every))

    def _sums(self, counted: CountedFolder) -> dict[str, Mapping[str, Any]] | None:
        """Return the sums of what the index counts, by month; None where a month's document does not agree with it."""
        found: dict[str, Mapping[str, Any]] = {}
        doubtful = {month_of(it) for it in counted.kept.marked if it < counted.kept.until}
        for month, sums in counted.kept.months.items():
            if month in doubtful or (counted.until < counted.kept.until and month >= month_of(counted.until)):
                rows = self.rows(counted, month)
                if rows is None:
                    return None
                sums = self._kind.sums(rows)
            found[month] = sums
        return found

    def rows(self, counted: CountedFolder, month: str) -> dict[str, Row] | None:
        """Return the rows of a month that hold; None where its document is not there or invalid."""
        rows, _ = self._month(month)
        return None if rows is None else {name: row for name, row in rows.items() if counted.has(name)}

    def sure_rows(self, counted: CountedFolder, month: str) -> dict[str, Row]:
        """Return the rows of a month that hold. Raises StateError where its document is gone meanwhile; the next look
        counts again."""
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
        """Yield all items, the greatest first: `fresh`, and what `made(id, row)` makes of the rows that hold.

        `bound(sums)` is not less than the first field of a month's items: a month is read once it may have the next.
        Raises StateError as `sure_rows` does.
        """
        found, months = sorted(fresh), sorted((bound(sums), name) for name, sums in counted.kept.months.items())
        while found or months:
            if months and (not found or found[-1][0] <= months[-1][0]):
                rows = self.sure_rows(counted, months.pop()[1])
                found = sorted([*found, *(made(*it) for it in rows.items())])
            else:
                yield found.pop()

    def kept(self, counted: CountedFolder, known: Mapping[str, Row | None] | None = None) -> None:
        """Count what has settled, if that is enough to be worth it. `known` are rows that were made already.

        Whoever reads may do this, and nothing depends on it: what cannot be written now is counted another time.
        """
        settled, until = self._settled(counted)
        if len(settled) < KEEP_AFTER or _OVERRULED in counted.kept.marked.values():
            return
        try:
            if counted.version is ABSENT:  # nothing is read for counts that cannot be written
                counted = counted._replace(version=self._bucket.write(self._key(INDEX), KeptIndex().encode(), ABSENT))
            self._keep(counted, settled, until, known or {})
        except StorageError as error:  # Conflict too: another one counts, or an item was marked
            _log.debug("%s is counted another time: %s", self._kind.folder, error)

    def _settled(self, counted: CountedFolder) -> tuple[set[str], str]:
        until, marked = day_before(self._clock, SETTLED_DAYS), counted.kept.marked
        settled = {it for it, day in marked.items() if it < until and day < until}
        settled |= {it for it in counted.fresh if it < until and it not in marked}
        # No further than the last one, so that a clock that is ahead hides nothing. "0" follows "/".
        last = f"{max(settled, default='')}0"
        return settled, max(counted.until, min(until, last))

    def _keep(self, counted: CountedFolder, settled: set[str], until: str, known: Mapping[str, Row | None]) -> None:
        made = self._made(counted, settled, known)
        if later := [it for it in settled - made.keys() if it not in counted.kept.marked]:
            until = max(counted.until, min(until, *later))
        marked = {it: day for it, day in counted.kept.marked.items() if it not in made}
        months = dict(counted.kept.months)
        rows_of: dict[str, dict[str, Row]] = {month_of(until): {}}
        for item_id, row in made.items():
            rows = rows_of.setdefault(month_of(item_id), {})
            if row is _INVALID:
                marked[item_id] = day_before(self._clock, 0)
            else:
                rows |= {item_id: row} if row is not None else {}
        for month in {*rows_of, *(it for it in months if it > month_of(until))}:
            old, version = self._month(month)
            if old is None and month in months:
                self.forget()
                return
            stays = {it: row for it, row in (old or {}).items() if it not in made}
            stays = {it: row for it, row in stays.items() if not counted.until <= it < until}
            rows = {**stays, **rows_of.get(month, {})}
            self._bucket.write(self._key(month), _encoded_rows(rows), version)
            months[month] = self._kind.sums({it: row for it, row in rows.items() if it < until and it not in marked})
        self._bucket.write(self._key(INDEX), KeptIndex(until, marked, months).encode(), counted.version)

    def _made(
        self, counted: CountedFolder, settled: set[str], known: Mapping[str, Row | None]
    ) -> dict[str, Row | None]:
        """Return the rows of what has settled, the oldest first, as far as `COUNTING_S` allows; None for what has
        none."""
        found: dict[str, Row | None] = {}
        end = self._clock.now() + timedelta(seconds=COUNTING_S)
        for item_id in sorted(settled):
            if item_id in known:
                found[item_id] = known[item_id]
                continue
            if self._clock.now() > end:
                break
            try:
                found[item_id] = self._kind.row(self._bucket, item_id, counted.fresh.get(item_id, {}))
            except StateError:
                found[item_id] = _INVALID
        return found

    def forget(self, name: str = INDEX) -> None:
        """Remove the index, so that everything is counted again; and the document `name`, where that is the trouble."""
        self._bucket.delete(self._key(INDEX))
        self._bucket.delete(self._key(name))

    # --- documents ---

    def _index(self) -> tuple[KeptIndex, str | Expect]:
        index, version = _read_index(self._bucket, self._kind.folder)
        try:
            for sums in index.months.values():
                self._kind.check(sums)
        except NO_COUNTS as error:
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
        except NO_COUNTS as error:
            _warn(self._key(month), error, self._kind.folder)
            return None, version
        return rows, version

    def _key(self, name: str) -> str:
        return f"{self._place}{name}.json"


def mark_changes(bucket: Bucket, clock: Clock, folder: str, item_ids: Iterable[str]) -> None:
    """Note that these items of a folder change: from now on each is looked at by its name. To be called before the
    change; items of the last days need none, and cost nothing. Raises StorageError."""
    before, today = day_before(clock, MARKED_DAYS), day_before(clock, 0)
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
    except NO_COUNTS as error:
        _warn(key, error, folder)
        return KeptIndex(), version


def _warn(key: str, error: Exception, folder: str) -> None:
    _log.warning("%s is invalid (%s); %s is counted again", key, error, folder)


def gathered(kind: KeptKind, entries: Iterable[Entry]) -> dict[str, dict[str, Entry]]:
    """Return the items to which these objects belong."""
    found: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        if named := kind.name_of(entry.key):
            found.setdefault(named[0], {})[named[1]] = entry
    return found


def day_before(clock: Clock, days: int) -> str:
    """Return the day that was so many days ago, as ids begin with it: "20261122"."""
    return (clock.now().astimezone(UTC) - timedelta(days=days)).strftime("%Y%m%d")


def month_of(item_id: str) -> str:
    """Return the name of the document that has the item's row."""
    return item_id[:6] if item_id[:6].isascii() and item_id[:6].isdecimal() and len(item_id) >= 6 else "other"


def decoded_index(data: bytes) -> KeptIndex:
    """Raises ValueError, KeyError or AttributeError for an invalid index."""
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
    """Raises ValueError for invalid rows."""
    raw = json.loads(data)
    rows = raw.get("items") if isinstance(raw, dict) else None
    if not isinstance(rows, dict):
        raise ValueError("items: no object")  # noqa: TRY004  like what json raises
    return rows


def _encoded_rows(rows: Mapping[str, Row]) -> bytes:
    lines = ",\n".join(f"    {json.dumps(name)}: {_dense(row)}" for name, row in sorted(rows.items()))
    return f'{{\n  "items": {{\n{lines}\n  }}\n}}\n'.encode()


def _dense(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
