"""A bucket in a directory.

An object is a file of the same name. Whatever is not a regular file, or has a name that is not a key, is not part of
the bucket. Files of other programs are listed too, including dot files: a key may begin with a dot. Symbolic links are
refused: nothing is read, listed or written through one, unless `follow_links` allows folders to be links to another
disk.

Below `<root>/.retake` are Retake's own files: `tmp/` (drafts), `writes.lock` and `leases/`. A linked folder has a
`.retake/tmp/` of its own, because a file cannot be renamed from one disk to another. No link is followed below
`.retake`.

Files and folders are private to their owner, because state documents hold signed links. `umask` can open them.
"""

import errno
import os
import stat
from datetime import datetime

from retake.bucket import ANY, Bucket, Entry, Expect, NotFound, Room, check_key, check_prefix
from retake.bucket.directory.disk import NOT_THERE, require_root, storage_errors, version_of
from retake.bucket.directory.leases import DirectoryLeases
from retake.bucket.directory.reservation import ReservedFile
from retake.bucket.directory.tree import Tree
from retake.bucket.directory.writer import DirectoryWriter
from retake.clock import Clock, SystemClock

# A link is not followed, and opening a pipe must not wait for its writer.
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class DirectoryBucket(DirectoryLeases):
    """The bucket in the folder `path`. The first write makes the folder if the one above it exists.

    Any number of processes and threads may use it. Retake's own changes happen one at a time under a short lock, so
    comparing and publishing are one step. Programs that do not take the lock are noticed by writes that expect ABSENT
    and by `replace`; a write that expects a version does not see what they write between comparing and publishing.

    A key cannot also be a folder of another key ("a" and "a/b"): StorageError. Empty folders stay until a key needs
    their name.
    """

    def __init__(
        self, path: str, *, clock: Clock | None = None, umask: int = 0o077, follow_links: bool = False
    ) -> None:
        clock, file_mode = clock or SystemClock(), 0o666 & ~umask
        root = os.path.abspath(path)  # a later chdir must not move the bucket
        tree = Tree(root, folder_mode=0o777 & ~umask, follow_links=follow_links)
        super().__init__(f"file:{path}", tree, clock, file_mode)
        self._writer = DirectoryWriter(tree, self.url, clock, file_mode)

    def read(self, key: str) -> tuple[bytes, str]:
        path = self._tree.path(key)
        with storage_errors(f"read {key} of {self.url}"):
            try:
                self._tree.refuse_links(key)
                file = os.open(path, _TO_READ)
            except OSError as error:
                if error.errno not in NOT_THERE or error.errno == errno.ELOOP:
                    raise
                require_root(self._tree.root)
                raise NotFound(key) from None
            try:
                found = os.fstat(file)  # before reading: a version that is too old only causes a needless conflict
                if not stat.S_ISREG(found.st_mode):
                    raise NotFound(key)
                with open(file, "rb", buffering=0, closefd=False) as whole:
                    return whole.readall(), version_of(found)
            finally:
                os.close(file)

    def write(self, key: str, data: bytes, expect: str | Expect) -> str:
        check_key(key)
        with storage_errors(f"write {key} to {self.url}"), self._writer.draft(key, data) as draft:
            return self._writer.publish(draft, key, expect)

    def set_aside(self, key: str, size: int) -> Room:
        check_key(key)
        with storage_errors(f"set {size} bytes aside for {key} of {self.url}"):
            path = self._writer.reserve(key, size)
        return ReservedFile(path, lambda draft, expect: self._writer.publish(draft, key, expect))

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        """See `SharedWrites.replace`. On Linux the two names are exchanged in one step, so that nothing is lost.

        Elsewhere, and on file systems without that operation, whatever another program writes in the instant between
        the last comparison and the rename is lost (see rename_exchange.py).
        """
        if check_key(key) == check_key(aside):
            raise ValueError(f"the same key twice: {key!r}")
        with storage_errors(f"replace {key} of {self.url}"), self._writer.draft(key, data) as draft:
            return self._writer.replace(draft, key, expect, aside)

    def delete(self, key: str) -> None:
        check_key(key)
        with storage_errors(f"delete {key} of {self.url}"):
            if self._tree.is_file(key):
                self._writer.delete(key)
            else:
                require_root(self._tree.root)

    def copy(self, source: str, target: str) -> None:
        self.write(check_key(target), self.read(source)[0], ANY)

    def part(self, prefix: str) -> Bucket:
        from retake.bucket.prefixed import PrefixedBucket

        return PrefixedBucket(self, prefix)

    def now(self) -> datetime | None:
        return None

    def list(self, prefix: str) -> list[Entry]:
        folder = check_prefix(prefix).rpartition("/")[0]
        with storage_errors(f"list {prefix}* of {self.url}"):
            require_root(self._tree.root)
            self._tree.refuse_links(prefix)
            return sorted(self._tree.walk(prefix, folder))
