"""A bucket around a bucket: what counting, failing and other wrappers share."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TypeVar

from retake.bucket import Bucket, Entry, Expect, Holder, Lease, Room
from retake.bucket.shared_writes import shared_writes

T = TypeVar("T")


class _WrappedLeases:
    """Pass every operation on leases on to `bucket`."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.url = bucket.url

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        """Carry out one operation by `call`, and return its result. Subclasses override this.

        `operation` is "read", "write", "replace", "set aside", "list", "delete", "copy", "lease", "holder", "break",
        "join" or "now". `key` is its key, prefix or lease; for "copy" it is the target.
        """
        return call()

    def lease(self, name: str, owner: str) -> Lease:
        return self.around("lease", name, lambda: self.bucket.lease(name, owner))

    def holder(self, name: str) -> Holder | None:
        return self.around("holder", name, lambda: self.bucket.holder(name))

    def break_lease(self, name: str, owner: str) -> int:
        return self.around("break", name, lambda: self.bucket.break_lease(name, owner))

    def join(self, name: str, handed: str) -> Lease:
        return self.around("join", name, lambda: self.bucket.join(name, handed))

    def alone(self, name: str) -> AbstractContextManager[None]:
        return self.bucket.alone(name)


class Wrapper(_WrappedLeases):
    """A `Bucket` that passes every operation on to `bucket`, through `around`. Leases are returned as they are."""

    def read(self, key: str) -> tuple[bytes, str]:
        return self.around("read", key, lambda: self.bucket.read(key))

    def write(self, key: str, data: bytes, expect: str | Expect) -> str:
        return self.around("write", key, lambda: self.bucket.write(key, data, expect))

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        return self.around("replace", key, lambda: shared_writes(self.bucket).replace(key, data, expect, aside))

    def set_aside(self, key: str, size: int) -> Room:
        return self.around("set aside", key, lambda: _WrappedRoom(self, key, self.bucket.set_aside(key, size)))

    def delete(self, key: str) -> None:
        return self.around("delete", key, lambda: self.bucket.delete(key))

    def copy(self, source: str, target: str) -> None:
        return self.around("copy", target, lambda: self.bucket.copy(source, target))

    def part(self, prefix: str) -> Bucket:
        from retake.bucket.prefixed import PrefixedBucket

        return PrefixedBucket(self, prefix)

    def now(self) -> datetime | None:
        return self.around("now", "", self.bucket.now)

    def list(self, prefix: str) -> list[Entry]:
        return self.around("list", prefix, lambda: self.bucket.list(prefix))


class _WrappedRoom:
    """Room in the bucket that `wrapper` wraps. A write into it is an operation like any other."""

    def __init__(self, wrapper: Wrapper, key: str, room: Room) -> None:
        self._wrapper = wrapper
        self._key = key
        self._room = room

    def write(self, data: bytes, expect: str | Expect) -> str:
        return self._wrapper.around("write", self._key, lambda: self._room.write(data, expect))

    def release(self) -> None:
        self._room.release()
