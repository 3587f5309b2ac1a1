"""A bucket under a lease: every change first checks that the lease is still held."""

from collections.abc import Callable
from typing import TypeVar

from retake.bucket import Bucket, Lease
from retake.bucket.wrapper import Wrapper

T = TypeVar("T")

_READING = ("read", "list", "lease", "join", "now")


class LeasedBucket(Wrapper):
    """`bucket`, which is only changed under `lease`. Changes raise LeaseLost once the lease is lost."""

    def __init__(self, bucket: Bucket, lease: Lease) -> None:
        super().__init__(bucket)
        self._lease = lease

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        if operation not in _READING:
            self._lease.check()
        return call()
