"""What a bucket offers besides the contract for what need not outlast a power cut, so that nothing waits for the disk.

A crash of the program takes away none of it. After a power cut, which ends all programs, the system may have what was
there some seconds before. It is for what is found out, or done again, by whoever comes next; each use says why that is
so. On B2 and S3 each of these is a write like any other.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from retake.bucket import ANY, Bucket, Expect


@runtime_checkable
class UnsyncedWrites(Protocol):
    """Writes of whose names the disk may be told later:

    version = write_unsynced(bucket, "config/topics.json", data, ANY)
    """

    def write_unsynced(self, key: str, data: bytes, expect: str | Expect) -> str:
        """Write like `Bucket.write`, but a power cut may bring back what was there before, whole.

        The next write of the same folder makes it durable too.
        """
        ...


def write_unsynced(bucket: Bucket, key: str, data: bytes, expect: str | Expect) -> str:
    """Write what need not outlast a power cut (see `UnsyncedWrites`), durably where the bucket offers nothing else."""
    if isinstance(bucket, UnsyncedWrites):
        return bucket.write_unsynced(key, data, expect)
    return bucket.write(key, data, expect)


@runtime_checkable
class NewFolders(Protocol):
    """Folders that are made before anything lies in them: their names wait for the disk together, not one by one."""

    def make_folders(self, prefixes: Sequence[str]) -> None:
        """Make the folders `prefixes`, each of which ends in "/", durably."""
        ...


def make_folders(bucket: Bucket, prefixes: Sequence[str]) -> None:
    """Make folders of which a new bucket is going to need all (see `NewFolders`). A bucket without folders has them."""
    if isinstance(bucket, NewFolders):
        bucket.make_folders(prefixes)


@runtime_checkable
class Marks(Protocol):
    """Empty objects whose names say what can be found out otherwise:

    mark(bucket, "runs/index/open/story.run-0123456789abcdef")
    """

    may_forget_marks: bool
    """Whether a power cut may take away the marks of the last seconds: nothing waits for the disk."""

    def mark(self, key: str, instead_of: str | None = None) -> None:
        """Have an object `key`, an empty one if it is new, and no longer one called `instead_of`."""
        ...


def mark(bucket: Bucket, key: str, instead_of: str | None = None) -> None:
    """Leave a mark (see `Marks`). In a bucket that does not offer it, it is written, and then the other deleted."""
    if isinstance(bucket, Marks):
        bucket.mark(key, instead_of)
    else:
        write_and_delete(bucket, key, instead_of)


def write_and_delete(bucket: Bucket, key: str, instead_of: str | None) -> None:
    """Leave a mark by operations of the contract. A crash in between leaves both."""
    bucket.write(key, b"", ANY)
    if instead_of is not None:
        bucket.delete(instead_of)
