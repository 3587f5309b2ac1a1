"""A version of each channel, which changes with what its idle tick decides from: its documents, the names in its
folders. A tick over many channels compares them and opens those that changed.

On B2 and S3 they come from one listing of the whole bucket that jumps over what decides nothing (archives, runs, dead
letters): a request for each 1,000 names, and one for each jump. Where that takes too many, the marks of the channels
are listed instead: every process of Retake leaves one before it first changes a channel under its lease. What another
program changes is then seen when the channel is looked at for its age.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple, TypeVar

from retake.bucket import ANY, Bucket, Lease
from retake.bucket.contract import Looks, Sight, lease_and_look, look
from retake.bucket.scanning import PagedVersions, StampedPlaces, outermost
from retake.bucket.wrappers import Wrapper
from retake.ticking.rest import digest

T = TypeVar("T")

WHOLE = 8
"""The most requests for a listing of the whole bucket."""

MARKS = "~changed/"
"""Where the marks are, by the names of the channels: no channel's name begins with that character."""

_ALL_BITS = 2**128 - 1


class ChannelVersion(NamedTuple):
    """One version. `changed_at` is the time of the last change where versions are times, in UNIX seconds, else None."""

    version: str
    changed_at: float | None = None


def channel_versions(
    bucket: Bucket, places: Mapping[str, Sequence[str]], *, whole: bool = True
) -> dict[str, ChannelVersion]:
    """Return the version of each channel; none where the bucket cannot tell them.

    `places` are, for each channel, keys of documents and folders (which end in "/"), as the whole bucket has them.
    Without `whole`, marks are listed on B2 and S3. Raises StorageError.
    """
    if isinstance(bucket, StampedPlaces):
        stamps = ((name, *bucket.stamped(keys)) for name, keys in places.items())
        return {name: ChannelVersion(digest([text]), changed_at) for name, text, changed_at in stamps}
    if not isinstance(bucket, PagedVersions):
        return {}
    prefixes = {key: name for name, keys in places.items() for key in keys}
    found = listed_versions(bucket, prefixes, WHOLE) if whole else None
    if found is not None:
        return {name: ChannelVersion(version) for name, version in found.items()}
    marked = dict.fromkeys(places, 0)
    for page in bucket.versions_from(MARKS):
        for key, version in page:
            name = key.removeprefix(MARKS)
            if name in marked:
                marked[name] = (marked[name] + _number(key, version)) & _ALL_BITS
        if page and not page[-1][0].startswith(MARKS):
            break
    return {name: ChannelVersion(f"{MARKED}{version}") for name, version in _texts(marked).items()}


MARKED = "mark-"
"""How versions begin that come from marks."""


class MarkedPart(Wrapper):
    """The part of a channel in a bucket on B2 or S3. Before the first change of one of its `places` under a lease, and
    before every change without one, the channel's mark in the whole bucket is written again.

    So whoever takes the lease later, and remembers what it saw with the mark that it had listed before, finds another
    mark after any change that it did not see.
    """

    def __init__(self, part: Bucket, whole: Bucket, channel: str, places: Iterable[str]) -> None:
        super().__init__(part)
        self._whole, self._mark, self._places = whole, f"{MARKS}{channel}", tuple(places)
        self._leased = self._marked = False

    def lease(self, name: str, owner: str) -> Lease:
        found = super().lease(name, owner)
        self._leased, self._marked = True, False
        return found

    def join(self, name: str, handed: str) -> Lease:
        found = super().join(name, handed)
        self._leased, self._marked = True, False
        return found

    def look(self, keys: Sequence[str], prefixes: Sequence[str]) -> Sight:
        """See `Looks.look`."""
        return look(self.bucket, keys, prefixes)

    def lease_and_look(
        self, name: str, owner: str, keys: Sequence[str], prefixes: Sequence[str]
    ) -> tuple[Lease, Sight]:
        """See `Looks.lease_and_look`."""
        found = lease_and_look(self.bucket, name, owner, keys, prefixes)
        self._leased, self._marked = True, False
        return found

    def prepare_lease(self, name: str) -> None:
        """See `Looks.prepare_lease`."""
        if isinstance(self.bucket, Looks):
            self.bucket.prepare_lease(name)

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        changes = operation == "move" or (operation in _CHANGES and key.startswith(self._places))
        if changes and not (self._leased and self._marked):
            self._whole.write(self._mark, os.urandom(8).hex().encode(), ANY)
            self._marked = True
        return call()


_CHANGES = ("write", "replace", "delete", "copy")


def listed_versions(bucket: PagedVersions, prefixes: Mapping[str, str], most: int) -> dict[str, str] | None:
    """Return a version for each of the names that `prefixes` has as values, from all objects below the prefixes that
    are its own; None where that takes more than `most` requests."""
    starts = outermost(prefixes)
    order = [start.encode() for start in starts]
    sums = dict.fromkeys(prefixes.values(), 0)
    at = 0
    while at < len(starts):
        pages, inside = bucket.versions_from(starts[at]), True
        while inside:
            if most == 0:
                return None
            most -= 1
            page = next(pages, None)
            if page is None:
                return _texts(sums)
            for key, version in page:
                at = bisect_right(order, key.encode(), at) - 1
                if key.startswith(starts[at]):
                    name = prefixes[starts[at]]
                    sums[name] = (sums[name] + _number(key, version)) & _ALL_BITS
            inside = not page or page[-1][0].startswith(starts[at])
        at += 1
    return _texts(sums)


def _number(key: str, version: str) -> int:
    """Return a number to be added up: versions of one name are listed in any order."""
    return int.from_bytes(blake2b(f"{key}\n{version}".encode("utf-8", "surrogateescape"), digest_size=16).digest())


def _texts(sums: Mapping[str, int]) -> dict[str, str]:
    return {name: f"{number:x}" for name, number in sums.items()}
