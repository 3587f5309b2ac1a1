"""Requests to a far store that do not depend on each other: sent side by side, they take as long as the slowest."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from retake.bucket.contract import Looks
from retake.errors import StorageError

T = TypeVar("T")

_MAX_THREADS = 8


def side_by_side(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Return what each of `calls` returns, in their order. If some fail, raises what the first of them in that order
    raised, once all that have begun have ended; of more than eight the rest may then not be made."""
    if len(calls) < 2:
        return [call() for call in calls]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_MAX_THREADS, len(calls))) as pool:
        return list(pool.map(lambda call: call(), calls))


@contextmanager
def meanwhile(call: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Carry out `call` during the block; what is yielded returns its result, or raises what it raised."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(call).result


@contextmanager
def lease_prepared(bucket: Looks, name: str) -> Iterator[None]:
    """Prepare, during the block, that the lease is taken after it (see `Looks.prepare_lease`)."""
    with meanwhile(partial(bucket.prepare_lease, name)) as ended:
        yield
        with suppress(StorageError):  # who takes the lease is told
            ended()
