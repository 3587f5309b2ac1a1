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

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import datetime
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

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
    """Reading and writing objects. Every method may raise StorageError: the store is away, full, or refuses."""

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
        """Delete the object with all its versions. Deleting a key that does not exist is no error."""
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
        """Give the room back if it was not used. Releasing it twice is no error."""
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
        """Give the lease back. Releasing one that is lost or released is no error."""
        ...


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


def check_key(key: str) -> str:
    """Return `key` if every backend can hold it. Raises ValueError.

    Keys are relative paths with "/" between their parts. No part may be empty, "." or "..", or begin with ".retake":
    backends keep their own objects there. Backslashes, control characters and lone surrogates are not allowed. A key
    has at most 900 bytes of UTF-8, a part at most 250.

    The lengths and characters are B2's rules (`validate_b2_file_name` in b2sdk), which are the strictest: a directory
    allows 255 bytes a part.
    """
    parts = key.split("/")
    if any(part in ("", ".", "..") or part.startswith(".retake") for part in parts):
        raise ValueError(f"not a key: {key!r}")
    plain = key.isascii() and key.isprintable()  # as nearly all are: a listing of 100,000 checks each
    if "\\" in key or (not plain and any(it < " " or it == "\x7f" or "\ud800" <= it <= "\udfff" for it in key)):
        raise ValueError(f"not a key: {key!r}")
    if len(key.encode()) > 900 or any(len(part.encode()) > 250 for part in parts):
        raise ValueError(f"not a key: {key!r} (too long)")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if a key can begin with it. Raises ValueError."""
    try:
        return check_key(prefix)
    except ValueError:
        return check_key(f"{prefix}x")[:-1]


def is_key(name: str) -> bool:
    """Whether `check_key` accepts `name`."""
    try:
        check_key(name)
    except ValueError:
        return False
    return True


class UnlimitedRoom:
    """A `Room` that reserves nothing. `write` writes to the room's key in the bucket."""

    def __init__(self, write: Callable[[bytes, str | Expect], str]) -> None:
        self.write = write

    def release(self) -> None:
        """Do nothing: nothing was reserved."""


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
        """
        ...


def shared_writes(bucket: Bucket) -> SharedWrites:
    """Return `bucket` as one that can replace shared objects. Raises TypeError if it cannot."""
    if not isinstance(bucket, SharedWrites):
        raise TypeError(f"{bucket.url}: {type(bucket).__name__} cannot replace objects that other programs write too")
    return bucket
