"""What a bucket offers besides the contract to those who look through all of it: `retake check`."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from retake.bucket.contract import Bucket, Entry


@runtime_checkable
class Scans(Protocol):
    """What a bucket offers besides the contract, for more objects than fit into memory:

    for entry in scan(bucket, "archive/"): ...
    """

    def scan(self, prefix: str, after: str = "") -> Iterator[Entry]:
        """Yield every object whose key begins with `prefix`, in any order, while the store is being asked; with `after`
        only those whose keys sort after it.

        Memory does not grow with their number. An object that is moved meanwhile may be missed, or yielded twice. B2
        and S3 list nothing of what sorts before `after`; a directory reads the names, and looks at no file of those.
        """
        ...


def scan(bucket: Bucket, prefix: str, after: str = "") -> Iterator[Entry]:
    """Yield the objects below `prefix` (see `Scans`). A bucket that offers no scan is listed."""
    if not isinstance(bucket, Scans):
        return (entry for entry in bucket.list(prefix) if entry.key > after)
    return bucket.scan(prefix, after) if after else bucket.scan(prefix)


@runtime_checkable
class PagedVersions(Protocol):
    """What a bucket offers besides the contract to those who compare what is there with what was there before, and want
    to skip what they do not compare:

    for page in bucket.versions_from("north/444/"): ...
    """

    def versions_from(self, start: str) -> Iterator[Sequence[tuple[str, str]]]:
        """Yield the objects whose keys are not below `start`, in the order of their UTF-8 bytes, a page of up to 1,000
        for each request: the key of each, and a text that changes with each write. It is not the version of `read`, and
        an object may have several.
        """
        ...


@runtime_checkable
class StampedPlaces(Protocol):
    """What a directory offers for the same purpose:

    text, changed_at = bucket.stamped(["north/config/config_gen.json", "north/444/"])
    """

    def stamped(self, keys: Sequence[str]) -> tuple[str, float]:
        """Return a text that changes with the objects `keys`, with the names beside them, and with the names in the
        folders among them (those that end in "/"); and when the last of these changes was, in UNIX seconds by the file
        system's clock, 0 if nothing is there. Two changes in the same instant of that clock may look like one."""
        ...


def is_there(bucket: Bucket) -> bool:
    """Return whether the bucket exists, as far as listing it does not tell: a folder that is not there yet is listed as
    an empty bucket, which the first write makes."""
    path = os.path.abspath(bucket.url.removeprefix("file:"))
    made_later = not os.path.lexists(path) and os.path.isdir(os.path.dirname(path))
    return not (bucket.url.startswith("file:") and made_later)


DRAFT, CLAIM, SCRATCH, STRANGER = "draft", "claim", "scratch", "stranger"
"""Kinds of remnants: a write that never ended; the claim of a lease that ran out; an object that tried the store out;
an object of another program among the claims of a lease, which nobody can take for it."""


class Remnant(NamedTuple):
    """What a process that died left beside the objects of a bucket."""

    name: str  # where it is, for people: ".retake/tmp/4711-9f3c"
    kind: str  # one of those above
    size: int  # bytes
    modified: float  # seconds since the epoch, by the store's clock
    removable: bool  # by `Remains.clear`


@runtime_checkable
class Remains(Protocol):
    """What a bucket offers besides the contract, where it keeps things of its own that a crash leaves behind:

    for remnant in remains(bucket): ...

    A part whose things are among those of the whole bucket offers nothing.
    """

    def remains(self) -> Iterator[Remnant]:
        """Yield what was left behind. What a living process may still be using is not among it."""
        ...

    def clear(self, remnant: Remnant) -> None:
        """Remove what `remains` yielded, if it is there still and nobody uses it. Raises LeaseHeld, and ValueError
        for one that is not removable."""
        ...


def remains(bucket: Bucket) -> Iterator[Remnant]:
    """Yield what was left behind (see `Remains`); nothing where the bucket has nothing of its own."""
    return bucket.remains() if isinstance(bucket, Remains) else iter(())


def clear(bucket: Bucket, remnant: Remnant) -> None:
    """Remove a remnant of the bucket (see `Remains.clear`)."""
    if not isinstance(bucket, Remains) or not remnant.removable:
        raise ValueError(f"{remnant.name} is not removed by a program")
    bucket.clear(remnant)


def outermost(prefixes: Iterable[str]) -> list[str]:
    """Return the prefixes in the order of their bytes, without those that begin with another one.

    >>> outermost(["spend/2026", "spend/", "archive/"])
    ['archive/', 'spend/']
    """
    found: list[str] = []
    for prefix in sorted(set(prefixes), key=str.encode):
        if not (found and prefix.startswith(found[-1])):
            found.append(prefix)
    return found
