"""Pages of a long list."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

_T = TypeVar("_T")


class Pages(NamedTuple):
    """A position in a list. `page` counts from 1."""

    page: int
    pages: int
    total: int

    @property
    def several(self) -> bool:
        """Whether there is another page."""
        return self.pages > 1


def pages_of(total: int, page: int, size: int) -> Pages:
    """Return the requested page, clamped to the first and the last."""
    pages = max(1, -(-total // size))
    return Pages(min(max(1, page), pages), pages, total)


def paged(items: Sequence[_T], page: int, size: int) -> tuple[Sequence[_T], Pages]:
    """Return the items of a page, and its position."""
    found = pages_of(len(items), page, size)
    return items[(found.page - 1) * size : found.page * size], found
