"""The files of a directory bucket: the steps of a durable write, errors with advice, and the tree of folders with its
paths, symbolic links, drafts and listings."""

import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, NamedTuple, Protocol

from retake.bucket import Entry, check_key
from retake.bucket.contract import CHUNK_SIZE, is_key
from retake.errors import StorageError

LEFTOVER_S = 24 * 3600.0  # the writer of a draft this old is gone

NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)  # nothing; a file above it; a link; a socket

_NOT_ALLOWED = (
    "give the user that runs this the right to read and write there; if it was once run as another user, such as root, "
    "in the whole bucket (sudo chown -R USER FOLDER)"
)
_A_FOLDER = "a folder has that name, and a key cannot also be a folder: rename one of the two"

_ADVICE = {
    errno.ENOSPC: "the disk is full (df), or has as many files as it can hold (df -i): make room on it",
    errno.EDQUOT: "the quota is used up: make room, or have it raised",
    errno.EFBIG: "the file is larger than this process may write: raise its limit (ulimit -f)",
    errno.EROFS: "the file system is read-only: mount it writable, or choose another STORAGE.url",
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EIO: "the disk reports an error: check it before anything else",
    errno.EXDEV: "a bucket must lie on one file system: have no mount inside it (with STORAGE.follow_links, a folder "
    "may be a link to another disk)",
    errno.EISDIR: _A_FOLDER,
    errno.ENOTEMPTY: _A_FOLDER,
    errno.ENOTDIR: "a file has the name of a folder that is needed: rename one of the two",
    errno.ELOOP: "a bucket does not follow symbolic links: put a real file or folder there (STORAGE.follow_links "
    "allows folders that are links to another disk)",
    errno.ENOLCK: "this file system cannot lock files: use a local disk",
    errno.ENOTSUP: "this file system lacks locks or hard links: use a local disk",
    errno.EMFILE: "this process has too many files open: raise its limit (ulimit -n)",
    errno.ENFILE: "this machine has too many files open: find out which program holds them",
}


LEASES = ".retake/leases/"
"""The folder of the lock files of leases."""

PRIVATE = 0o600
"""The mode of files that only their owner may read: state documents hold signed links."""


class Draft(NamedTuple):
    """A complete file on the disk that has no name in the bucket yet."""

    path: str
    version: str


@contextmanager
def storage_errors(doing: str, kind: type[StorageError] = StorageError) -> Iterator[None]:
    """Turn an OSError in the block into a StorageError that says what failed, where, and what to do about it.

    `doing` completes "cannot …"; `kind` is the type of the error.
    """
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "check that the disk is mounted and sound, then run this again")
        where = f" ({error.filename})" if error.filename else ""
        raise kind(f"cannot {doing}: {error.strerror or error}{where}; {advice}") from error


def version_of(found: os.stat_result) -> str:
    """Return the version of a file, which no other file and no other state of this file has.

    The inode number of a replaced file is reused immediately, so the time tells two writes apart. `restamp` stamps our
    files in nanoseconds; the kernel's own stamps may stay the same for 4 ms.
    """
    return f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"


def status(path: str, *, follow_links: bool = False) -> os.stat_result | None:
    """Return the status of what is at `path`, or None. Raises OSError."""
    try:
        return os.stat(path, follow_symlinks=follow_links)
    except OSError as error:
        if error.errno not in NOT_THERE:
            raise
        return None


def stat_file(path: str) -> os.stat_result | None:
    """Return the status of the file at `path`, or None. Raises OSError for a folder, a link or a device."""
    found = status(path)
    if found and not stat.S_ISREG(found.st_mode):
        kind = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.ELOOP
        raise OSError(kind, "not a file", path)
    return found


def write_draft(folder: str, pieces: Iterable[bytes], mode: int) -> Draft:
    """Create a file in `folder` that holds the concatenated `pieces`, durable when this returns. Raises OSError."""
    with _new_file(folder, mode) as (path, file):
        return Draft(path, _fill(file, pieces))


def pieces_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the content of `file` from its beginning, `CHUNK_SIZE` bytes at a time. Raises OSError."""
    file.seek(0)
    while piece := file.read(CHUNK_SIZE):
        yield piece


def reserve(folder: str, size: int, mode: int) -> str:
    """Create a file in `folder` with `size` bytes allocated: overwriting them needs no more space. Raises OSError.

    Nobody fills it after a power cut, so it need not survive one, and is not synced if its blocks are allocated.
    """
    with _new_file(folder, mode) as (path, file):
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        else:
            _write_all(file, [bytes(size)])
        if os.fstat(file).st_blocks * _BLOCK < size:  # allocated lazily: the disk may still turn out to be full
            os.fsync(file)
        return path


_BLOCK = 512
"""The unit of `st_blocks` in bytes, whatever the file system's block size is."""


def fill_draft(path: str, data: bytes) -> Draft:
    """Put `data` into the file that `reserve` made, durable when this returns. Raises OSError."""
    file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        return Draft(path, _fill(file, [data]))
    finally:
        os.close(file)


@contextmanager
def _new_file(folder: str, mode: int) -> Iterator[tuple[str, int]]:
    """Create a file and provide its path and descriptor; remove it if the block fails."""
    path = os.path.join(folder, f"{os.getpid()}-{os.urandom(8).hex()}")
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)  # O_EXCL: never somebody else's file
    try:
        try:
            set_mode(file, mode)
            yield path, file
        finally:
            os.close(file)  # network file systems report a full disk only here, so an error must not be suppressed
    except BaseException:
        discard(path)
        raise


def set_mode(file: int, mode: int) -> None:
    """Give a file of our user exactly this mode: the process's umask may have reduced it on creation."""
    found = os.fstat(file)
    if stat.S_IMODE(found.st_mode) != mode and found.st_uid == os.geteuid():
        os.fchmod(file, mode)


def _fill(file: int, pieces: Iterable[bytes]) -> str:
    """Put `pieces` into the file, make it durable and return its version."""
    _write_all(file, pieces)
    restamp(file)
    os.fsync(file)  # before it gets its name, or a power cut leaves an empty file of that name
    return version_of(os.fstat(file))


def restamp(file: int | str) -> None:
    """Set the time of a file, given as a descriptor or a path, so that it gets a new version (see version_of)."""
    now = time.time_ns()
    os.utime(file, ns=(now, now))


def _write_all(file: int, pieces: Iterable[bytes]) -> None:
    sent = 0
    for piece in pieces:
        sent += len(piece)
        rest = memoryview(piece)
        while rest:  # one call may write only a part
            rest = rest[os.write(file, rest) :]
    if os.fstat(file).st_size > sent:  # it was reserved: truncate only after everything is written
        os.ftruncate(file, sent)
    size = os.fstat(file).st_size
    if size != sent:  # some network file systems lose the end of a file without an error
        raise OSError(errno.EIO, f"{size} of {sent} bytes arrived")


def keep_access(draft: str, present: str) -> None:
    """Give `draft` the mode and owner of the file `present`, if that exists, so that its other writer keeps access."""
    found = stat_file(present)
    if found is None:
        return
    mine = os.stat(draft)
    if stat.S_IMODE(found.st_mode) != stat.S_IMODE(mine.st_mode):
        os.chmod(draft, stat.S_IMODE(found.st_mode))
    if (found.st_uid, found.st_gid) != (mine.st_uid, mine.st_gid):
        with suppress(PermissionError):  # only root may give a file away
            os.chown(draft, found.st_uid, found.st_gid)


def discard(path: str) -> None:
    """Remove a draft that is no longer needed. If that fails, `sweep` removes it after a day."""
    with suppress(OSError):
        os.unlink(path)


def sweep(folder: str, now: float) -> None:
    """Remove what crashed writers left in `folder` more than a day before `now`, in seconds since the epoch."""
    with suppress(OSError), os.scandir(folder) as found:
        for item in found:
            with suppress(OSError):  # another process is sweeping, or it is another user's file
                if now - item.stat(follow_symlinks=False).st_mtime > LEFTOVER_S:
                    os.unlink(item.path)


def sync_file(path: str) -> None:
    """Make the file at `path` durable. Raises OSError."""
    _sync(path, os.O_RDONLY | os.O_NOFOLLOW)


def sync_folder(path: str) -> None:
    """Make the names in the folder `path` durable: a rename changes the folder. Raises OSError."""
    try:
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot, and need not
            raise


def _sync(path: str, flags: int) -> None:
    file = os.open(path, flags)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def remove_empty(folder: str) -> None:
    """Remove a folder that holds nothing but empty folders: deleted keys leave them. Raises OSError otherwise."""
    for path, _, _ in os.walk(folder, topdown=False):
        os.rmdir(path)


def require_root(root: str) -> None:
    """Return if the folder `root` exists, or can be made in a folder that exists. Raises StorageError."""
    if os.path.isdir(root):
        return
    if os.path.lexists(root) and not os.path.isdir(root):  # check again: somebody may just have made it
        raise StorageError(f"{root} is not a folder: move it away, or choose another STORAGE.url")
    parent = os.path.dirname(root)
    if os.path.isfile(parent):
        raise StorageError(
            f"{parent}, where the bucket's folder should be, is not a folder: move it away, or choose another "
            "STORAGE.url"
        )
    if not os.path.isdir(parent):  # a disk that is not mounted must not look like an empty bucket
        raise StorageError(f"{parent}, where the bucket's folder should be, is not there: mount or make it")


def make_folders(root: str, folder: str, mode: int) -> list[str]:
    """Make `folder` and the missing folders above it, up to and including `root`. Return the new ones, the upper ones
    first: until its parent is synced, a power cut may lose a folder with everything in it. Raises OSError."""
    if os.path.isdir(folder):
        return []
    above = os.path.dirname(folder)
    if folder == root:
        require_root(root)
        made = []
    else:
        made = make_folders(root, above, mode)
    try:
        os.mkdir(folder, mode)
        with suppress(FileNotFoundError):  # it was empty, and somebody removed it just now
            os.chmod(folder, mode)  # the process's umask may have reduced it
    except FileExistsError:
        found = status(folder)  # somebody made it just now, and may have removed it again
        if found and not stat.S_ISDIR(found.st_mode) and not os.path.isdir(folder):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", folder) from None
    return [*made, folder]


class TreeObserver(Protocol):
    """Is notified of every path in a tree before it is looked at, and of every change by this process."""

    def looked_at(self, path: str) -> None: ...
    def changed(self) -> None: ...
    def leased(self, path: str) -> None:
        """Take note that the lease with the lock file `path` has just been taken."""
        ...


class Tree:
    """The files below `root`, an absolute path. No link is followed, unless `follow_links` allows linked folders."""

    def __init__(self, root: str, *, folder_mode: int, follow_links: bool) -> None:
        self.root = root
        self.own = os.path.join(root, ".retake")
        """The folder of Retake's own files."""
        self._folder_mode = folder_mode
        self.follow_links = follow_links
        self._swept: set[str] = set()
        self.observer: TreeObserver | None = None

    def path(self, key: str) -> str:
        """Return the path of the file `key`. Raises ValueError if it is not a key."""
        return os.path.join(self.root, check_key(key))

    def look_at(self, path: str) -> None:
        """Notify the observer that `path` is about to be looked at."""
        if self.observer:
            self.observer.looked_at(path)

    def refuse_links(self, key: str) -> None:
        """Raise OSError (ELOOP) if a folder above `key` is a symbolic link that must not be followed."""
        if self.observer:
            for path in (self.root, *self._folders_above(key)):
                self.observer.looked_at(path)
        if self.follow_links and not key.startswith(".retake/"):
            return
        for path in self._folders_above(key):
            if os.path.islink(path):
                raise OSError(errno.ELOOP, "a symbolic link", path)

    def refuse_linked_folders(self, name: str) -> None:
        """Raise OSError (ELOOP) if a folder that the lease `name` covers is a link.

        This must be noticed before anything is paid for, not when the result is to be saved there.
        """
        self.refuse_links(name)
        covered = os.path.dirname(os.path.join(self.root, name))
        self.look_at(covered)
        if self.follow_links or not os.path.isdir(covered):
            return
        with os.scandir(covered) as found:
            for item in found:
                if item.is_symlink() and item.is_dir():
                    raise OSError(errno.ELOOP, "a symbolic link", item.path)

    def is_file(self, key: str) -> bool:
        """Return whether the file `key` exists. Raises OSError."""
        try:
            self.refuse_links(key)
            self.look_at(self.path(key))
            return stat_file(self.path(key)) is not None
        except OSError as error:
            if error.errno in NOT_THERE or isinstance(error, IsADirectoryError):
                return False
            raise

    def entry(self, key: str) -> Entry | None:
        """Return the entry of the file `key` as `walk` would, or None, without reading a folder. Raises OSError."""
        self.refuse_links(key)
        self.look_at(self.path(key))
        found = status(self.path(key))
        return _listed(key, found) if found else None

    def make_folders(self, *keys: str, of_mark: bool = False) -> None:
        """Make the folders above `keys`, which are about to be written, durably. With `of_mark`, a single new folder is
        not synced. Raises OSError."""
        made = [it for key in keys for it in self._make_missing(key)]
        if not (of_mark and len(made) == 1):
            self._sync(made)

    def _make_missing(self, key: str) -> list[str]:
        if self.observer and key != LEASES:
            self.observer.changed()
        self.refuse_links(key)
        return make_folders(self.root, os.path.dirname(os.path.join(self.root, key)), self._folder_mode)

    def _sync(self, made: Iterable[str]) -> None:
        """Make new folders durable, syncing each parent once. Those below `.retake` need not be, as they are remade."""
        for above in dict.fromkeys(os.path.dirname(it) for it in made if not f"{it}/".startswith(f"{self.own}/")):
            sync_folder(above)

    def drafts(self, key: str, now: float) -> str:
        """Return the folder for drafts of `key`, on the same disk. It is made and swept if need be.

        `now` is in seconds since the epoch. Raises OSError.
        """
        linked = (path for path in self._folders_above(key) if os.path.islink(path)) if self.follow_links else ()
        own = os.path.join(next(iter(linked), self.root), ".retake")
        if os.path.islink(own) or os.path.islink(drafts := os.path.join(own, "tmp")):
            raise OSError(errno.ELOOP, "a symbolic link", own)
        make_folders(self.root, drafts, self._folder_mode)
        if drafts not in self._swept:
            sweep(drafts, now)
            self._swept.add(drafts)
        return drafts

    def walk(self, prefix: str, folder: str, after: str = "") -> Iterator[Entry]:
        """Yield the files below `folder` whose keys begin with `prefix` and sort after `after`. A loop of links ends at
        the maximum length of a key."""
        self.look_at(os.path.join(self.root, folder))
        for item in self._items(folder):
            key = f"{folder}/{item.name}" if folder else item.name
            if f"{key}0" <= after or not is_key(key):  # "0" comes after "/"
                continue
            if _is_folder(item, follow_links=self.follow_links):
                if f"{key}/".startswith(prefix):
                    yield from self.walk(prefix, key, after)
            elif key.startswith(prefix) and key > after and (entry := _entry(item, key)):
                yield entry

    def disks(self, folder: str = "") -> Iterator[str]:
        """Yield the folders that have drafts of their own, relative to the root and ending in "/": the root itself
        (""), and linked folders."""
        if not folder:
            yield ""
        if not self.follow_links:
            return
        for item in self._items(folder):
            if is_key(key := f"{folder}{item.name}") and _is_folder(item, follow_links=True):
                if item.is_symlink():
                    yield f"{key}/"
                yield from self.disks(f"{key}/")

    def _items(self, folder: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(os.path.join(self.root, folder)) as found:
                yield from found
        except OSError as error:
            if error.errno not in NOT_THERE:  # else it was removed after we saw its name
                raise

    def _folders_above(self, key: str) -> Iterator[str]:
        """Yield the paths of the folders above `key`, the nearest first."""
        root = os.path.join(self.root, "")
        end = key.rfind("/")
        while end > 0:
            yield root + key[:end]
            end = key.rfind("/", 0, end)


def _is_folder(item: os.DirEntry[str], *, follow_links: bool) -> bool:
    """Return whether `item` is a folder; a dangling link is not. Raises OSError."""
    try:
        return item.is_dir(follow_symlinks=follow_links)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        return False


def _entry(item: os.DirEntry[str], key: str) -> Entry | None:
    try:
        return _listed(key, item.stat(follow_symlinks=False))
    except FileNotFoundError:  # removed after we saw its name
        return None


def _listed(key: str, found: os.stat_result) -> Entry | None:
    """Return the entry of a regular file; links, pipes and folders have none."""
    return Entry(key, found.st_size, found.st_mtime) if stat.S_ISREG(found.st_mode) else None
