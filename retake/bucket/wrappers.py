"""Wrappers around a bucket: their base class, one that counts, one under a lease, one below a prefix."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import BinaryIO, TypeVar

from retake.bucket import Bucket, Entry, Expect, Holder, Lease, NotFound, Room
from retake.bucket.contract import (
    Marks,
    NewFolders,
    make_folders,
    mark,
    scan,
    shared_writes,
    write_and_delete,
    write_file,
    write_unsynced,
)
from retake.bucket.empty_folders import EmptyFolders, remove_folder
from retake.bucket.moves import Moves, copy_and_delete, move
from retake.bucket.ranged_reads import read_range
from retake.bucket.scanning import Remnant, clear, remains

T = TypeVar("T")


class _WrappedLeases:
    """Passes operations on leases and remains, and writes that need not be durable, on to `bucket`."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.url = bucket.url
        self.may_forget_marks: bool = getattr(bucket, "may_forget_marks", False)

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        """Make one operation by calling `call`, and return its result. Subclasses override this.

        `operation` is "read", "write", "replace", "set aside", "list", "find", "delete", "copy", "lease", "holder",
        "break", "join", "now", "mark", "move" or "folders". `key` is its key, prefix, stem or lease; for "copy" it is
        the target, and for "move" and "folders" the first.
        """
        return call()

    def lease(self, name: str, owner: str) -> Lease:
        return self.around("lease", name, lambda: self.bucket.lease(name, owner))

    def holder(self, name: str) -> Holder | None:
        return self.around("holder", name, lambda: self.bucket.holder(name))

    def break_lease(self, name: str, owner: str) -> int:
        return self.around("break", name, lambda: self.bucket.break_lease(name, owner))

    def join(self, name: str, handed: str) -> Lease:
        return self.around("join", name, lambda: self.bucket.join(name, handed))

    def alone(self, name: str) -> AbstractContextManager[None]:
        return self.bucket.alone(name)

    def remains(self) -> Iterator[Remnant]:
        return self.around("list", ".retake/", lambda: remains(self.bucket))

    def clear(self, remnant: Remnant) -> None:
        self.around("delete", remnant.name, lambda: clear(self.bucket, remnant))

    def write_unsynced(self, key: str, data: bytes, expect: str | Expect) -> str:
        return self.around("write", key, lambda: write_unsynced(self.bucket, key, data, expect))

    def make_folders(self, prefixes: Sequence[str]) -> None:
        if isinstance(self.bucket, NewFolders):
            self.around("folders", prefixes[0], lambda: make_folders(self.bucket, prefixes))

    def remove_folder(self, prefix: str) -> None:
        if isinstance(self.bucket, EmptyFolders):
            self.around("folders", prefix, lambda: remove_folder(self.bucket, prefix))


class Wrapper(_WrappedLeases):
    """A `Bucket` that passes every operation on to `bucket`, through `around`. Leases are returned as they are."""

    def read(self, key: str) -> tuple[bytes, str]:
        return self.around("read", key, lambda: self.bucket.read(key))

    def read_range(self, key: str, first: int, last: int) -> bytes:
        return self.around("read", key, lambda: read_range(self.bucket, key, first, last))

    def write(self, key: str, data: bytes, expect: str | Expect) -> str:
        return self.around("write", key, lambda: self.bucket.write(key, data, expect))

    def write_file(self, key: str, file: BinaryIO, expect: str | Expect) -> str:
        return self.around("write", key, lambda: write_file(self.bucket, key, file, expect))

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        return self.around("replace", key, lambda: shared_writes(self.bucket).replace(key, data, expect, aside))

    def set_aside(self, key: str, size: int) -> Room:
        return self.around("set aside", key, lambda: _WrappedRoom(self, key, self.bucket.set_aside(key, size)))

    def delete(self, key: str) -> None:
        return self.around("delete", key, lambda: self.bucket.delete(key))

    def copy(self, source: str, target: str) -> None:
        return self.around("copy", target, lambda: self.bucket.copy(source, target))

    def move(self, moves: Sequence[tuple[str, str]]) -> None:
        if moves and isinstance(self.bucket, Moves):
            self.around("move", moves[0][1], lambda: move(self.bucket, moves))
        else:
            copy_and_delete(self, moves)  # so that each step is an operation

    def mark(self, key: str, instead_of: str | None = None) -> None:
        if isinstance(self.bucket, Marks):
            self.around("mark", key, lambda: mark(self.bucket, key, instead_of))
        else:
            write_and_delete(self, key, instead_of)  # so that each step is an operation

    def part(self, prefix: str) -> Bucket:
        return PrefixedBucket(self, prefix)

    def now(self) -> datetime | None:
        return self.around("now", "", self.bucket.now)

    def find(self, stem: str, endings: Iterable[str]) -> list[Entry]:
        return self.around("find", stem, lambda: self.bucket.find(stem, endings))

    def scan(self, prefix: str, after: str = "") -> Iterator[Entry]:
        return self.around("list", prefix, lambda: scan(self.bucket, prefix, after))

    def list(self, prefix: str) -> list[Entry]:
        return self.around("list", prefix, lambda: self.bucket.list(prefix))


class _WrappedRoom:
    """Room in the bucket that `wrapper` wraps. A write into it is an operation like any other."""

    def __init__(self, wrapper: Wrapper, key: str, room: Room) -> None:
        self._wrapper = wrapper
        self._key = key
        self._room = room

    def write(self, data: bytes, expect: str | Expect) -> str:
        return self._wrapper.around("write", self._key, lambda: self._room.write(data, expect))

    def release(self) -> None:
        self._room.release()


_READS = ("read", "list", "find", "lease", "holder", "join", "now")


class LeasedBucket(Wrapper):
    """`bucket`, changed only under `lease`: changes raise LeaseLost once it is lost. A `with` block releases it."""

    def __init__(self, bucket: Bucket, lease: Lease) -> None:
        super().__init__(bucket)
        self._lease = lease

    def __enter__(self) -> "LeasedBucket":
        return self

    def __exit__(self, *_error: object) -> None:
        self._lease.release()

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        if operation not in _READS:
            self._lease.check()
        return call()


class CountingBucket(Wrapper):
    """Counts the operations on `bucket` by name (see `Wrapper.around`), including those that fail."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        with self._lock:
            self.counts[operation] += 1
        return call()


class _PrefixedLeases:
    """The leases of `bucket` below `prefix`, and writes that need not survive a power cut."""

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self.bucket = bucket
        self.url = f"{bucket.url.rstrip('/')}/{prefix.rstrip('/')}"
        self.may_forget_marks: bool = getattr(bucket, "may_forget_marks", False)
        self._prefix = prefix

    def lease(self, name: str, owner: str) -> Lease:
        return self.bucket.lease(self._prefix + name, owner)

    def holder(self, name: str) -> Holder | None:
        return self.bucket.holder(self._prefix + name)

    def break_lease(self, name: str, owner: str) -> int:
        return self.bucket.break_lease(self._prefix + name, owner)

    def join(self, name: str, handed: str) -> Lease:
        return self.bucket.join(self._prefix + name, handed)

    def alone(self, name: str) -> AbstractContextManager[None]:
        return self.bucket.alone(self._prefix + name)

    def mark(self, key: str, instead_of: str | None = None) -> None:
        """See `Marks.mark`."""
        mark(self.bucket, self._prefix + key, None if instead_of is None else self._prefix + instead_of)

    def write_unsynced(self, key: str, data: bytes, expect: str | Expect) -> str:
        """See `UnsyncedWrites.write_unsynced`."""
        return write_unsynced(self.bucket, self._prefix + key, data, expect)

    def make_folders(self, prefixes: Sequence[str]) -> None:
        """See `NewFolders.make_folders`."""
        make_folders(self.bucket, [self._prefix + it for it in prefixes])

    def remove_folder(self, prefix: str) -> None:
        """See `EmptyFolders.remove_folder`."""
        remove_folder(self.bucket, self._prefix + prefix)


class PrefixedBucket(_PrefixedLeases):
    """`bucket` below `prefix`, which ends in "/". Keys outside the prefix cannot be reached."""

    def read(self, key: str) -> tuple[bytes, str]:
        try:
            return self.bucket.read(self._prefix + key)
        except NotFound:
            raise NotFound(key) from None

    def read_range(self, key: str, first: int, last: int) -> bytes:
        try:
            return read_range(self.bucket, self._prefix + key, first, last)
        except NotFound:
            raise NotFound(key) from None

    def write(self, key: str, data: bytes, expect: str | Expect) -> str:
        return self.bucket.write(self._prefix + key, data, expect)

    def write_file(self, key: str, file: BinaryIO, expect: str | Expect) -> str:
        return write_file(self.bucket, self._prefix + key, file, expect)

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        return shared_writes(self.bucket).replace(self._prefix + key, data, expect, self._prefix + aside)

    def set_aside(self, key: str, size: int) -> Room:
        return self.bucket.set_aside(self._prefix + key, size)

    def delete(self, key: str) -> None:
        self.bucket.delete(self._prefix + key)

    def copy(self, source: str, target: str) -> None:
        try:
            self.bucket.copy(self._prefix + source, self._prefix + target)
        except NotFound:
            raise NotFound(source) from None

    def move(self, moves: Sequence[tuple[str, str]]) -> None:
        try:
            move(self.bucket, [(self._prefix + source, self._prefix + target) for source, target in moves])
        except NotFound as error:
            raise NotFound(str(error.args[0]).removeprefix(self._prefix)) from None

    def part(self, prefix: str) -> Bucket:
        return PrefixedBucket(self.bucket, self._prefix + prefix)

    def now(self) -> datetime | None:
        return self.bucket.now()

    def _below(self, found: Iterable[Entry]) -> Iterator[Entry]:
        start = len(self._prefix)  # a constructor call is several times as fast as _replace
        return (Entry(key[start:], size, modified) for key, size, modified in found)

    def find(self, stem: str, endings: Iterable[str]) -> list[Entry]:
        return [*self._below(self.bucket.find(self._prefix + stem, endings))]

    def scan(self, prefix: str, after: str = "") -> Iterator[Entry]:
        return self._below(scan(self.bucket, self._prefix + prefix, after and self._prefix + after))

    def list(self, prefix: str) -> list[Entry]:
        return [*self._below(self.bucket.list(self._prefix + prefix))]
