"""A bucket that counts its operations: how many requests does a tick cost?"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from retake.bucket import Bucket
from retake.bucket.wrapper import Wrapper

T = TypeVar("T")


class CountingBucket(Wrapper):
    """Count the operations on `bucket` by name (see `Wrapper.around`), including those that fail."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        with self._lock:
            self.counts[operation] += 1
        return call()
