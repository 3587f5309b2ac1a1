"""The optional capability of a bucket to read a part of an object.

Separate from the contract and from scanning.py, since moving a group needs it, and no idle tick loads scanning.py.
"""

from typing import Protocol, runtime_checkable

from retake.bucket.contract import Bucket


@runtime_checkable
class RangedReads(Protocol):
    """An optional capability of a bucket, for files that are too large to be read whole.

    part = read_range(bucket, key, 0, 2**20 - 1)
    """

    def read_range(self, key: str, first: int, last: int) -> bytes:
        """Return the bytes `first` to `last`, both included, or fewer if the object is shorter. Raises NotFound."""
        ...


def read_range(bucket: Bucket, key: str, first: int, last: int) -> bytes:
    """Return a part of an object (see `RangedReads`). Without ranged reads, read it whole. Raises NotFound."""
    if isinstance(bucket, RangedReads):
        return bucket.read_range(key, first, last)
    return bucket.read(key)[0][first : last + 1]
