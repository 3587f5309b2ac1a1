"""Buckets at whose changes a program dies, or to which it may write nothing."""

from collections.abc import Callable
from typing import Any

from retake.bucket import Bucket
from retake.bucket.wrappers import CountingBucket
from retake.errors import StorageError


class Died(Exception):
    pass


class Dying(CountingBucket):
    """Dies at one of its changes."""

    def __init__(self, bucket: Bucket, at: int) -> None:
        super().__init__(bucket)
        self.left = at

    def around(self, operation: str, key: str, call: Callable[[], Any]) -> Any:
        if operation in ("write", "delete", "copy"):
            self.left -= 1
            if self.left < 0:
                raise Died
        return super().around(operation, key, call)


class ReadOnly(CountingBucket):
    """Keeps nothing of what is written to it."""

    def write(self, *args: object, **named: object) -> str:
        raise StorageError("not allowed")
