"""Optional capabilities of a bucket for looking through all of it, as `retake check` does."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from retake.bucket.contract import Bucket


@runtime_checkable
class PagedVersions(Protocol):
    """Listing versions page by page, for comparing a bucket with its earlier state.

    for page in bucket.versions_from("north/444/"): ...
    """

    def versions_from(self, start: str) -> Iterator[Sequence[tuple[str, str]]]:
        """Yield the objects from the key `start` on, in the order of their UTF-8 bytes, as pages of up to 1,000, one
        for each request. Each item is a key and a text that changes with each write. That text is not the version of
        `read`, and an object may have several.
        """
        ...


@runtime_checkable
class StampedPlaces(Protocol):
    """Stamps of places, which a directory offers for the same purpose.

    text, changed_at = bucket.stamped(["north/config/config_gen.json", "north/444/"])
    """

    def stamped(self, keys: Sequence[str]) -> tuple[str, float]:
        """Return a text and a time. The text changes with the objects `keys`, the names beside them, and the names in
        the folders among them (keys that end in "/"). The time is that of the last change, in UNIX seconds by the file
        system's clock, 0 if nothing exists. Two changes in one tick of that clock may look like one."""
        ...


def is_there(bucket: Bucket) -> bool:
    """Return whether the bucket's folder exists. Listing does not tell: a missing folder is listed as an empty bucket,
    because the first write makes it. True for a bucket without a folder."""
    path = os.path.abspath(bucket.url.removeprefix("file:"))
    made_later = not os.path.lexists(path) and os.path.isdir(os.path.dirname(path))
    return not (bucket.url.startswith("file:") and made_later)


DRAFT, CLAIM, SCRATCH, STRANGER = "draft", "claim", "scratch", "stranger"
"""Kinds of remnants: a write that never ended; the claim of an expired lease; an object that probed the store; an
object of another program among the claims of a lease, which blocks that lease."""


class Remnant(NamedTuple):
    """Something that a dead process left beside the objects of a bucket."""

    name: str  # where it is, for people: ".retake/tmp/4711-9f3c"
    kind: str  # one of those above
    size: int  # bytes
    modified: float  # seconds since the epoch, by the store's clock
    removable: bool  # by `Remains.clear`


@runtime_checkable
class Remains(Protocol):
    """Finding and removing what crashes leave behind, in a bucket that keeps files of its own beside the objects.

    for remnant in remains(bucket): ...

    A part that shares these files with the whole bucket does not offer this.
    """

    def remains(self) -> Iterator[Remnant]:
        """Yield what was left behind, except what a living process may still be using."""
        ...

    def clear(self, remnant: Remnant) -> None:
        """Remove what `remains` yielded, if it still exists and nobody uses it. Raises LeaseHeld, and ValueError for a
        remnant that is not removable."""
        ...


def remains(bucket: Bucket) -> Iterator[Remnant]:
    """Yield what was left behind (see `Remains`); nothing for a bucket that keeps no files of its own."""
    return bucket.remains() if isinstance(bucket, Remains) else iter(())


def clear(bucket: Bucket, remnant: Remnant) -> None:
    """Remove a remnant of the bucket (see `Remains.clear`)."""
    if not isinstance(bucket, Remains) or not remnant.removable:
        raise ValueError(f"{remnant.name} is not removed by a program")
    bucket.clear(remnant)


def outermost(prefixes: Iterable[str]) -> list[str]:
    """Return the prefixes in byte order, without those that begin with another one of them.

    >>> outermost(["spend/2026", "spend/", "archive/"])
    ['archive/', 'spend/']
    """
    found: list[str] = []
    for prefix in sorted(set(prefixes), key=str.encode):
        if not (found and prefix.startswith(found[-1])):
            found.append(prefix)
    return found
