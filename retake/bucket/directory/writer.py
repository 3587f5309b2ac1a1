"""Writing into a directory bucket: a draft on the disk, a short lock, a comparison, and then the name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from retake.bucket import ABSENT, ANY, Conflict, Expect
from retake.bucket.directory.disk import (
    Draft,
    discard,
    keep_access,
    remove_empty,
    reserve,
    stat_file,
    sync_folder,
    version_of,
    write_draft,
)
from retake.bucket.directory.flock import unlock, wait_for_lock
from retake.bucket.directory.tree import Tree
from retake.clock import Clock


class DirectoryWriter:
    """The writes of one bucket, whose URL `url` is for messages. Every method may raise OSError."""

    def __init__(self, tree: Tree, url: str, clock: Clock, file_mode: int) -> None:
        self._tree, self._url, self._clock, self._file_mode = tree, url, clock, file_mode

    @contextmanager
    def draft(self, key: str, data: bytes) -> Iterator[Draft]:
        """Provide `data` as a file on the disk of the bucket; afterwards it is gone but for the names it was given."""
        self._tree.make_folders(key)
        self._tree.make_folders(".retake/")  # for the lock
        draft = write_draft(self._drafts(key), data, self._file_mode)
        try:
            yield draft
        finally:
            discard(draft.path)

    def reserve(self, key: str, size: int) -> str:
        """Return the path of a new file that will become `key`, with `size` bytes allocated."""
        self._tree.make_folders(key)
        return reserve(self._drafts(key), size, self._file_mode)

    def publish(self, draft: Draft, key: str, expect: str | Expect) -> str:
        """Give the draft the name `key` and return its version. Raises Conflict if something else is there."""
        path = self._tree.path(key)
        with self._locked():
            self._compare(key, expect)
            _rename(draft, path, expect)
        sync_folder(os.path.dirname(path))  # from here on the name is durable too
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
        sync_folder(os.path.dirname(path))
        if not done:
            sync_folder(os.path.dirname(beside))
            raise Conflict(f"{key} of {self._url} was written by another program and was left as it is")
        return draft.version

    def delete(self, key: str) -> None:
        """Remove the file `key`, if it is still there."""
        path = self._tree.path(key)
        self._tree.make_folders(".retake/")  # somebody may have removed it
        with self._locked():
            try:
                os.unlink(path)
            except FileNotFoundError:
                return
        sync_folder(os.path.dirname(path))

    def _drafts(self, key: str) -> str:
        return self._tree.drafts(key, self._clock.now().timestamp())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep every other change by Retake, of any process or thread, out of the block."""
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


def _rename(draft: Draft, path: str, expect: str | Expect) -> None:
    if expect is not ABSENT:
        os.rename(draft.path, path)  # one step: readers see the old file or the new one
        return
    try:
        os.link(draft.path, path)  # unlike a rename it fails if another program has just put something there
    except FileExistsError:
        raise Conflict(f"{path} has just been created by another program; nothing was changed") from None


def _exchange(draft: Draft, path: str, beside: str, expect: str | Expect) -> bool:
    if isinstance(expect, Expect):
        _rename(draft, path, expect)
        return True
    from retake.bucket.directory.rename_exchange import displace

    return displace(draft.path, path, beside, expect)
