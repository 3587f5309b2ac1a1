"""The folders and files of a directory bucket: paths, symbolic links, drafts, listings."""

import errno
import os
import stat
from collections.abc import Iterator

from retake.bucket import Entry, check_key
from retake.bucket.directory.disk import NOT_THERE, make_folders, stat_file, sweep
from retake.bucket.keys import is_key


class Tree:
    """The files below `root`, an absolute path. No link is followed, unless `follow_links` allows linked folders."""

    def __init__(self, root: str, *, folder_mode: int, follow_links: bool) -> None:
        self.root = root
        self.own = os.path.join(root, ".retake")
        """Where Retake's own files are."""
        self._folder_mode = folder_mode
        self._follow_links = follow_links
        self._swept: set[str] = set()

    def path(self, key: str) -> str:
        """Return the path of the file `key`. Raises ValueError for what is not a key."""
        return os.path.join(self.root, check_key(key))

    def refuse_links(self, key: str) -> None:
        """Raise OSError (ELOOP) if a folder above `key` is a symbolic link that must not be followed."""
        if self._follow_links and not key.startswith(".retake/"):
            return
        for path in self._folders_above(key):
            if os.path.islink(path):
                raise OSError(errno.ELOOP, "a symbolic link", path)

    def refuse_linked_folders(self, name: str) -> None:
        """Raise OSError (ELOOP) if a folder that the lease `name` covers is a link.

        This must come to light before anything is paid for, not when the result is to be saved there.
        """
        self.refuse_links(name)
        covered = os.path.dirname(os.path.join(self.root, name))
        if self._follow_links or not os.path.isdir(covered):
            return
        with os.scandir(covered) as found:
            for item in found:
                if item.is_symlink() and item.is_dir():
                    raise OSError(errno.ELOOP, "a symbolic link", item.path)

    def is_file(self, key: str) -> bool:
        """Whether there is a file `key`. Raises OSError."""
        try:
            self.refuse_links(key)
            return stat_file(self.path(key)) is not None
        except OSError as error:
            if error.errno in NOT_THERE or isinstance(error, IsADirectoryError):
                return False
            raise

    def make_folders(self, key: str) -> None:
        """Make the folders above `key`. Raises OSError."""
        self.refuse_links(key)
        make_folders(self.root, os.path.dirname(os.path.join(self.root, key)), self._folder_mode)

    def drafts(self, key: str, now: float) -> str:
        """Return the folder for files on their way to `key`, on the same disk; it is made and swept if need be.

        `now` is in seconds since the epoch. Raises OSError.
        """
        linked = (path for path in self._folders_above(key) if os.path.islink(path)) if self._follow_links else ()
        own = os.path.join(next(iter(linked), self.root), ".retake")
        if os.path.islink(own) or os.path.islink(drafts := os.path.join(own, "tmp")):
            raise OSError(errno.ELOOP, "a symbolic link", own)
        make_folders(self.root, drafts, self._folder_mode)
        if drafts not in self._swept:
            sweep(drafts, now)
            self._swept.add(drafts)
        return drafts

    def walk(self, prefix: str, folder: str) -> Iterator[Entry]:
        """Yield the files below `folder` whose keys begin with `prefix`. A loop of links ends at the longest key."""
        try:
            with os.scandir(os.path.join(self.root, folder)) as found:
                items = [*found]
        except OSError as error:
            if error.errno in NOT_THERE:  # removed since we saw its name
                return
            raise
        for item in items:
            key = f"{folder}/{item.name}" if folder else item.name
            if item.is_dir(follow_symlinks=self._follow_links):
                if f"{key}/".startswith(prefix) and is_key(key):
                    yield from self.walk(prefix, key)
            elif key.startswith(prefix) and is_key(key):
                yield from _entry(item, key)

    def _folders_above(self, key: str) -> Iterator[str]:
        """Yield the paths of the folders above `key`, the nearest first."""
        folder = key.rpartition("/")[0]
        while folder:
            yield os.path.join(self.root, folder)
            folder = folder.rpartition("/")[0]


def _entry(item: os.DirEntry[str], key: str) -> Iterator[Entry]:
    try:
        found = item.stat(follow_symlinks=False)
    except FileNotFoundError:  # removed since we saw its name
        return
    if stat.S_ISREG(found.st_mode):
        yield Entry(key, found.st_size, found.st_mtime)
