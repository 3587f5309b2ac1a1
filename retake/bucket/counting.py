"""A bucket that counts what is asked of it: how many requests does a tick cost?"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from retake.bucket import Bucket
from retake.bucket.wrapper import Wrapper

T = TypeVar("T")


class CountingBucket(Wrapper):
    """Counts the operations on `bucket` by their names («read», «write», …), those that fail too."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        with self._lock:
            self.counts[operation] += 1
        return call()
