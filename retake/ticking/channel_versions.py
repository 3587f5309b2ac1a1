"""A version of each channel, which changes with everything its ticks depend on: its documents, and the names in its
folders. A tick over many channels compares versions, and opens the channels that changed.

On B2 and S3 versions come from one listing of the whole bucket, which skips what ticks ignore (archives, runs, dead
letters). It takes one request per 1,000 names, and one per skip. If that is too many, the marks of the channels are
listed instead: every process of Retake writes a mark before its first change of a channel under its lease. Changes by
other programs are then noticed only when the channel's look has become too old.
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

MAX_WHOLE_REQUESTS = 8
"""Maximum number of requests for a listing of the whole bucket."""

MARKS = "~changed/"
"""The folder of the marks, named after their channels. No channel's name begins with "~"."""

_ALL_BITS = 2**128 - 1


class ChannelVersion(NamedTuple):
    """The version of a channel. If versions are times, `changed_at` is the last change in UNIX seconds, else None."""

    version: str
    changed_at: float | None = None


def channel_versions(
    bucket: Bucket, places: Mapping[str, Sequence[str]], *, whole: bool = True
) -> dict[str, ChannelVersion]:
    """Return the version of each channel, or {} if the bucket supports none.

    `places` has, for each channel, keys of documents and folders (which end in "/") in the whole bucket. Without
    `whole`, only marks are listed on B2 and S3. Raises StorageError.
    """
    if isinstance(bucket, StampedPlaces):
        stamps = ((name, *bucket.stamped(keys)) for name, keys in places.items())
        return {name: ChannelVersion(digest([text]), changed_at) for name, text, changed_at in stamps}
    if not isinstance(bucket, PagedVersions):
        return {}
    prefixes = {key: name for name, keys in places.items() for key in keys}
    found = listed_versions(bucket, prefixes, MAX_WHOLE_REQUESTS) if whole else None
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
"""The prefix of versions that come from marks."""


class MarkedPart(Wrapper):
    """A channel's part of a bucket on B2 or S3, which marks changes.

    The channel's mark in the whole bucket is rewritten before the first change of one of its `places` under a lease,
    and before every change without one. A process that has listed the mark, and then takes the lease and remembers what
    it saw, will find a different mark after any change that it has not seen.
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


def listed_versions(bucket: PagedVersions, prefixes: Mapping[str, str], max_requests: int) -> dict[str, str] | None:
    """Return a version for each of the values of `prefixes`, computed from all objects below the prefixes that map to
    it, or None if that takes more than `max_requests` requests."""
    starts = outermost(prefixes)
    order = [start.encode() for start in starts]
    sums = dict.fromkeys(prefixes.values(), 0)
    at = 0
    while at < len(starts):
        pages, inside = bucket.versions_from(starts[at]), True
        while inside:
            if max_requests == 0:
                return None
            max_requests -= 1
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
    """Return a hash as a number. Numbers are summed, since the versions of one name are listed in any order."""
    return int.from_bytes(blake2b(f"{key}\n{version}".encode("utf-8", "surrogateescape"), digest_size=16).digest())


def _texts(sums: Mapping[str, int]) -> dict[str, str]:
    return {name: f"{number:x}" for name, number in sums.items()}
