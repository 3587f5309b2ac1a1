"""Whether anything has changed in some places of a directory, by the times of files and folders."""

import os
from collections.abc import Sequence

from retake.bucket.directory.disk import NOT_THERE, Tree, storage_errors, version_of


class DirectoryStamps:
    """`StampedPlaces` (see retake.bucket.scanning) of a tree."""

    url: str
    _tree: Tree

    def stamped(self, keys: Sequence[str]) -> tuple[str, float]:
        """See `StampedPlaces.stamped`."""
        beside = {f"{key.rpartition('/')[0]}/": None for key in keys if not key.endswith("/")}
        texts, latest = [], 0.0
        with storage_errors(f"look at {keys[0]} and others of {self.url}"):
            for key in (*keys, *beside):
                found = self._status(key)
                texts.append(f"{version_of(found)}-{found.st_ctime_ns:x}" if found else "-")
                latest = max(latest, found.st_mtime, found.st_ctime) if found else latest
        return " ".join(texts), latest

    def _status(self, key: str) -> os.stat_result | None:
        path = os.path.join(self._tree.root, key.rstrip("/"))
        try:
            return os.stat(path) if self._tree.follow_links else os.lstat(path)
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise
            return None
