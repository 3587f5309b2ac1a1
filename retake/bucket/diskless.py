"""Buckets without a disk of their own: in memory, and on the services."""

from collections.abc import Callable, Iterable
from io import BytesIO

from retake.bucket.contract import Entry, Expect, FileWrites, Objects, Room, Scans, check_key


class NoDisk:
    """A mixin for buckets without a disk of their own, which have no room to reserve."""

    def set_aside(self: Objects, key: str, size: int) -> Room:
        """See `Bucket.set_aside`."""
        return UnlimitedRoom(lambda data, expect: self.write(key, data, expect))


class ServiceBucket(NoDisk):
    """A mixin for buckets on a service: writes go through `write_file`, and `find` lists."""

    def write(self: FileWrites, key: str, data: bytes, expect: str | Expect) -> str:
        return self.write_file(key, BytesIO(data), expect)

    def find(self: Objects, stem: str, endings: Iterable[str]) -> list[Entry]:
        keys = {check_key(f"{stem}{ending}") for ending in endings}
        return [entry for entry in self.list(stem) if entry.key in keys] if keys else []

    def list(self: Scans, prefix: str) -> list[Entry]:
        return sorted(self.scan(prefix))


class UnlimitedRoom:
    """A `Room` that reserves nothing. `write` writes to the room's key in the bucket."""

    def __init__(self, write: Callable[[bytes, str | Expect], str]) -> None:
        self.write = write

    def release(self) -> None:
        """Do nothing: nothing was reserved."""
