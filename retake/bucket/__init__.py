"""Where state lives: one contract, a backend a file.

A bucket maps keys to whole byte strings. The promises below hold on every backend; one suite
(tests/bucket/contract.py) runs against all of them. Wrappers (counting, failing) are buckets themselves.

Keys are relative, «/»-separated, without empty, «.» or «..» parts; a part may not begin with «.retake»
(the backend's own things lie there). A bad key is a ValueError, before anything is touched.
"""

from contextlib import AbstractContextManager
from datetime import datetime
from enum import Enum
from typing import NamedTuple, Protocol

from retake.errors import SettingsError, StorageError


class Expect(Enum):
    """What a write may expect instead of a version."""

    ABSENT = "absent"  # nothing is there yet
    ANY = "any"  # whatever is there is replaced


ABSENT = Expect.ABSENT
ANY = Expect.ANY


class NotFound(Exception):
    """There is nothing under that key. A fact for the caller, not a fault: `args[0]` is the key."""


class Conflict(StorageError):
    """What is there is not what the writer expected; nothing was written."""


class Entry(NamedTuple):
    """One object in a listing."""

    key: str
    size: int  # bytes
    modified: float  # seconds since the epoch, by the store's own clock


class Handover(NamedTuple):
    """What a subprocess needs to act under its parent's lease."""

    text: str  # for the environment
    fds: tuple[int, ...]  # file descriptors that the subprocess must inherit


class LeaseTerms(NamedTuple):
    """How long a lease lasts that no kernel watches over (B2, S3). On a directory nothing of this is needed."""

    ttl_s: float = 120.0  # without a renewal
    skew_s: float = 30.0  # how far two clocks of the store may differ, rounding of its time stamps included
    margin_s: float = 5.0  # before its end its holder stops


class Holder(NamedTuple):
    """Who holds a lease, as far as the bucket tells it."""

    owner: str  # as it named itself: «host:pid»
    since: datetime | None  # when it took the lease, or last renewed it where that is what is on record
    until: datetime | None  # when it is free unless it is renewed; None: when the process and its scripts end


class Lease(Protocol):
    """The right to change what a name stands for, held by one process (and the scripts that it runs) at a time."""

    token: int
    """The fencing token: rises with every holder, never falls, is never reused."""

    def check(self) -> None:
        """Return if the lease still is ours; raise LeaseLost if it is not. Ask before each write and payment."""
        ...

    def left(self) -> float | None:
        """For how many seconds it surely stays ours, by the last `check` and without a renewal; None where it does not
        run out."""
        ...

    def handover(self) -> Handover:
        """What lets a subprocess join this lease (`Bucket.join`)."""
        ...

    def release(self) -> None:
        """Give it back. Releasing what is lost or released already is no error."""
        ...


class Room(Protocol):
    """Room for one write, set aside by `Bucket.set_aside`."""

    def write(self, data: bytes, expect: str | Expect) -> str:
        """`Bucket.write` of the key that the room is for. It does not fail for lack of room where that key is there
        already and `data` is no larger than what was set aside. To be called again only after it has failed."""
        ...

    def release(self) -> None:
        """Give back what was not used. Releasing twice is no error."""
        ...


class Bucket(Protocol):
    """Every method may raise StorageError (the store is away, full, or forbids it)."""

    url: str
    """How the settings name it, without credentials."""

    def read(self, key: str) -> tuple[bytes, str]:
        """The whole object and its version. Raises NotFound. Never half of a write."""
        ...

    def write(self, key: str, data: bytes, expect: str | Expect) -> str:
        """Make `data` the object under `key` and return its version.

        Atomic: readers see the old or the new object whole, and after a crash one of the two is there. Durable when
        the call returns. Raises Conflict, with nothing written, unless what is there is what is expected: the version
        given, nothing (ABSENT), or whatever (ANY).
        """
        ...

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        """`write` for the one document that a program without our locks writes too, losing nothing of what it wrote.

        Such a program can write between any two of our steps. So the write is an exchange: what it displaced is
        looked at, and if that is not what was expected it is put back at once and Conflict is raised. What the other
        program wrote and we displaced, for however short a time, is then found under the key `aside`, or one that
        begins with it, also if it was put back: who read our `data` meanwhile may write it back without what was
        added before. A crash leaves there what was displaced, or `data` itself, or nothing: keep what it adds before
        you delete it. `aside` must be absent before: else Conflict.
        On success nothing is left there. Only the holder of the lease may call this.
        """
        ...

    def set_aside(self, key: str, size: int) -> Room:
        """Make sure of room for one write of `size` bytes under `key`, whatever fills the disk meanwhile. A crash
        leaves nothing that a reader sees. Nothing is taken where the store has no disk of its own that could fill up
        (B2, S3)."""
        ...

    def list(self, prefix: str) -> list[Entry]:
        """Every object whose key begins with `prefix`, sorted by key. «666/» lists a folder; "" lists everything."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object, all versions of it. Nothing there is no error."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Make `target` hold what `source` holds, atomically, replacing what is there. Raises NotFound."""
        ...

    def part(self, prefix: str) -> "Bucket":
        """What lies below `prefix` (which ends in «/») as a bucket of its own, with leases of its own."""
        ...

    def lease(self, name: str, owner: str) -> Lease:
        """Take the lease called `name`, at once or not at all. Raises LeaseHeld, naming the holder.

        `owner` says who asks, for people («host:pid»). A holder that died does not block for ever: on a directory
        the kernel frees its lock at once, elsewhere the lease runs out.
        """
        ...

    def holder(self, name: str) -> Holder | None:
        """Who holds the lease called `name`; None if it is free. Takes nothing and changes nothing: what it says may
        be over when it is read."""
        ...

    def break_lease(self, name: str, owner: str) -> int:
        """End whatever lease of that name there is, for an operator who knows that its holder is gone; `owner` says who
        did it. Returns the token by which the old holder is fenced off: every later one is higher.

        Raises LeaseHeld where the kernel holds it for living processes, and names them: only their end frees it.
        """
        ...

    def join(self, name: str, handed: str) -> Lease:
        """Act under the lease that a parent process took and handed over (`Handover.text`). Raises LeaseLost."""
        ...

    def alone(self, name: str) -> AbstractContextManager[None]:
        """Make `read` and then `write` with the version read exclusive among all who do so inside `alone(name)`.

        Where such a write is one step already, nothing is taken. Elsewhere (an S3 that ignores conditions) this waits
        for a short lease: keep the block to one read and one write. Raises StorageError, also at the end of a block
        that outlasted the lease: what was written in it may have been overwritten.
        """
        ...

    def now(self) -> datetime | None:
        """Return the time by the store's own clock, to the second; None where the store has no other than this
        machine's, or does not tell."""
        ...


def check_key(key: str) -> str:
    """`key`, if it is one that every backend can hold. Raises ValueError.

    Beyond the shape of the path: at most 900 bytes of UTF-8 and 250 a part, no backslash, no control characters (the
    rules of B2, the strictest: b2sdk, `validate_b2_file_name`; a directory takes 255 bytes a part).
    """
    parts = key.split("/")
    if any(part in ("", ".", "..") or part.startswith(".retake") for part in parts):
        raise ValueError(f"not a key: {key!r}")
    plain = key.isascii() and key.isprintable()  # as nearly all are: a listing of 100,000 looks at each
    if "\\" in key or (not plain and any(it < " " or it == "\x7f" or "\ud800" <= it <= "\udfff" for it in key)):
        raise ValueError(f"not a key: {key!r}")
    if len(key.encode()) > 900 or any(len(part.encode()) > 250 for part in parts):
        raise ValueError(f"not a key: {key!r} (too long)")
    return key


def check_prefix(prefix: str) -> str:
    """`prefix`, if a key can begin with it. Raises ValueError."""
    try:
        return check_key(prefix)
    except ValueError:
        return check_key(f"{prefix}x")[:-1]


def open_bucket(
    url: str,
    *,
    lease_terms: LeaseTerms | None = None,
    dead_mans_switch: bool = False,
    umask: int = 0o077,
    follow_links: bool = False,
) -> Bucket:
    """The bucket that `url` (setting `STORAGE.url`) names. Raises SettingsError for a URL that names none.

    «file:PATH» is a directory; it is made on the first write, in a folder that must be there.
    «b2://BUCKET/PREFIX» is a place on Backblaze B2 (?realm=URL: elsewhere), with the keys in the environment.
    «s3://BUCKET/PREFIX?endpoint=URL&region=NAME» is a place in a store that speaks S3's protocol.

    With `dead_mans_switch`, the kernel ends this process when a lease that it took has run out (a directory's does not
    run out; see retake.bucket.kill_timer). `umask` is what files and folders of a directory withhold from others, and
    `follow_links` lets its folders be symbolic links.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "file" and rest:
        from retake.bucket.directory import DirectoryBucket

        return DirectoryBucket(rest, umask=umask, follow_links=follow_links)
    if scheme == "s3" and rest.startswith("//"):
        from retake.bucket.kill_timer import no_switch, set_switch
        from retake.bucket.s3 import S3Bucket

        return S3Bucket(url, lease_terms=lease_terms, switch=set_switch if dead_mans_switch else no_switch)
    if scheme == "b2" and rest.startswith("//"):
        from retake.bucket.b2.url import open_b2
        from retake.bucket.kill_timer import no_switch, set_switch

        return open_b2(url, lease_terms=lease_terms, switch=set_switch if dead_mans_switch else no_switch)
    raise SettingsError(
        f"STORAGE.url: {url!r} names no bucket; use file:PATH, b2://BUCKET/PREFIX or "
        "s3://BUCKET/PREFIX?endpoint=URL&region=NAME"
    )
