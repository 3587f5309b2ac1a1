"""The contract of a bucket, which every backend and every wrapper fulfils. tests/bucket/contract.py checks it.

A bucket maps keys (see `check_key`) to whole byte strings, and hands out leases:

    data, version = bucket.read("config/config_gen.json")            # NotFound if there is none
    version = bucket.write("config/config_gen.json", data, version)  # Conflict if somebody else wrote meanwhile
    version = bucket.write("666/new.json", data, ABSENT)             # Conflict if it exists
    version = bucket.write("666/new.json", data, ANY)                # whatever is there is replaced

    lease = bucket.lease("story", "host:4711")                       # LeaseHeld if somebody else has it
    try:
        lease.check()                                                # LeaseLost; call it before each write
        bucket.delete("666/old.json")
    finally:
        lease.release()
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime
from enum import Enum
from typing import BinaryIO, NamedTuple, Protocol, TypeGuard, runtime_checkable

from retake.errors import StorageError


class Expect(Enum):
    """What a write may expect instead of a version."""

    ABSENT = "absent"  # the key does not exist yet
    ANY = "any"  # whatever is there is replaced


ABSENT = Expect.ABSENT
ANY = Expect.ANY


class NotFound(Exception):
    """No object has the key `args[0]`. Not a RetakeError, because callers expect it."""


class Conflict(StorageError):
    """The object is not what the writer expected. Nothing was written."""


class Unreadable(StorageError):
    """This object cannot be read until a person acts, although the store answers: a link is in its place, permission is
    missing, it is too large for memory, or it was moved to an archive."""


class Entry(NamedTuple):
    """One object in a listing."""

    key: str
    size: int  # bytes
    modified: float  # seconds since the epoch, by the store's clock


class Objects(Protocol):
    """Reading and writing objects. Every method may raise StorageError: the store is unreachable, full, or refuses."""

    url: str
    """The URL of the bucket as the settings have it, without credentials."""

    def read(self, key: str) -> tuple[bytes, str]:
        """Return the object and its version. Raises NotFound, and Unreadable if only this object is at fault.

        A reader sees each write whole or not at all. A version is an opaque string; no key has the same version twice.
        """
        ...

    def write(self, key: str, data: bytes, expect: str | Expect) -> str:
        """Make `data` the object `key` and return its version.

        `expect` is the version to replace, ABSENT or ANY. Raises Conflict, with nothing written, if something else is
        there. The write is atomic and, once this returns, durable: after a crash the old object or the new one is
        there, whole.
        """
        ...

    def set_aside(self, key: str, size: int) -> "Room":
        """Reserve room for one write of `size` bytes to `key`, so that a disk that fills up meanwhile cannot fail it.

        A crash leaves nothing that a reader sees. Stores without a disk of their own (B2, S3) reserve nothing.
        """
        ...

    def find(self, stem: str, endings: Iterable[str]) -> list[Entry]:
        """Return the objects `stem` + ending that exist, sorted by key: like `list`, for known names.

            bucket.find("archive/20260101-0930.", ("json", "png", "mp4"))
            bucket.find("spend/20260101-0930.json", [""])

        The cost does not depend on what else the bucket holds. A directory looks up each name and, unlike `list`, reads
        no folder. B2 and S3 list what begins with `stem`, one request for each 1,000 objects, so `stem` should be
        everything that the names have in common.
        """
        ...

    def list(self, prefix: str) -> list[Entry]:
        """Return every object whose key begins with `prefix`, sorted by key: "666/" for a folder, "" for everything."""
        ...

    def delete(self, key: str) -> None:
        """Delete the object with all its versions. Deleting a key that does not exist is not an error."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Copy the object `source` to `target` atomically, replacing what is there. Raises NotFound."""
        ...

    def now(self) -> datetime | None:
        """Return the time by the store's clock, to the second, or None if the store has none or does not tell it."""
        ...


class Leases(Protocol):
    """Mutual exclusion between processes. Names of leases are keys. Every method may raise StorageError."""

    def lease(self, name: str, owner: str) -> "Lease":
        """Take the lease `name` without waiting. Raises LeaseHeld, which names the holder.

        `owner` ("host:pid") is shown to people. A holder that died does not block for ever: on a directory the kernel
        frees its lock immediately, on B2 and S3 the lease expires.
        """
        ...

    def holder(self, name: str) -> "Holder | None":
        """Return the holder of the lease `name`, or None if it is free. Takes nothing and changes nothing."""
        ...

    def break_lease(self, name: str, owner: str) -> int:
        """End the lease `name`, for an operator who knows that its holder is gone; `owner` is the operator.

        Returns a fencing token: the old holder's is lower, every later one is higher. Raises LeaseHeld, which names the
        processes, if living processes hold a kernel lock: only their exit frees it.
        """
        ...

    def join(self, name: str, handed: str) -> "Lease":
        """Act under the lease that a parent process handed over: `handed` is its `Handover.text`. Raises LeaseLost."""
        ...

    def alone(self, name: str) -> AbstractContextManager[None]:
        """Make one `read` and the `write` based on it exclusive among all blocks inside `alone(name)`.

        Backends that compare and write in one step do nothing here. An S3 store that ignores conditional headers waits
        for a short lease, so keep the block to one read and one write. Raises StorageError, also at the end of a block
        that outlasted the lease: what it wrote may have been overwritten.
        """
        ...


class Bucket(Objects, Leases, Protocol):
    """Objects and leases in one place."""

    def part(self, prefix: str) -> "Bucket":
        """Return the objects below `prefix`, which ends in "/", as a bucket with its own keys and leases."""
        ...


class Room(Protocol):
    """Room for one write, reserved by `Bucket.set_aside`."""

    def write(self, data: bytes, expect: str | Expect) -> str:
        """Write like `Bucket.write`. Call it again only after it has failed.

        If the key exists already and `data` is no larger than the room, a full disk does not fail it.
        """
        ...

    def release(self) -> None:
        """Give the room back if it was not used. Releasing it twice is not an error."""
        ...


class Lease(Protocol):
    """The right to change what a name stands for. One process at a time holds it, together with the scripts it runs."""

    token: int
    """The fencing token. It rises with every holder and is never reused."""

    def check(self) -> None:
        """Return if the lease is still held; raise LeaseLost if not. Call this before each write and payment."""
        ...

    def left(self) -> float | None:
        """Return the seconds for which the lease is certainly still held without a renewal, counted from the last
        `check`. None if it does not expire."""
        ...

    def handover(self) -> "Handover":
        """Return what a subprocess needs to join this lease with `Bucket.join`."""
        ...

    def release(self) -> None:
        """Give the lease back. Releasing one that is lost or released is not an error."""
        ...


@runtime_checkable
class RenewedLease(Protocol):
    """A lease that a thread of this process renews."""

    def without_thread(self) -> AbstractContextManager[None]:
        """Stop renewing during the block, and stop the thread if it can end at once, so that the process can be forked.
        Keep the block to milliseconds."""
        ...


def without_thread(lease: Lease) -> AbstractContextManager[None]:
    """Stop the thread that renews the lease, if there is one, during the block (see `RenewedLease.without_thread`)."""
    return lease.without_thread() if isinstance(lease, RenewedLease) else nullcontext()


class Handover(NamedTuple):
    """What a subprocess needs to act under its parent's lease."""

    text: str  # to be passed in the environment
    fds: tuple[int, ...]  # file descriptors that the subprocess must inherit


class Holder(NamedTuple):
    """The recorded holder of a lease."""

    owner: str  # as given to `lease`: "host:pid"
    since: datetime | None  # when the lease was taken, or last renewed if only that is recorded
    until: datetime | None  # when it expires unless renewed; None: when the process and its scripts end


class LeaseTerms(NamedTuple):
    """How long leases on B2 and S3 last. A directory's leases do not expire and need no terms."""

    ttl_s: float = 120.0  # time to live without a renewal
    skew_s: float = 30.0  # the most that two clocks of the store may differ, including the rounding of its time stamps
    margin_s: float = 5.0  # how long before the end the holder stops


_PLAIN = re.compile(r"[\w+~=-][\w.+~=-]{0,249}(?:/[\w+~=-][\w.+~=-]{0,249})*", re.ASCII)
"""The fast path of `check_key`, which accepts nearly all keys: a listing of 100,000 objects checks each one."""


def check_key(key: str) -> str:
    """Return `key` if every backend can hold it. Raises ValueError.

    Keys are relative paths with "/" between their parts. No part may be empty, "." or "..", or begin with ".retake":
    backends keep their own objects there. Backslashes, control characters and lone surrogates are not allowed. A key
    has at most 900 bytes of UTF-8, a part at most 250.

    The lengths and characters are B2's rules (`validate_b2_file_name` in b2sdk), which are the strictest: a directory
    allows 255 bytes a part.
    """
    if len(key) <= 900 and _PLAIN.fullmatch(key):
        return key
    parts = key.split("/")
    if any(part in ("", ".", "..") or part.startswith(".retake") for part in parts):
        raise ValueError(f"not a key: {key!r}")
    plain = key.isascii() and key.isprintable()
    if "\\" in key or (not plain and any(it < " " or it == "\x7f" or "\ud800" <= it <= "\udfff" for it in key)):
        raise ValueError(f"not a key: {key!r}")
    if len(key.encode()) > 900 or any(len(part.encode()) > 250 for part in parts):
        raise ValueError(f"not a key: {key!r} (too long)")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if a key can begin with it. Raises ValueError."""
    if not prefix.endswith("/"):
        with suppress(ValueError):
            return check_key(prefix)
    return check_key(f"{prefix}x")[:-1]


def is_key(name: str) -> bool:
    """Whether `check_key` accepts `name`."""
    try:
        check_key(name)
    except ValueError:
        return False
    return True


class Sight(Protocol):
    """The result of a look at several objects (see `Looks`). Names that it does not cover are read from the bucket."""

    def read(self, key: str) -> tuple[bytes, str]:
        """See `Bucket.read`."""
        ...

    def list(self, prefix: str) -> list[Entry]:
        """See `Bucket.list`."""
        ...


@runtime_checkable
class Looks(Protocol):
    """An optional capability of a bucket whose requests are slow and cost money: look at many objects in few,
    concurrent requests.

    view = look(bucket, ["config/a.json", "config/b.json"], ["666/"])
    lease, view = lease_and_look(bucket, "story", "host:4711", ["config/a.json"], ["666/"])
    """

    def look(self, keys: Sequence[str], prefixes: Sequence[str]) -> Sight:
        """Read the objects `keys` and list everything below `prefixes`."""
        ...

    def lease_and_look(
        self, name: str, owner: str, keys: Sequence[str], prefixes: Sequence[str]
    ) -> tuple["Lease", Sight]:
        """Take a lease (see `Leases.lease`) and look at what it guards: no earlier holder has changed that since."""
        ...

    def prepare_lease(self, name: str) -> None:
        """Send the first requests of a later `lease_and_look` now. Raises StorageError."""
        ...


def offers_looks(bucket: Bucket) -> TypeGuard[Looks]:
    """Return `isinstance(bucket, Looks)`, but ask the class, since Python caches that result: isinstance walks the
    protocol each time, and from Python 3.12 on it loads inspect."""
    return issubclass(type(bucket), Looks)


def look(bucket: Bucket, keys: Sequence[str], prefixes: Sequence[str]) -> Sight:
    """Look at several objects and folders (see `Looks`). A bucket that offers no look is its own view."""
    return bucket.look(keys, prefixes) if offers_looks(bucket) else bucket


def lease_and_look(
    bucket: Bucket, name: str, owner: str, keys: Sequence[str], prefixes: Sequence[str]
) -> tuple["Lease", Sight]:
    """Take a lease and look at what it guards (see `Looks`). Raises LeaseHeld, StorageError."""
    if offers_looks(bucket):
        return bucket.lease_and_look(name, owner, keys, prefixes)
    return bucket.lease(name, owner), bucket


@runtime_checkable
class Scans(Protocol):
    """An optional capability of a bucket: listing more objects than fit into memory, or only the last ones."""

    def scan(self, prefix: str, after: str = "") -> Iterator[Entry]:
        """Yield every object whose key begins with `prefix` and sorts after `after`, in any order, as the store lists
        them.

        Memory does not grow with their number. An object that is moved meanwhile may be missed, or yielded twice. B2
        and S3 list nothing that sorts before `after`; a directory reads those names, but does not stat their files.
        """
        ...


def scan(bucket: Bucket, prefix: str, after: str = "") -> Iterator[Entry]:
    """Yield the objects below `prefix` (see `Scans`). A bucket without scans is listed."""
    if not isinstance(bucket, Scans):
        return (entry for entry in bucket.list(prefix) if entry.key > after)
    return bucket.scan(prefix, after) if after else bucket.scan(prefix)


CHUNK_SIZE = 2**20
"""Bytes of a large file that are in memory at a time while it is copied, compared or sent."""


@runtime_checkable
class FileWrites(Protocol):
    """An optional capability of a bucket, for files that are too large for memory.

    with open(path, "rb") as file:
        write_file(bucket, key, file, ANY)
    """

    def write_file(self, key: str, file: BinaryIO, expect: str | Expect) -> str:
        """Write the whole of `file` like `Bucket.write`, with about `CHUNK_SIZE` bytes of it in memory at a time.

        `file` must be seekable. It is read from its beginning, perhaps more than once, and must not change meanwhile.
        """
        ...


def write_file(bucket: Bucket, key: str, file: BinaryIO, expect: str | Expect) -> str:
    """Write the whole of `file` (see `FileWrites`). For a bucket without that capability, read it into memory."""
    if isinstance(bucket, FileWrites):
        return bucket.write_file(key, file, expect)
    file.seek(0)
    return bucket.write(key, file.read(), expect)


def name_stem(name: str) -> str:
    """Return what the names of a group share: "666/20260101-0930." of "666/20260101-0930.mp4". A name without a suffix
    is its own stem."""
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}." if dot and "/" not in suffix and stem and not stem.endswith("/") else name


@runtime_checkable
class SharedWrites(Protocol):
    """Writing an object that a program without Retake's locks writes, too.

    One document needs this, config_public.json, which the publisher writes. It is not part of `Bucket`, but every
    backend offers it, and tests/bucket/contract.py checks it with the rest:

        shared_writes(bucket).replace(key, data, version, aside=f"{key}.displaced-0")
    """

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        """Write like `Bucket.write`, without losing anything that a program without our locks writes meanwhile.

        Such a program can write between any two of our steps. So the write is an exchange: if it displaced something
        other than expected, that is put back immediately, and Conflict is raised. Whatever the other program wrote and
        we displaced, however briefly, is then kept under the key `aside` or one that begins with it, even if it was put
        back: a program that read our `data` in between may write that back, without what was added before.

        A successful call leaves nothing under `aside`. A crash leaves what was displaced, or `data` itself, or nothing:
        merge it before you delete it. Raises Conflict if `aside` exists. Only the holder of the lease may call this.

        A power cut may bring back the former content, as after `write_unsynced`.
        """
        ...


def shared_writes(bucket: Bucket) -> SharedWrites:
    """Return `bucket` as one that can replace shared objects. Raises TypeError if it cannot."""
    if not isinstance(bucket, SharedWrites):
        raise TypeError(f"{bucket.url}: {type(bucket).__name__} cannot replace objects that other programs write too")
    return bucket


# --- writes that need not survive a power cut, so that nothing waits for the disk -------------------------------------
#
# A crash of the program loses none of them. A power cut may bring back the state of some seconds before. They are for
# what the next process finds out or repeats anyway; each use says why. On B2 and S3 they are ordinary writes.


@runtime_checkable
class UnsyncedWrites(Protocol):
    """Writes whose names reach the disk later:

    version = write_unsynced(bucket, "config/topics.json", data, ANY)
    """

    def write_unsynced(self, key: str, data: bytes, expect: str | Expect) -> str:
        """Write like `Bucket.write`, but a power cut may bring back the former content, whole.

        The next durable write in the same folder makes this one durable, too.
        """
        ...


def write_unsynced(bucket: Bucket, key: str, data: bytes, expect: str | Expect) -> str:
    """Write what need not survive a power cut (see `UnsyncedWrites`); durably if the bucket offers nothing else."""
    if isinstance(bucket, UnsyncedWrites):
        return bucket.write_unsynced(key, data, expect)
    return bucket.write(key, data, expect)


@runtime_checkable
class NewFolders(Protocol):
    """Folders that are made before anything is in them, so that their names reach the disk together, not one by one."""

    def make_folders(self, prefixes: Sequence[str]) -> None:
        """Make the folders `prefixes`, each of which ends in "/", durably."""
        ...


def make_folders(bucket: Bucket, prefixes: Sequence[str]) -> None:
    """Make the folders that a new bucket will need (see `NewFolders`); does nothing in a bucket without folders."""
    if isinstance(bucket, NewFolders):
        bucket.make_folders(prefixes)


@runtime_checkable
class Marks(Protocol):
    """Empty objects whose names index what can also be found out in other ways:

    mark(bucket, "runs/index/open/story.run-0123456789abcdef")
    """

    may_forget_marks: bool
    """Whether a power cut may lose the marks of the last seconds, because nothing waits for the disk."""

    def mark(self, key: str, instead_of: str | None = None) -> None:
        """Make sure that `key` exists, as an empty object if it is new, and that `instead_of` does not."""
        ...


def mark(bucket: Bucket, key: str, instead_of: str | None = None) -> None:
    """Leave a mark (see `Marks`). A bucket without marks writes `key` and then deletes `instead_of`."""
    if isinstance(bucket, Marks):
        bucket.mark(key, instead_of)
    else:
        write_and_delete(bucket, key, instead_of)


def write_and_delete(bucket: Bucket, key: str, instead_of: str | None) -> None:
    """Leave a mark by operations of the contract. A crash in between leaves both."""
    bucket.write(key, b"", ANY)
    if instead_of is not None:
        bucket.delete(instead_of)
