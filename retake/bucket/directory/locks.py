"""Kernel locks on files: the leases of a directory bucket, and the short lock around each of its writes.

A lock file is never removed. The lock belongs to the open file description, so scripts that inherit the descriptor also
hold it. It is free when the manager and all its scripts have ended, however they ended; no clock is involved. The
fencing token is in the same file and is raised under the lock.

A script may hold a lease after the process that took it is gone, so `holding` looks for all processes that hold it.
Linux shows which descriptors hold a lock; on other systems no process is found.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from retake.attempts import attempts
from retake.bucket import Handover, Holder, Lease, check_key
from retake.bucket.directory.disk import LEASES, PRIVATE, Tree, TreeObserver, set_mode, storage_errors
from retake.clock import Clock, parse_stamp, stamp
from retake.errors import LeaseHeld, LeaseLost, StorageError

if TYPE_CHECKING:
    from retake.bucket.scanning import Remnant


class HolderProcess(NamedTuple):
    """A living process that holds a lock."""

    pid: int
    command: str  # its command line, cut to 120 characters


def holding(path: str) -> list[HolderProcess]:
    """Return the processes that hold the exclusive lock on `path`, sorted by id.

    Processes of other users are found only if this process may inspect them.
    """
    try:
        wanted = os.stat(path)
        pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    except OSError:
        return []
    return [HolderProcess(pid, _command(pid)) for pid in pids if any(_locks(pid, file, wanted) for file in _files(pid))]


def _files(pid: int) -> Iterator[str]:
    with suppress(OSError):  # it has ended, or belongs to another user
        yield from os.listdir(f"/proc/{pid}/fd")


def _locks(pid: int, file: str, wanted: os.stat_result) -> bool:
    """Return whether the descriptor is open on that file and carries its lock; a mere reader does not hold it."""
    try:
        if not os.path.samestat(os.stat(f"/proc/{pid}/fd/{file}"), wanted):
            return False
        with open(f"/proc/{pid}/fdinfo/{file}", encoding="ascii", errors="replace") as info:
            return any(line.startswith("lock:") and "FLOCK" in line and "WRITE" in line for line in info)
    except OSError:
        return False


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(2000).decode("utf-8", "replace").split("\0")
    except OSError:
        return "?"
    line = " ".join(" ".join(words).split())
    return line if len(line) <= 120 else f"{line[:119]}…"


_RECORD_BYTES = 256  # always the same, so that one pwrite replaces the whole record
_TOKEN_DIGITS = 20
_MAX_NAME_BYTES = 250  # of a file name, without ".lock"
_PATIENCE_S = 60.0  # a write holds its lock for milliseconds: after a minute, its process is frozen
_PAUSE_S = 0.002


class DirectoryLease:
    """A `Lease` held by the lock on an open file."""

    def __init__(self, path: str, file: int, token: int) -> None:
        self.token = token
        self._path = path
        self._file: int | None = file

    def check(self) -> None:
        if self._file is None:
            raise LeaseLost(f"the lease {self._path} was released; nothing more may be written or paid for under it")
        if not _is_named(self._file, self._path):
            raise LeaseLost(f"{self._path} was removed or replaced while it was locked: leave the folder .retake alone")
        if _read_token(self._file) != self.token:
            raise LeaseLost(f"{self._path} holds another token than {self.token}: somebody else is at work")

    def left(self) -> float | None:
        """Return None: the kernel keeps the lock for as long as this process lives."""
        return None

    def handover(self) -> Handover:
        self.check()
        assert self._file is not None
        return Handover(f"{self._file} {self.token}", (self._file,))

    def release(self) -> None:
        """Close our descriptor. LOCK_UN would take the lock away from a script that is still running."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def lock_path(folder: str, name: str) -> str:
    """Return the path of the lock file of the lease `name`. Raises ValueError if the name is not a key."""
    plain = check_key(name).replace("%", "%25").replace("/", "%2F")
    if len(plain.encode()) > _MAX_NAME_BYTES:
        from hashlib import sha256

        plain = f"%~{sha256(plain.encode()).hexdigest()}"  # no other name has a "%" before a "~"
    return os.path.join(folder, f"{plain}.lock")


def take(path: str, name: str, owner: str, clock: Clock, mode: int = PRIVATE) -> DirectoryLease:
    """Take the lease: lock `path` and raise the token in it. Raises LeaseHeld, StorageError."""
    with storage_errors(f"take the lease {name!r}"):
        file = try_lock(path, mode)
        if file is None:
            raise LeaseHeld(_describe_record(path, name))
        try:
            return DirectoryLease(path, file, _raise_token(file, owner, clock))
        except BaseException:
            os.close(file)
            raise


def current_holder(path: str) -> Holder | None:
    """Return the holder of the lock on `path`, or None. Raises OSError.

    Only the kernel knows, and the only way to ask it is to try: this takes a shared lock for an instant, and a process
    that tries to take the lease in that instant finds it held.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        since, owner = _last_holder(path)
        try:
            return Holder(owner, parse_stamp(since), None)
        except ValueError:
            return Holder(owner, None, None)
    finally:
        os.close(file)
    return None


def describe_holders(path: str, name: str) -> str:
    """Return a sentence that names the living processes that hold `path` and says what to do about them."""
    found, (since, owner) = holding(path), _last_holder(path)
    taken = f"the lease {name!r} was taken by {owner} at {since}"
    if not found:
        return f"{taken}, and no process that this user can see on this machine holds it: end it where it runs ({path})"
    shown = "; ".join(f"pid {pid} ({command})" for pid, command in found)
    here, _, pid = owner.rpartition(":")
    if here == os.uname().nodename and pid not in [str(process.pid) for process in found]:
        return (
            f"{taken}, which is gone; what it started still holds it: {shown}. It is free when that has ended: end it"
        )
    return f"{taken} and is held by {shown}. It is free when that has ended: wait for it, or end it"


def join(path: str, name: str, handed: str) -> DirectoryLease:
    """Act under the lease whose descriptor this process inherited. Raises LeaseLost.

    That descriptor stays open, so the lock is held for as long as this process lives, but the processes that this one
    starts do not inherit it.
    """
    try:
        inherited, token = (int(word) for word in handed.split())
        file = os.dup(inherited)  # shares the lock; a descriptor of our own, so that releasing closes nobody else's
    except (ValueError, OverflowError, OSError) as error:
        raise LeaseLost(f"the lease {name!r} was not handed over: {handed!r} ({error})") from error
    lease = DirectoryLease(path, file, token)
    try:
        _check_handed(lease, file, name)
    except BaseException:
        lease.release()
        raise
    os.set_inheritable(inherited, False)
    return lease


def _check_handed(lease: DirectoryLease, file: int, name: str) -> None:
    lease.check()  # it must be that very file, with that very token
    try:
        # This does nothing if the lock is held through this open file description, and fails if it is held through
        # another. If nobody held it, we take it, and the unchanged token shows that nobody had it in between.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise LeaseLost(f"the lease {name!r} is now held by somebody else ({error})") from error
    lease.check()


def try_lock(path: str, mode: int = PRIVATE) -> int | None:
    """Lock the file `path`, which is created if need be. Return its descriptor, or None if it is locked already.

    Raises OSError, also for a link: it could create a file outside the bucket, and `path` would never name that file.
    """
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode)
        try:
            set_mode(file, mode)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(file, path):
                return file
        except BlockingIOError:
            os.close(file)
            return None
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # the file was removed before we had the lock, and nobody can see a lock on a removed file


def wait_for_lock(path: str, clock: Clock, mode: int = PRIVATE) -> int:
    """Lock the file `path`, waiting for it, and return its descriptor. Raises StorageError after a minute, OSError."""
    for _ in attempts(repeat(_PAUSE_S, int(_PATIENCE_S / _PAUSE_S)), clock.sleep):
        if (file := try_lock(path, mode)) is not None:
            return file
    raise StorageError(f"{path} has been locked for {_PATIENCE_S:.0f} s: end the process that hangs (fuser {path})")


def unlock(file: int) -> None:
    """Release the lock, then close the descriptor: a child forked meanwhile has a copy of the descriptor."""
    try:
        fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        os.close(file)


def _is_named(file: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path, follow_symlinks=False))
    except OSError:
        return False


def _raise_token(file: int, owner: str, clock: Clock) -> int:
    """Write the next token, with the owner and the time for people to read, and make it durable before it is used.

    A token is the milliseconds since the epoch, or one more than the last token if that is higher. So tokens rise even
    if the file is emptied, damaged or removed by hand.
    """
    now = clock.now()
    token = max((_read_token(file) or 0) + 1, int(now.timestamp() * 1000))
    record = f"{token:0{_TOKEN_DIGITS}d} {stamp(now)} {' '.join(owner.split())}".encode("utf-8", "replace")
    fresh = os.fstat(file).st_size == 0
    os.pwrite(file, record[: _RECORD_BYTES - 1].ljust(_RECORD_BYTES - 1) + b"\n", 0)
    if not fresh:  # a new file's name is not synced: if a power cut loses the file, the clock suffices
        os.fsync(file)
    return token


def _read_token(file: int) -> int | None:
    """Return the token in the file, or None if the file is empty or damaged."""
    digits = os.pread(file, _TOKEN_DIGITS, 0)
    token = int(digits) if len(digits) == _TOKEN_DIGITS and digits.isdigit() else 0
    return token if 0 < token < 2**62 else None


def _describe_record(path: str, name: str) -> str:
    since, owner = _last_holder(path)
    who = f"{owner} since {since}" if since else owner
    return f"the lease {name!r} is held by {who}; it is free when that process and its scripts end ({path})"


def _last_holder(path: str) -> tuple[str, str]:
    """Return when the lease was taken and who took it, as recorded in the file."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as file:
        words = file.read(_RECORD_BYTES)[_TOKEN_DIGITS + 1 :].decode("utf-8", "replace").strip()
    since, _, owner = words.partition(" ")
    return since, owner or "somebody"


class DirectoryLeases:
    """`Leases` (see retake.bucket.contract) by kernel locks on files below `.retake/leases/`."""

    def __init__(self, url: str, tree: Tree, clock: Clock, file_mode: int) -> None:
        self.url = url
        self._tree, self._clock, self._file_mode = tree, clock, file_mode

    def lease(self, name: str, owner: str) -> Lease:
        path = self._lock_path(name)
        with storage_errors(f"take the lease {name!r} of {self.url}"):
            self._tree.refuse_linked_folders(name)
            self._tree.make_folders(LEASES)
        lease = take(path, name, owner, self._clock, self._file_mode)
        if self._tree.observer:
            self._tree.observer.leased(path)
        return lease

    def observe(self, observer: TreeObserver) -> None:
        """Notify `observer` from now on of what is looked at in the bucket and what is changed."""
        self._tree.observer = observer

    def holder(self, name: str) -> Holder | None:
        with storage_errors(f"look at the lease {name!r} of {self.url}"):
            return current_holder(self._lock_path(name))

    def break_lease(self, name: str, owner: str) -> int:
        path = self._lock_path(name)
        try:
            lease = self.lease(name, owner)
        except LeaseHeld:
            raise LeaseHeld(describe_holders(path, name)) from None
        lease.release()
        return lease.token

    def join(self, name: str, handed: str) -> Lease:
        return join(self._lock_path(name), name, handed)

    def alone(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def remains(self) -> "Iterator[Remnant]":
        """See `Remains.remains`: drafts. A kernel lock ends with its holder and leaves nothing."""
        from retake.bucket.directory.remains import drafts_left

        with storage_errors(f"look for drafts in {self.url}"):
            yield from drafts_left(self._tree, self._clock.now().timestamp())

    def clear(self, remnant: "Remnant") -> None:
        """See `Remains.clear`."""
        from retake.bucket.directory.remains import clear_draft

        with storage_errors(f"remove {remnant.name} of {self.url}"):
            clear_draft(self._tree, remnant, self._clock.now().timestamp())

    def _lock_path(self, name: str) -> str:
        return lock_path(os.path.join(self._tree.own, "leases"), name)
