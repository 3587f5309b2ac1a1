"""A part of a bucket as a bucket of its own: every key and every lease lies below one prefix."""

from contextlib import AbstractContextManager
from datetime import datetime

from retake.bucket import Bucket, Entry, Expect, Holder, Lease, NotFound, Room
from retake.bucket.shared_writes import shared_writes


class PrefixedBucket:
    """`bucket` below `prefix`, which ends in "/". Keys outside the prefix cannot be reached."""

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self.bucket = bucket
        self.url = f"{bucket.url.rstrip('/')}/{prefix.rstrip('/')}"
        self._prefix = prefix

    def read(self, key: str) -> tuple[bytes, str]:
        try:
            return self.bucket.read(self._prefix + key)
        except NotFound:
            raise NotFound(key) from None

    def write(self, key: str, data: bytes, expect: str | Expect) -> str:
        return self.bucket.write(self._prefix + key, data, expect)

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        return shared_writes(self.bucket).replace(self._prefix + key, data, expect, self._prefix + aside)

    def set_aside(self, key: str, size: int) -> Room:
        return self.bucket.set_aside(self._prefix + key, size)

    def list(self, prefix: str) -> list[Entry]:
        found = self.bucket.list(self._prefix + prefix)
        return [entry._replace(key=entry.key.removeprefix(self._prefix)) for entry in found]

    def delete(self, key: str) -> None:
        self.bucket.delete(self._prefix + key)

    def copy(self, source: str, target: str) -> None:
        try:
            self.bucket.copy(self._prefix + source, self._prefix + target)
        except NotFound:
            raise NotFound(source) from None

    def part(self, prefix: str) -> Bucket:
        return PrefixedBucket(self.bucket, self._prefix + prefix)

    def lease(self, name: str, owner: str) -> Lease:
        return self.bucket.lease(self._prefix + name, owner)

    def holder(self, name: str) -> Holder | None:
        return self.bucket.holder(self._prefix + name)

    def break_lease(self, name: str, owner: str) -> int:
        return self.bucket.break_lease(self._prefix + name, owner)

    def join(self, name: str, handed: str) -> Lease:
        return self.bucket.join(self._prefix + name, handed)

    def alone(self, name: str) -> AbstractContextManager[None]:
        return self.bucket.alone(self._prefix + name)

    def now(self) -> datetime | None:
        return self.bucket.now()
