"""Buckets without a disk of their own: in memory, and on the services."""

from collections.abc import Callable

from retake.bucket.contract import Expect, Objects, Room


class NoDisk:
    """What buckets without a disk of their own have in common: nothing can be set aside, and nothing need be."""

    def set_aside(self: Objects, key: str, size: int) -> Room:
        """See `Bucket.set_aside`."""
        return UnlimitedRoom(lambda data, expect: self.write(key, data, expect))


class UnlimitedRoom:
    """A `Room` that reserves nothing. `write` writes to the room's key in the bucket."""

    def __init__(self, write: Callable[[bytes, str | Expect], str]) -> None:
        self.write = write

    def release(self) -> None:
        """Do nothing: nothing was reserved."""
