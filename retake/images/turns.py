"""The order in which passes process their items."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Turns:
    """Puts items that failed in one pass last in the next, so that they hold up nothing else, however long they take.

    It is kept in memory: each process learns on its own what fails. Thread-safe.
    """

    def __init__(self) -> None:
        self._failed: dict[str, None] = {}  # in order of their last failure

    def ordered(self, found: Iterable[T], name: Callable[[T], str]) -> Iterator[T]:
        """Yield the items, whose names are unique: first those that have not failed, in the given order."""
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
    def processing(self, name: str) -> Iterator[None]:
        """Record the item as failed if the `with` block raises."""
        self._failed.pop(name, None)
        self._failed[name] = None
        yield
        self._failed.pop(name, None)
