"""The order in which passes take up what there is to do."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Turns:
    """Lets what failed in one pass come last in the next one, so that it holds up nothing else however long it takes.

    It is kept in memory: another process learns by itself what fails. Safe to use from many threads.
    """

    def __init__(self) -> None:
        self._failed: dict[str, None] = {}  # the one that failed last is the last

    def ordered(self, found: Iterable[T], name: Callable[[T], str]) -> Iterator[T]:
        """Yield what was found, each of a name of its own: first what has not failed, as it comes."""
        failed, late = dict.fromkeys(list(self._failed)), dict[str, T]()
        for it in found:
            if name(it) in failed:
                late[name(it)] = it
            else:
                yield it
        for known in failed:
            if known in late:
                yield late[known]
            else:
                self._failed.pop(known, None)

    @contextmanager
    def taken(self, name: str) -> Iterator[None]:
        """Note that what is done in the `with` has failed, unless nothing is raised."""
        self._failed.pop(name, None)
        self._failed[name] = None
        yield
        self._failed.pop(name, None)
