"""An optional capability of a bucket: removing folders that deleted objects leave empty."""

from typing import Protocol, runtime_checkable

from retake.bucket.contract import Bucket


@runtime_checkable
class EmptyFolders(Protocol):
    """Folders that stay when their last object is deleted. Each takes an inode, and time in listings."""

    def remove_folder(self, prefix: str) -> None:
        """Remove the folder `prefix`, which ends in "/", if it exists and is empty. A write into it at the same time
        makes it again. Not for folders that files are moved to, or marks left in."""
        ...


def remove_folder(bucket: Bucket, prefix: str) -> None:
    """Remove an empty folder (see `EmptyFolders`); does nothing in a bucket without folders."""
    if isinstance(bucket, EmptyFolders):
        bucket.remove_folder(prefix)
