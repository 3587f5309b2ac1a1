"""Whether anything has changed in some places of a directory, by the times of files and folders."""

import os
from collections.abc import Sequence

from retake.bucket.directory.disk import Tree, status, storage_errors, version_of


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
                path = os.path.join(self._tree.root, key.rstrip("/"))
                found = status(path, follow_links=self._tree.follow_links)
                texts.append(f"{version_of(found)}-{found.st_ctime_ns:x}" if found else "-")
                latest = max(latest, found.st_mtime, found.st_ctime) if found else latest
        return " ".join(texts), latest
