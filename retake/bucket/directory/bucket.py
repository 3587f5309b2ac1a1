"""A bucket in a directory. A write puts a draft on the disk, takes a short lock, compares, and gives it its name.

An object is a file of the same name. Anything that is not a regular file, or whose name is not a key, is not part of
the bucket. Files of other programs are listed, too, including dot files: a key may begin with a dot. Symbolic links are
refused: nothing is read, listed or written through one, unless `follow_links` allows folders to be links to another
disk.

Below `<root>/.retake` are Retake's own files: `tmp/` (drafts), `writes.lock` and `leases/`. A linked folder has a
`.retake/tmp/` of its own, because a file cannot be renamed from one disk to another. No link is followed below
`.retake`.

Files and folders are private to their owner by default, because state documents hold signed links; see `umask`.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import BinaryIO

from retake.bucket import ABSENT, ANY, Bucket, Conflict, Entry, Expect, NotFound, Room, check_key, check_prefix
from retake.bucket.contract import Unreadable
from retake.bucket.directory.disk import (
    NOT_THERE,
    Draft,
    Tree,
    discard,
    fill_draft,
    keep_access,
    pieces_of,
    remove_empty,
    require_root,
    reserve,
    restamp,
    set_mode,
    stat_file,
    status,
    storage_errors,
    sync_folder,
    version_of,
    write_draft,
)
from retake.bucket.directory.locks import DirectoryLeases, unlock, wait_for_lock
from retake.bucket.moves import check_moves, copy_and_delete
from retake.clock import Clock, SystemClock
from retake.errors import StorageError

# Links are not followed, and opening a pipe must not wait for its writer.
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class DirectoryMarks(DirectoryLeases):
    """`Marks` (see retake.bucket.contract) in a directory: empty files that are never synced.

    A power cut may lose the marks of the last seconds; a process that leaves marks can find out what they said.
    """

    may_forget_marks = True

    def mark(self, key: str, instead_of: str | None = None) -> None:
        """See `Marks.mark`. New folders are synced, because durable files may be written to them later, except a single
        new folder for this mark."""
        path, old = self._tree.path(key), instead_of and self._tree.path(instead_of)
        with storage_errors(f"mark {key} in {self.url}"):
            self._tree.make_folders(key, of_mark=True)
            with suppress(FileNotFoundError):
                if old and _try_rename(old, path):
                    return
            _touch(path, self._file_mode)
            if old and stat_file(old):
                os.unlink(old)

    def make_folders(self, prefixes: Sequence[str]) -> None:
        """See `NewFolders.make_folders`."""
        with storage_errors(f"make the folders {', '.join(prefixes)} in {self.url}"):
            self._tree.make_folders(*map(check_prefix, prefixes))


class DirectoryWrites(DirectoryMarks):
    """Writes of single objects: drafts on the disk that get their names one at a time."""

    def __init__(self, url: str, tree: Tree, clock: Clock, file_mode: int) -> None:
        super().__init__(url, tree, clock, file_mode)
        self._writer = DirectoryWriter(tree, url, clock, file_mode)

    def write(self, key: str, data: bytes, expect: str | Expect) -> str:
        return self._write(key, [data], expect, synced=True)

    def write_unsynced(self, key: str, data: bytes, expect: str | Expect) -> str:
        """See `UnsyncedWrites.write_unsynced`. The content is durable when this returns; its name need not be."""
        return self._write(key, [data], expect, synced=False)

    def write_file(self, key: str, file: BinaryIO, expect: str | Expect) -> str:
        """See `FileWrites.write_file`."""
        return self._write(key, pieces_of(file), expect, synced=True)

    def remove_folder(self, prefix: str) -> None:
        """See `EmptyFolders.remove_folder`."""
        with storage_errors(f"remove the folder {prefix} of {self.url}"):
            self._writer.remove_folder(prefix)

    def _write(self, key: str, pieces: Iterable[bytes], expect: str | Expect, *, synced: bool) -> str:
        check_key(key)
        with storage_errors(f"write {key} to {self.url}"), self._writer.draft(key, pieces) as draft:
            return self._writer.publish(draft, key, expect, synced=synced)


class DirectoryBucket(DirectoryWrites):
    """The bucket in the folder `path`. The first write makes the folder if the one above it exists.

    Any number of processes and threads may use it. Retake's own changes happen one at a time under a short lock, so
    comparing and publishing are one step. Writes that expect ABSENT, and `replace`, notice programs that do not take
    the lock; a write that expects a version does not notice what they write between comparing and publishing.

    A key cannot also be a folder of another key ("a" and "a/b"): that raises StorageError. Empty folders stay until a
    key needs their name, or `remove_folder`.
    """

    def __init__(
        self, path: str, *, clock: Clock | None = None, umask: int = 0o077, follow_links: bool = False
    ) -> None:
        clock, file_mode = clock or SystemClock(), 0o666 & ~umask
        try:
            root = os.path.abspath(path)  # a later chdir must not move the bucket
        except FileNotFoundError as error:
            raise StorageError(
                f"file:{path} is in the current folder, which no longer exists: change to one that does"
            ) from error
        tree = Tree(root, folder_mode=0o777 & ~umask, follow_links=follow_links)
        super().__init__(f"file:{path}", tree, clock, file_mode)

    def read(self, key: str) -> tuple[bytes, str]:
        with _opened(self._tree, self.url, key) as (file, found), open(file, "rb", buffering=0, closefd=False) as whole:
            try:
                return whole.readall(), version_of(found)
            except MemoryError:
                raise Unreadable(
                    f"cannot read {key} of {self.url}: it has {found.st_size} bytes, for which this process has no "
                    "memory; if another program has put it there, move it away"
                ) from None

    def read_range(self, key: str, first: int, last: int) -> bytes:
        """See `RangedReads.read_range`."""
        with _opened(self._tree, self.url, key) as (file, _):
            return os.pread(file, max(0, last + 1 - first), first)

    def set_aside(self, key: str, size: int) -> Room:
        check_key(key)
        with storage_errors(f"set {size} bytes aside for {key} of {self.url}"):
            path = self._writer.reserve(key, size)
        return ReservedFile(path, lambda draft, expect: self._writer.publish(draft, key, expect))

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        """See `SharedWrites.replace`. On Linux the two names are exchanged in one step, so that nothing is lost.

        On other systems, and on file systems without that operation, whatever another program writes in the instant
        between the last comparison and the rename is lost (see rename_exchange.py).
        """
        if check_key(key) == check_key(aside):
            raise ValueError(f"the same key twice: {key!r}")
        with storage_errors(f"replace {key} of {self.url}"), self._writer.draft(key, [data]) as draft:
            return self._writer.replace(draft, key, expect, aside)

    def delete(self, key: str) -> None:
        check_key(key)
        with storage_errors(f"delete {key} of {self.url}"):
            if self._tree.is_file(key):
                self._writer.delete(key)
            else:
                require_root(self._tree.root)

    def copy(self, source: str, target: str) -> None:
        check_key(target)
        with _opened(self._tree, self.url, source) as (file, _), open(file, "rb", buffering=0, closefd=False) as whole:
            self.write_file(target, whole, ANY)

    def move(self, moves: Sequence[tuple[str, str]]) -> None:
        """See `Moves.move`. A file is copied if its target is on another disk, below a linked folder."""
        check_moves(moves)
        with storage_errors(f"move {', '.join(source for source, _ in moves)} of {self.url}"):
            for source, _ in moves:
                if not self._tree.is_file(source):
                    require_root(self._tree.root)
                    raise NotFound(source)
            elsewhere = self._writer.move(moves)
        copy_and_delete(self, elsewhere)

    def part(self, prefix: str) -> Bucket:
        from retake.bucket.wrappers import PrefixedBucket

        return PrefixedBucket(self, prefix)

    def now(self) -> datetime | None:
        return None

    def find(self, stem: str, endings: Iterable[str]) -> list[Entry]:
        keys = sorted({check_key(f"{stem}{ending}") for ending in endings})
        with storage_errors(f"look for {stem}* in {self.url}"):
            require_root(self._tree.root)
            return [entry for key in keys if (entry := self._tree.entry(key))]

    def list(self, prefix: str) -> list[Entry]:
        return sorted(self.scan(prefix))

    def scan(self, prefix: str, after: str = "") -> Iterator[Entry]:
        """See `Scans.scan`."""
        folder = check_prefix(prefix).rpartition("/")[0]
        with storage_errors(f"list {prefix}* of {self.url}"):
            require_root(self._tree.root)
            self._tree.refuse_links(prefix)
            yield from self._tree.walk(prefix, folder, after)

    def stamped(self, keys: Sequence[str]) -> tuple[str, float]:
        """See `StampedPlaces.stamped`."""
        beside = {f"{key.rpartition('/')[0]}/": None for key in keys if not key.endswith("/")}
        texts, latest = [], 0.0
        with storage_errors(f"look at {keys[0]} and others of {self.url}"):
            for key in (*keys, *beside):
                path = os.path.join(self._tree.root, key.rstrip("/"))
                found = status(path, follow_links=self._tree.follow_links)
                texts.append(f"{version_of(found)}-{found.st_ctime_ns:x}" if found else "-")
                latest = max(latest, found.st_mtime, found.st_ctime) if found else latest
        return " ".join(texts), latest


@contextmanager
def _opened(tree: Tree, url: str, key: str) -> Iterator[tuple[int, os.stat_result]]:
    """Open the file of an object, and provide it with its status from before it is read. Raises NotFound."""
    path = tree.path(key)
    with storage_errors(f"read {key} of {url}"):
        try:
            tree.refuse_links(key)
            tree.look_at(path)
            file = _open_to_read(path, f"read {key} of {url}")
        except OSError as error:
            if error.errno not in NOT_THERE or error.errno == errno.ELOOP:
                raise
            require_root(tree.root)
            raise NotFound(key) from None
        try:
            found = os.fstat(file)  # before reading: too old a version causes a needless conflict at worst
            if not stat.S_ISREG(found.st_mode):
                raise NotFound(key)
            yield file, found
        finally:
            os.close(file)


def _open_to_read(path: str, doing: str) -> int:
    """Open a file to be read. Raises Unreadable if it is a link or may not be read itself, else OSError."""
    try:
        return os.open(path, _TO_READ)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EACCES) or status(path) is None:  # else a folder above it is at fault
            raise
        with storage_errors(doing, Unreadable):
            raise


class ReservedFile:
    """A `Room` in a directory: the file at `path`, whose blocks are already allocated, is filled in place.

    `publish` compares, gives the draft its name in the bucket and returns its version.
    """

    def __init__(self, path: str, publish: Callable[[Draft, str | Expect], str]) -> None:
        self._path = path
        self._publish = publish

    def write(self, data: bytes, expect: str | Expect) -> str:
        """See `Room.write`. Data larger than the room is also written, if the disk has space for the rest."""
        with storage_errors(f"write into the room set aside at {self._path}"):
            return self._publish(fill_draft(self._path, data), expect)

    def release(self) -> None:
        """Remove the file, unless a write has already renamed it."""
        discard(self._path)


class DirectoryWriter:
    """The writes of one bucket, whose `url` is used in messages. Every method may raise OSError."""

    def __init__(self, tree: Tree, url: str, clock: Clock, file_mode: int) -> None:
        self._tree, self._url, self._clock, self._file_mode = tree, url, clock, file_mode

    @contextmanager
    def draft(self, key: str, pieces: Iterable[bytes]) -> Iterator[Draft]:
        """Provide a file on the bucket's disk with the concatenated `pieces`. After the block the draft is removed; the
        names that it was given stay."""
        self._tree.make_folders(key)
        draft = write_draft(self._drafts(key), pieces, self._file_mode)
        try:
            yield draft
        finally:
            discard(draft.path)

    def reserve(self, key: str, size: int) -> str:
        """Return the path of a new file that will become `key`, with `size` bytes allocated."""
        self._tree.make_folders(key)
        return reserve(self._drafts(key), size, self._file_mode)

    def publish(self, draft: Draft, key: str, expect: str | Expect, *, synced: bool = True) -> str:
        """Give the draft the name `key`, durably if `synced`, and return its version. Raises Conflict if `key` is not
        as expected."""
        path = self._tree.path(key)
        with self._locked():
            self._compare(key, expect)
            try:
                _name_draft(draft, path, expect)
            except FileNotFoundError:  # `remove_folder` has removed the folder since it was made for the draft
                self._tree.make_folders(key)
                _name_draft(draft, path, expect)
        if synced:
            _sync_names(os.path.dirname(path))
        return draft.version

    def replace(self, draft: Draft, key: str, expect: str | Expect, aside: str) -> str:
        """Give the draft the name `key` as `SharedWrites.replace` says. Raises Conflict."""
        path, beside = self._tree.path(key), self._tree.path(aside)
        self._tree.make_folders(aside)
        keep_access(draft.path, path)
        with self._locked():
            self._compare(aside, ABSENT)
            self._compare(key, expect)
            done = _exchange(draft, path, beside, expect)
        if not done:
            for folder in {os.path.dirname(path), os.path.dirname(beside)}:
                sync_folder(folder)
            raise Conflict(f"{key} of {self._url} was written by another program and was left as it is")
        return draft.version

    def delete(self, key: str) -> None:
        """Remove the file `key`, if it still exists."""
        path = self._tree.path(key)
        with self._locked():
            try:
                os.unlink(path)
            except FileNotFoundError:
                return
        _sync_names(os.path.dirname(path))

    def remove_folder(self, prefix: str) -> None:
        """Remove the folder `prefix`, if it is empty. A power cut may bring it back."""
        path = self._tree.path(prefix.removesuffix("/"))  # so never the root, or a folder of our own
        if os.path.isdir(path):
            with self._locked(), suppress(OSError):
                self._tree.refuse_links(prefix)
                os.rmdir(path)

    def move(self, moves: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Rename each source to its target. Return the moves that lead to another disk, which no rename can make.

        A crash leaves each file under one of its two names. Each folder is synced once, after the folders to which its
        files went, so a power cut in between leaves both names of a file rather than none.
        """
        elsewhere = []
        order = _targets_first(moves, self._folder)
        if order is None:  # one after the other is always safe
            return [it for each in moves for it in self.move([each])]
        for _, target in moves:
            self._tree.make_folders(target)
        with self._locked():
            for source, target in moves:
                self._compare(target, ANY)  # removes an empty folder of that name
                if not _rename_object(self._tree.path(source), self._tree.path(target)):
                    elsewhere.append((source, target))
        for folder in order:
            sync_folder(folder)
        return elsewhere

    def _folder(self, key: str) -> str:
        return os.path.dirname(self._tree.path(key))

    def _drafts(self, key: str) -> str:
        return self._tree.drafts(key, self._clock.now().timestamp())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude every other change by Retake, in any process or thread, during the block."""
        self._tree.make_folders(".retake/")
        lock = wait_for_lock(os.path.join(self._tree.own, "writes.lock"), self._clock, self._file_mode)
        try:
            yield
        finally:
            unlock(lock)

    def _compare(self, key: str, expect: str | Expect) -> None:
        path = self._tree.path(key)
        try:
            found = stat_file(path)
        except IsADirectoryError:
            remove_empty(path)
            found = None
        version = version_of(found) if found else ABSENT
        if expect not in (ANY, version):
            what = "exists already" if expect is ABSENT else "is not what was read"
            raise Conflict(f"{key} of {self._url} {what}: somebody else wrote it; nothing was changed")


def _targets_first(moves: Iterable[tuple[str, str]], folder_of: Callable[[str], str]) -> list[str] | None:
    """Return the folders of these moves, each after all folders that its files are moved to. None if there is no such
    order, because folders exchange files."""
    waits_for: dict[str, set[str]] = {}
    for source, target in moves:
        waits_for.setdefault(folder_of(target), set())
        waits_for.setdefault(folder_of(source), set()).update({folder_of(target)} - {folder_of(source)})
    order: list[str] = []
    while waits_for:
        free = sorted(it for it, others in waits_for.items() if others <= set(order))
        if not free:
            return None
        order += free
        for folder in free:
            del waits_for[folder]
    return order


def _sync_names(folder: str) -> None:
    """Make the names in `folder` durable. If it was empty and has been removed since, make that durable instead."""
    try:
        sync_folder(folder)
    except FileNotFoundError:
        sync_folder(os.path.dirname(folder))


def _name_draft(draft: Draft, path: str, expect: str | Expect) -> None:
    if expect is not ABSENT:
        os.rename(draft.path, path)  # one step: readers see the old file or the new one
        return
    try:
        os.link(draft.path, path)  # unlike a rename, it fails if another program has just created something there
    except FileExistsError:
        raise Conflict(f"{path} has just been created by another program; nothing was changed") from None


def _rename_object(path: str, target: str) -> bool:
    """Give the file a new name and, since no version is used twice, a new version. False if that is on another disk."""
    with suppress(PermissionError):  # another program's file; its time stays
        restamp(path)
    if not _try_rename(path, target):
        return False
    left = stat_file(path)
    if left and os.path.samestat(left, os.lstat(target)):  # renaming does nothing if both are names of one file
        os.unlink(path)
    return True


def _exchange(draft: Draft, path: str, beside: str, expect: str | Expect) -> bool:
    if isinstance(expect, Expect):
        _name_draft(draft, path, expect)
        return True
    from retake.bucket.directory.rename_exchange import displace

    return displace(draft.path, path, beside, expect)


def _try_rename(path: str, target: str) -> bool:
    """Rename a file in one step. Return False if the target is on another disk."""
    try:
        os.rename(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _touch(path: str, mode: int) -> None:
    if stat_file(path) is None:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
        try:
            set_mode(file, mode)
        finally:
            os.close(file)
