"""A bucket in a directory: the embedded default.

An object is a file of the same name. What is not a regular file, or has a name that is no key, is not part of the
bucket. Symbolic links are refused: nothing is read, listed or written through one, unless `follow_links` says that
folders may be links (to another disk). Other programs' files are listed whatever they are called, dot files too, for a
key may begin with a dot.

Below `<root>/.retake` lie our own things: `tmp/` (files on their way in), `writes.lock`, `leases/`. A folder that is a
link has a `.retake/tmp/` of its own, because a file cannot be renamed from one disk to another. No link is followed
below `.retake`.

Files and folders are the owner's alone, for state documents hold signed links; `umask` says who else may see them.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime

from retake.bucket import (
    ABSENT,
    ANY,
    Bucket,
    Conflict,
    Entry,
    Expect,
    Holder,
    Lease,
    NotFound,
    Room,
    check_key,
    check_prefix,
)
from retake.bucket.directory.disk import (
    NOT_THERE,
    Draft,
    discard,
    in_words,
    keep_access,
    look,
    make_folders,
    remove_empty,
    require_place,
    reserve,
    sweep,
    sync_folder,
    version_of,
    write_draft,
)
from retake.bucket.directory.flock import holder, in_whose_hands, join, lock_path, take, unlock, wait_for_lock
from retake.bucket.directory.reservation import ReservedFile
from retake.clock import Clock, SystemClock
from retake.errors import LeaseHeld

# A link is not followed, and opening a pipe must not wait for its writer.
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class DirectoryBucket:
    """The bucket in the folder `path`, which is made by the first write if the folder above it is there.

    Any number of processes and threads may use it at once. Among Retake's own, every change happens under one short
    lock, so comparing and publishing are one step. Programs that take no lock are heeded by ABSENT and by `replace`;
    a write that expects a version does not see what they put there between comparing and publishing.

    A key cannot be a folder of another key as well («a» and «a/b»): StorageError. Empty folders
    stay until a key needs their name.
    """

    def __init__(
        self, path: str, *, clock: Clock | None = None, umask: int = 0o077, follow_links: bool = False
    ) -> None:
        self.url = f"file:{path}"
        self._root = os.path.abspath(path)  # a later chdir must not move the bucket
        self._own = os.path.join(self._root, ".retake")
        self._clock = clock or SystemClock()
        self._file_mode, self._folder_mode = 0o666 & ~umask, 0o777 & ~umask
        self._follow_links = follow_links
        self._swept: set[str] = set()

    def read(self, key: str) -> tuple[bytes, str]:
        path = self._path(key)
        with in_words(f"read {key} of {self.url}"):
            try:
                self._refuse_links(key)
                file = os.open(path, _TO_READ)
            except OSError as error:
                if error.errno not in NOT_THERE or error.errno == errno.ELOOP:
                    raise
                require_place(self._root)
                raise NotFound(key) from None
            try:
                found = os.fstat(file)  # before reading: a version that is too old only makes a needless conflict
                if not stat.S_ISREG(found.st_mode):
                    raise NotFound(key)
                with open(file, "rb", buffering=0, closefd=False) as whole:
                    return whole.readall(), version_of(found)
            finally:
                os.close(file)

    def write(self, key: str, data: bytes, expect: str | Expect) -> str:
        self._path(key)
        with in_words(f"write {key} to {self.url}"), self._draft(key, data) as draft:
            return self._named(draft, key, expect)

    def set_aside(self, key: str, size: int) -> Room:
        self._path(key)
        with in_words(f"set {size} bytes aside for {key} of {self.url}"):
            self._make_room(key)
            path = reserve(self._drafts(key), size, self._file_mode)
        return ReservedFile(path, lambda draft, expect: self._named(draft, key, expect))

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        """See `Bucket.replace`. On Linux the two names are exchanged in one step, so that nothing is lost.

        Elsewhere, and on file systems that cannot, what a program without our locks puts there in the instant between
        our last look and our rename is lost (retake.bucket.directory.rename_exchange).
        """
        path, beside = self._path(key), self._path(aside)
        if path == beside:
            raise ValueError(f"the same key twice: {key!r}")
        with in_words(f"replace {key} of {self.url}"), self._draft(key, data) as draft:
            self._make_room(aside)
            keep_access(draft.path, path)
            with self._alone():
                self._compare(aside, ABSENT)
                self._compare(key, expect)
                done = self._exchange(draft, path, beside, expect)
            sync_folder(os.path.dirname(path))
            if not done:
                sync_folder(os.path.dirname(beside))
                raise Conflict(f"{key} of {self.url} was written by another program: it is as that left it")
            return draft.version

    def delete(self, key: str) -> None:
        path = self._path(key)
        with in_words(f"delete {key} of {self.url}"):
            if not self._is_file(key):
                require_place(self._root)
                return
            self._make_room(".retake/")  # somebody may have cleared it away
            with self._alone():
                try:
                    os.unlink(path)
                except FileNotFoundError:
                    return
            sync_folder(os.path.dirname(path))

    def copy(self, source: str, target: str) -> None:
        self.write(check_key(target), self.read(source)[0], ANY)

    def part(self, prefix: str) -> Bucket:
        from retake.bucket.prefixed import PrefixedBucket

        return PrefixedBucket(self, prefix)

    def lease(self, name: str, owner: str) -> Lease:
        folder = os.path.join(self._own, "leases")
        path = lock_path(folder, name)
        with in_words(f"take the lease {name!r} of {self.url}"):
            self._refuse_linked_folders(name)
            self._make_room(".retake/leases/")
        return take(path, name, owner, self._clock, self._file_mode)

    def holder(self, name: str) -> Holder | None:
        with in_words(f"look at the lease {name!r} of {self.url}"):
            return holder(lock_path(os.path.join(self._own, "leases"), name))

    def break_lease(self, name: str, owner: str) -> int:
        path = lock_path(os.path.join(self._own, "leases"), name)
        try:
            lease = self.lease(name, owner)
        except LeaseHeld:
            raise LeaseHeld(in_whose_hands(path, name)) from None
        lease.release()
        return lease.token

    def join(self, name: str, handed: str) -> Lease:
        return join(lock_path(os.path.join(self._own, "leases"), name), name, handed)

    def alone(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def now(self) -> datetime | None:
        return None

    def _path(self, key: str) -> str:
        return os.path.join(self._root, check_key(key))

    def _refuse_links(self, key: str) -> None:
        """Raise OSError (ELOOP) if a folder on the way to `key` is a symbolic link that is not followed."""
        if self._follow_links and not key.startswith(".retake/"):
            return
        for path in self._folders_above(key):
            if os.path.islink(path):
                raise OSError(errno.ELOOP, "a symbolic link", path)

    def _folders_above(self, key: str) -> Iterator[str]:
        """The paths of the folders on the way to `key`, the last one first."""
        folder = key.rpartition("/")[0]
        while folder:
            yield os.path.join(self._root, folder)
            folder = folder.rpartition("/")[0]

    def _refuse_linked_folders(self, name: str) -> None:
        """Raise OSError (ELOOP) if what the lease `name` covers has a folder that is a link: it must come to light
        before anything is paid for, not when its result is to be saved there."""
        self._refuse_links(name)
        covered = os.path.dirname(os.path.join(self._root, name))
        if self._follow_links or not os.path.isdir(covered):
            return
        with os.scandir(covered) as found:
            for item in found:
                if item.is_symlink() and item.is_dir():
                    raise OSError(errno.ELOOP, "a symbolic link", item.path)

    def _is_file(self, key: str) -> bool:
        try:
            self._refuse_links(key)
            return look(self._path(key)) is not None
        except OSError as error:
            if error.errno in NOT_THERE or isinstance(error, IsADirectoryError):
                return False
            raise

    def _make_room(self, key: str) -> None:
        self._refuse_links(key)
        make_folders(self._root, os.path.dirname(os.path.join(self._root, key)), self._folder_mode)

    def _drafts(self, key: str) -> str:
        """The folder, made if need be, of the files on their way to `key`: on the same disk."""
        linked = (path for path in self._folders_above(key) if os.path.islink(path)) if self._follow_links else ()
        own = os.path.join(next(iter(linked), self._root), ".retake")
        if os.path.islink(own) or os.path.islink(drafts := os.path.join(own, "tmp")):
            raise OSError(errno.ELOOP, "a symbolic link", own)
        make_folders(self._root, drafts, self._folder_mode)
        if drafts not in self._swept:
            sweep(drafts, self._clock.now().timestamp())
            self._swept.add(drafts)
        return drafts

    @contextmanager
    def _draft(self, key: str, data: bytes) -> Iterator[Draft]:
        """`data` on the disk, in the file system of the bucket; gone afterwards, but for the names it was given."""
        self._make_room(key)
        self._make_room(".retake/")  # for the lock
        draft = write_draft(self._drafts(key), data, self._file_mode)
        try:
            yield draft
        finally:
            discard(draft.path)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other change by Retake, of any process or thread, happens meanwhile."""
        lock = wait_for_lock(os.path.join(self._own, "writes.lock"), self._clock, self._file_mode)
        try:
            yield
        finally:
            unlock(lock)

    def _compare(self, key: str, expect: str | Expect) -> None:
        path = self._path(key)
        try:
            found = look(path)
        except IsADirectoryError:
            remove_empty(path)
            found = None
        version = version_of(found) if found else ABSENT
        if expect not in (ANY, version):
            what = "is there already" if expect is ABSENT else "is not what was read"
            raise Conflict(f"{key} of {self.url} {what}: somebody else wrote it; nothing was changed")

    def _named(self, draft: Draft, key: str, expect: str | Expect) -> str:
        """Give the draft the name `key`, if what is there is what is expected; its version."""
        path = self._path(key)
        with self._alone():
            self._compare(key, expect)
            self._publish(draft, path, expect)
        sync_folder(os.path.dirname(path))  # the name is on the disk too, now
        return draft.version

    def _publish(self, draft: Draft, path: str, expect: str | Expect) -> None:
        if expect is not ABSENT:
            os.rename(draft.path, path)  # one step: readers see the old file or the new one
            return
        try:
            os.link(draft.path, path)  # unlike a rename it fails if a foreign program has just put something there
        except FileExistsError:
            raise Conflict(f"{path} has just been made by another program; nothing was changed") from None

    def _exchange(self, draft: Draft, path: str, beside: str, expect: str | Expect) -> bool:
        if isinstance(expect, Expect):
            self._publish(draft, path, expect)
            return True
        from retake.bucket.directory.rename_exchange import displace

        return displace(draft.path, path, beside, expect)

    def list(self, prefix: str) -> list[Entry]:
        folder = check_prefix(prefix).rpartition("/")[0]
        with in_words(f"list {prefix}* of {self.url}"):
            require_place(self._root)
            self._refuse_links(prefix)
            return sorted(_walk(self._root, folder, prefix, self._follow_links))


def _walk(root: str, folder: str, prefix: str, follow_links: bool) -> Iterator[Entry]:
    """The files below `root`/`folder` whose keys begin with `prefix`. A loop of links ends at the longest key."""
    try:
        with os.scandir(os.path.join(root, folder)) as found:
            items = [*found]
    except OSError as error:
        if error.errno in NOT_THERE:  # removed since we saw its name
            return
        raise
    for item in items:
        key = f"{folder}/{item.name}" if folder else item.name
        if item.is_dir(follow_symlinks=follow_links):
            if f"{key}/".startswith(prefix) and _is_key(key):
                yield from _walk(root, key, prefix, follow_links)
        elif key.startswith(prefix) and _is_key(key):
            yield from _entry(item, key)


def _entry(item: os.DirEntry[str], key: str) -> Iterator[Entry]:
    try:
        found = item.stat(follow_symlinks=False)
    except FileNotFoundError:  # removed since we saw its name
        return
    if stat.S_ISREG(found.st_mode):
        yield Entry(key, found.st_size, found.st_mtime)


def _is_key(name: str) -> bool:
    try:
        check_key(name)
    except ValueError:
        return False
    return True
