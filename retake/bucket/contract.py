"""The contract of a bucket. Every backend and every wrapper keeps it; tests/bucket/contract.py checks it.

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
from collections.abc import Iterable, Sequence
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
    """No object has that key, which is `args[0]`. Callers expect this: it is not a RetakeError."""


class Conflict(StorageError):
    """The object is not what the writer expected. Nothing was written."""


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
        """Return the object and its version. Raises NotFound.

        A reader sees each write whole or not at all. A version is an opaque string; no key has the same one twice.
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
        """Return those of the objects `stem` + ending that exist, sorted by key: `list` for names that are known.

            bucket.find("archive/20260101-0930.", ("json", "png", "mp4"))
            bucket.find("spend/20260101-0930.json", [""])

        The cost does not depend on what else the bucket holds. A directory looks up each name and reads no folder,
        which `list` does; B2 and S3 list what begins with `stem`, one request for each 1,000 objects, so put all that
        the names have in common into it.
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
        """Return the time by the store's clock, to the second; None if it has none of its own or does not tell."""
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
        processes, if living processes hold a lock of the kernel: only their end frees it.
        """
        ...

    def join(self, name: str, handed: str) -> "Lease":
        """Act under the lease that a parent process handed over: `handed` is its `Handover.text`. Raises LeaseLost."""
        ...

    def alone(self, name: str) -> AbstractContextManager[None]:
        """Make one `read` and the `write` based on it exclusive among all who do the same inside `alone(name)`.

        Backends that compare and write in one step need nothing for this. An S3 store that ignores conditional headers
        takes a short lease and waits for it: keep the block to one read and one write. Raises StorageError, also at the
        end of a block that outlasted the lease: what it wrote may have been overwritten.
        """
        ...


class Bucket(Objects, Leases, Protocol):
    """Objects and leases in one place."""

    def part(self, prefix: str) -> "Bucket":
        """Return what lies below `prefix`, which ends in "/", as a bucket with keys and leases of its own."""
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
    """The right to change what a name stands for, held by one process and the scripts that it runs at a time."""

    token: int
    """The fencing token. It rises with every holder and is never reused."""

    def check(self) -> None:
        """Return if the lease is still held; raise LeaseLost if not. Call this before each write and payment."""
        ...

    def left(self) -> float | None:
        """Return for how many seconds the lease is certainly still held, counted from the last `check` and without a
        renewal. None if it does not expire."""
        ...

    def handover(self) -> "Handover":
        """Return what a subprocess needs to join this lease with `Bucket.join`."""
        ...

    def release(self) -> None:
        """Give the lease back. Releasing one that is lost or released is not an error."""
        ...


@runtime_checkable
class RenewedLease(Protocol):
    """What a lease offers besides the contract that a thread of this process renews."""

    def without_thread(self) -> AbstractContextManager[None]:
        """Renew nothing meanwhile, and have no thread if it can end at once, so that the process can be forked. Meant
        for milliseconds."""
        ...


def without_thread(lease: Lease) -> AbstractContextManager[None]:
    """Have no thread renew the lease meanwhile (see `RenewedLease`)."""
    return lease.without_thread() if isinstance(lease, RenewedLease) else nullcontext()


class Handover(NamedTuple):
    """What a subprocess needs to act under its parent's lease."""

    text: str  # to be passed in the environment
    fds: tuple[int, ...]  # file descriptors that the subprocess must inherit


class Holder(NamedTuple):
    """Who holds a lease, as far as the bucket tells."""

    owner: str  # as given to `lease`: "host:pid"
    since: datetime | None  # when it took the lease, or last renewed it if only that is recorded
    until: datetime | None  # when it expires unless renewed; None: when the process and its scripts have ended


class LeaseTerms(NamedTuple):
    """How long leases on B2 and S3 last. A directory's leases do not expire and need no terms."""

    ttl_s: float = 120.0  # without a renewal
    skew_s: float = 30.0  # by how much two clocks of the store may differ, including the rounding of its time stamps
    margin_s: float = 5.0  # how long before the end its holder stops


_PLAIN = re.compile(r"[\w+~=-][\w.+~=-]{0,249}(?:/[\w+~=-][\w.+~=-]{0,249})*", re.ASCII)
"""Keys that need no further check, as nearly all are: a listing of 100,000 checks each."""


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
    """What a look at several objects found (see `Looks`). Names that it was not made for are asked of the bucket."""

    def read(self, key: str) -> tuple[bytes, str]:
        """See `Bucket.read`."""
        ...

    def list(self, prefix: str) -> list[Entry]:
        """See `Bucket.list`."""
        ...


@runtime_checkable
class Looks(Protocol):
    """What a bucket offers besides the contract where each request takes its time and has its price: a look at all
    that is needed at once, in few requests and side by side:

    view = look(bucket, ["config/a.json", "config/b.json"], ["666/"])
    lease, view = lease_and_look(bucket, "story", "host:4711", ["config/a.json"], ["666/"])
    """

    def look(self, keys: Sequence[str], prefixes: Sequence[str]) -> Sight:
        """Look at the objects `keys` and at all below `prefixes`."""
        ...

    def lease_and_look(
        self, name: str, owner: str, keys: Sequence[str], prefixes: Sequence[str]
    ) -> tuple["Lease", Sight]:
        """Take a lease (see `Leases.lease`), and look at what it guards: no earlier holder has changed that since."""
        ...

    def prepare_lease(self, name: str) -> None:
        """Ask already what `lease_and_look` asks first. Raises StorageError."""
        ...


def offers_looks(bucket: Bucket) -> TypeGuard[Looks]:
    """Return `isinstance(bucket, Looks)`, remembered by class: isinstance goes through the protocol each time, and from
    Python 3.12 on it loads inspect."""
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
class RangedReads(Protocol):
    """What a bucket offers besides the contract, for files that are too large to be read whole:

    part = read_range(bucket, key, 0, 2**20 - 1)
    """

    def read_range(self, key: str, first: int, last: int) -> bytes:
        """Return the bytes from `first` to `last`; fewer, or none, where the object ends before. Raises NotFound."""
        ...


def read_range(bucket: Bucket, key: str, first: int, last: int) -> bytes:
    """Return a part of an object (see `RangedReads`). A bucket that offers no parts is read whole. Raises NotFound."""
    if isinstance(bucket, RangedReads):
        return bucket.read_range(key, first, last)
    return bucket.read(key)[0][first : last + 1]


PIECE = 2**20
"""How many bytes of a large file are in memory at a time where it is copied, compared or sent a piece at a time."""


@runtime_checkable
class FileWrites(Protocol):
    """What a bucket offers besides the contract, for files that are too large to be held in memory:

    with open(path, "rb") as file:
        write_file(bucket, key, file, ANY)
    """

    def write_file(self, key: str, file: BinaryIO, expect: str | Expect) -> str:
        """Write like `Bucket.write` all that `file` holds, with about `PIECE` bytes of it in memory at a time.

        `file` can seek. It is read from its beginning, perhaps more than once, and must not change meanwhile.
        """
        ...


def write_file(bucket: Bucket, key: str, file: BinaryIO, expect: str | Expect) -> str:
    """Write what `file` holds (see `FileWrites`). For a bucket that takes no files it is read whole."""
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
    """What a bucket offers besides the contract, for an object that a program without Retake's locks writes too.

    One document needs it, config_public.json, which the publisher writes. Every backend offers it, and
    tests/bucket/contract.py checks it with the rest:

        shared_writes(bucket).replace(key, data, version, aside=f"{key}.displaced-0")
    """

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        """Write like `Bucket.write`, without losing anything that a program without our locks writes meanwhile.

        Such a program can write between any two of our steps. So the write is an exchange: if what it displaced is not
        what was expected, that is put back immediately, and Conflict is raised. Everything of the other program's that
        was displaced, however briefly, is then kept under the key `aside` or one that begins with it, even if it was
        put back: a program that read our `data` in between may write that back, without what was added before.

        A successful call leaves nothing under `aside`. A crash leaves what was displaced, or `data` itself, or nothing:
        merge it before you delete it. Raises Conflict if `aside` exists. Only the holder of the lease may call this.

        A power cut may bring back what was there before, as after `write_unsynced`.
        """
        ...


def shared_writes(bucket: Bucket) -> SharedWrites:
    """Return `bucket` as one that can replace shared objects. Raises TypeError if it cannot."""
    if not isinstance(bucket, SharedWrites):
        raise TypeError(f"{bucket.url}: {type(bucket).__name__} cannot replace objects that other programs write too")
    return bucket


# --- what need not outlast a power cut, so that nothing waits for the disk -------------------------------------------
#
# A crash of the program takes away none of it. After a power cut, which ends all programs, the system may have what was
# there some seconds before. It is for what is found out, or done again, by whoever comes next; each use says why that
# is so. On B2 and S3 each of these is a write like any other.


@runtime_checkable
class UnsyncedWrites(Protocol):
    """Writes of whose names the disk may be told later:

    version = write_unsynced(bucket, "config/topics.json", data, ANY)
    """

    def write_unsynced(self, key: str, data: bytes, expect: str | Expect) -> str:
        """Write like `Bucket.write`, but a power cut may bring back what was there before, whole.

        The next write of the same folder makes it durable too.
        """
        ...


def write_unsynced(bucket: Bucket, key: str, data: bytes, expect: str | Expect) -> str:
    """Write what need not outlast a power cut (see `UnsyncedWrites`), durably where the bucket offers nothing else."""
    if isinstance(bucket, UnsyncedWrites):
        return bucket.write_unsynced(key, data, expect)
    return bucket.write(key, data, expect)


@runtime_checkable
class NewFolders(Protocol):
    """Folders that are made before anything lies in them: their names wait for the disk together, not one by one."""

    def make_folders(self, prefixes: Sequence[str]) -> None:
        """Make the folders `prefixes`, each of which ends in "/", durably."""
        ...


def make_folders(bucket: Bucket, prefixes: Sequence[str]) -> None:
    """Make folders of which a new bucket is going to need all (see `NewFolders`). A bucket without folders has them."""
    if isinstance(bucket, NewFolders):
        bucket.make_folders(prefixes)


@runtime_checkable
class Marks(Protocol):
    """Empty objects whose names say what can be found out otherwise:

    mark(bucket, "runs/index/open/story.run-0123456789abcdef")
    """

    may_forget_marks: bool
    """Whether a power cut may take away the marks of the last seconds: nothing waits for the disk."""

    def mark(self, key: str, instead_of: str | None = None) -> None:
        """Have an object `key`, an empty one if it is new, and no longer one called `instead_of`."""
        ...


def mark(bucket: Bucket, key: str, instead_of: str | None = None) -> None:
    """Leave a mark (see `Marks`). In a bucket that does not offer it, it is written, and then the other deleted."""
    if isinstance(bucket, Marks):
        bucket.mark(key, instead_of)
    else:
        write_and_delete(bucket, key, instead_of)


def write_and_delete(bucket: Bucket, key: str, instead_of: str | None) -> None:
    """Leave a mark by operations of the contract. A crash in between leaves both."""
    bucket.write(key, b"", ANY)
    if instead_of is not None:
        bucket.delete(instead_of)
