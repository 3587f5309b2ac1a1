"""A check's view of a bucket, as listed at the beginning or as it is now."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from retake import strict_json
from retake.bucket import Bucket, Entry, NotFound
from retake.bucket.contract import scan
from retake.clock import Clock
from retake.runs import Ledger

MAX_DOCUMENT_BYTES = 16_000_000
"""Size in bytes above which an object is not read as a document. Ours are far smaller."""


def _no_ledger(pipeline: str) -> Ledger:
    raise LookupError(f"the scope of this check has no ledger of {pipeline}")


class Scope(NamedTuple):
    """The scope of a check."""

    bucket: Bucket  # the whole bucket
    clock: Clock
    media: bool = False  # whether the content of pictures and videos is checked
    prefix: str = ""  # only objects below it are checked; "" or ending in "/"
    ledger: Callable[[str], Ledger] = _no_ledger  # returns the ledger of a pipeline, by its name, for reading


class Unparsable(ValueError):
    """An object is not the JSON document that it should be. The message says why."""


class Listing(Protocol):
    """The objects of a bucket, in the order of their keys."""

    def entries(self, prefix: str) -> Iterator[Entry]:
        """Yield the objects whose keys begin with `prefix`."""
        ...

    def find(self, stem: str, endings: Iterable[str]) -> list[Entry]:
        """Return the existing ones among the objects `stem` + ending."""
        ...


class Inventory:
    """The listing of a bucket, in a temporary database so that memory does not grow with the number of objects.

    `close` deletes the database.
    """

    def __init__(self, listed: Iterable[Entry]) -> None:
        self._db = sqlite3.connect("", check_same_thread=False)  # "": a private file, deleted when it is closed
        self._db.execute("CREATE TABLE objects (key TEXT PRIMARY KEY, size INTEGER, modified REAL) WITHOUT ROWID")
        self._db.executemany("INSERT OR REPLACE INTO objects VALUES (?, ?, ?)", listed)

    def close(self) -> None:
        self._db.close()

    def entries(self, prefix: str) -> Iterator[Entry]:
        """Yield the objects whose keys begin with `prefix`, in the order of the keys' UTF-8 bytes."""
        sql, bounds = "SELECT key, size, modified FROM objects", (prefix, f"{prefix}\U0010ffff")
        where = " WHERE key >= ? AND key < ?" if prefix else ""
        for row in self._db.execute(f"{sql}{where} ORDER BY key", bounds if prefix else ()):
            yield Entry(*row)

    def find(self, stem: str, endings: Iterable[str]) -> list[Entry]:
        """See `Listing.find`."""
        keys = sorted({f"{stem}{ending}" for ending in endings})
        marks = ",".join("?" * len(keys))
        sql = f"SELECT key, size, modified FROM objects WHERE key IN ({marks}) ORDER BY key"  # noqa: S608
        return [Entry(*row) for row in self._db.execute(sql, keys)]

    def totals(self) -> tuple[int, int]:
        """Return the number of objects and their total size in bytes."""
        number, size = self._db.execute("SELECT count(*), coalesce(sum(size), 0) FROM objects").fetchone()
        return number, size


class LiveListing:
    """The objects of a bucket as they are now."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def entries(self, prefix: str) -> Iterator[Entry]:
        yield from self._bucket.list(prefix)

    def find(self, stem: str, endings: Iterable[str]) -> list[Entry]:
        return self._bucket.find(stem, endings)


class CheckView:
    """The view that examinations read from. Keys are those of the whole bucket; `below` returns a view of a part.

    `looked_at` counts what was looked at, by name ("runs", "groups"); examinations add to it.
    """

    def __init__(self, scope: Scope, listing: Listing, looked_at: Counter[str] | None = None, prefix: str = "") -> None:
        self.scope, self.prefix = scope, prefix
        self.looked_at: Counter[str] = Counter() if looked_at is None else looked_at
        self._listing = listing

    @property
    def bucket(self) -> Bucket:
        """The bucket, or the part that the view covers."""
        return self.scope.bucket.part(self.prefix) if self.prefix else self.scope.bucket

    def below(self, prefix: str) -> "CheckView":
        """Return a view of the part below `prefix`, with keys relative to it."""
        return CheckView(self.scope, self._listing, self.looked_at, self.prefix + prefix) if prefix else self

    def where(self, key: str) -> str:
        """Return the key in the whole bucket, for a finding."""
        return self.prefix + key

    def entries(self, prefix: str) -> Iterator[Entry]:
        """Yield the objects whose keys begin with `prefix`, sorted by key."""
        for entry in self._listing.entries(self.prefix + prefix):
            yield entry._replace(key=entry.key[len(self.prefix) :])

    def find(self, stem: str, endings: Iterable[str]) -> list[Entry]:
        """Return the existing ones among the objects `stem` + ending, sorted by key."""
        listed = self._listing.find(self.prefix + stem, endings)
        return [entry._replace(key=entry.key[len(self.prefix) :]) for entry in listed]

    def entry(self, key: str) -> Entry | None:
        """Return the entry of an object in the listing, or None."""
        return next(iter(self.find(key, [""])), None)

    def read(self, key: str, entry: Entry | None = None) -> bytes | None:
        """Return the current content of an object, or None if there is none. `entry` is that of the listing, if the
        caller has it. Raises StorageError; Unparsable if it is too large to be a document."""
        entry = entry or self.entry(key)
        if entry and entry.size > MAX_DOCUMENT_BYTES:
            raise Unparsable(f"it has {entry.size} bytes, and no document of Retake has more than {MAX_DOCUMENT_BYTES}")
        try:
            return self.bucket.read(key)[0]
        except NotFound:
            return None

    def json(self, key: str, entry: Entry | None = None) -> Any:
        """Return the current JSON value of an object, or None if there is none. Raises Unparsable."""
        data = self.read(key, entry)
        if data is None:
            return None
        try:
            return strict_json.parse(data)
        except ValueError as error:
            raise Unparsable(strict_json.what_is_wrong(error)) from error

    def document(self, key: str, entry: Entry | None = None) -> dict[str, Any] | None:
        """Return the current JSON object of a document, or None if there is none. Raises Unparsable."""
        value = self.json(key, entry)
        if value is not None and not isinstance(value, dict):
            raise Unparsable("not a JSON object")
        return value


def listed(scope: Scope) -> Inventory:
    """List the objects in the scope of a check. Raises StorageError."""
    return Inventory(scan(scope.bucket, scope.prefix))
