"""A bucket that logs each operation with its duration and outcome, for the diagnostic mode."""

import time
from collections.abc import Callable
from logging import getLogger
from typing import TypeVar

from retake.bucket import Bucket, NotFound
from retake.bucket.wrappers import Wrapper
from retake.plural import count

_T = TypeVar("_T")

_log = getLogger("retake.diagnosis.bucket")


class DiagnosedBucket(Wrapper):
    """Logs each operation on `bucket` (see `Wrapper.around`) and its number, but never the content."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self._number = 0

    def around(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        began = time.monotonic()
        try:
            result = call()
        except NotFound:
            self._tell(operation, key, began, "not there")
            raise
        except Exception as error:
            self._tell(operation, key, began, type(error).__name__)
            raise
        self._tell(operation, key, began, _ending(result))
        return result

    def _tell(self, operation: str, key: str, began: float, ending: str) -> None:
        self._number += 1  # not exact if channels share the bucket; it is only logged
        seconds = round(time.monotonic() - began, 4)
        fields = {"operation": operation, "key": key, "outcome": ending, "seconds": seconds, "number": self._number}
        text = f"{operation} {key}".rstrip()
        _log.debug("bucket %d: %s: %s, %.1f ms", self._number, text, ending, seconds * 1000, extra=fields)


def _ending(result: object) -> str:
    """Return the outcome of an operation: how many bytes were read, how many objects listed."""
    match result:
        case (bytes() as data, str()):
            return count(len(data), "byte")
        case list():
            return count(len(result), "object")
        case _:
            return "done"
