"""Concurrent requests to a remote store: those that do not depend on each other take as long as the slowest."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from retake.bucket.contract import Looks
from retake.errors import StorageError

T = TypeVar("T")

_MAX_THREADS = 8


def side_by_side(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Make `calls`, up to eight at a time, and return their results in order. If some fail, raise the error of the
    first in that order once all that have begun have ended; calls that have not begun are not made."""
    if len(calls) < 2:
        return [call() for call in calls]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_MAX_THREADS, len(calls))) as pool:
        return list(pool.map(lambda call: call(), calls))


@contextmanager
def meanwhile(call: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Make `call` in a thread during the block. The yielded function returns its result or raises its error."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(call).result


@contextmanager
def lease_prepared(bucket: Looks, name: str) -> Iterator[None]:
    """Prepare during the block to take the lease after it (see `Looks.prepare_lease`)."""
    with meanwhile(partial(bucket.prepare_lease, name)) as ended:
        yield
        with suppress(StorageError):  # taking the lease meets the same error
            ended()
