"""A bucket in an S3-compatible store: Amazon S3, R2, MinIO and others.

A version is the store's ETag with a number of ours, which is kept with the object. So after a lost answer, a look at
the object shows whether the write was carried out. The store itself compares only the ETag, that is the content: a
write that expects a version does not notice a change that was undone in the meantime.

Whether the store honours If-Match and If-None-Match is tried out at the first write that needs it. If it does not,
comparing and writing are two steps. The contract then holds among Retake's own processes, which write under the lease;
what another program writes between the two steps is overwritten, and a look after the write only shows what was written
after it.

Objects whose names are not keys are not part of the bucket. Retake's own are below `.retake/` in the prefix.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from retake.bucket import ABSENT, ANY, Bucket, Conflict, Entry, Expect, LeaseTerms, Room, check_key, check_prefix
from retake.bucket.claims.lease import KillTimer, no_kill_timer
from retake.bucket.contract import UnlimitedRoom, is_key
from retake.bucket.s3.claims import date_of
from retake.bucket.s3.client import RequestRefused, S3Client, connect, parse_url
from retake.bucket.s3.conditions import conditions, remove
from retake.bucket.s3.leases import PATIENCE_S, S3Leases
from retake.bucket.s3.objects import S3Objects
from retake.clock import Clock, SystemClock


class S3Bucket(S3Leases):
    """The bucket that `url` names: s3://BUCKET/PREFIX?endpoint=URL&region=NAME. Thread safe.

    `kill_timer` is set to the end of each lease taken here. Requests are repeated for `patience_s` seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        lease_terms: LeaseTerms | None = None,
        kill_timer: KillTimer = no_kill_timer,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.url = url
        place, clock = parse_url(url), clock or SystemClock()
        client = S3Client(connect(place, connect_s=10, read_s=min(30.0, patience_s)), place, clock, patience_s)
        super().__init__(client, place, clock, lease_terms or LeaseTerms(), kill_timer)
        self._objects = S3Objects(self._client, place, url)

    def read(self, key: str) -> tuple[bytes, str]:
        return self._objects.read(key)

    def write(self, key: str, data: bytes, expect: str | Expect) -> str:
        self._objects.name(key)
        honoured = conditions(self._client, self._place) if expect is not ANY else None
        if honoured is None:
            return self._objects.put(key, data, {})
        if expect is ABSENT and honoured.absent:
            return self._objects.put(key, data, {"IfNoneMatch": "*"})
        if isinstance(expect, str) and honoured.match:
            return self._objects.put(key, data, {"IfMatch": f'"{expect.rpartition("-")[0]}"'})
        return self._objects.compare_and_put(key, data, expect)

    def set_aside(self, key: str, size: int) -> Room:
        return UnlimitedRoom(lambda data, expect: self.write(key, data, expect))

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        """See `SharedWrites.replace`. With conditions nothing is ever displaced, so nothing is kept aside.

        Without them, what is there is copied aside before it is replaced; what another program writes between our last
        look and our write is lost.
        """
        if self._objects.name(key) == self._objects.name(aside):
            raise ValueError(f"the same key twice: {key!r}")
        if self._objects.version(aside) is not None:
            raise Conflict(f"{aside} of {self.url} exists: deal first with what an earlier write displaced")
        if isinstance(expect, Expect) or conditions(self._client, self._place).match:
            return self.write(key, data, expect)
        return self._objects.displace(key, data, expect, aside)

    def delete(self, key: str) -> None:
        try:
            remove(self._client, self._objects.name(key))
        except RequestRefused as error:
            raise self._client.failed(f"delete {key}", error) from error

    def copy(self, source: str, target: str) -> None:
        self._objects.copy(source, target)

    def part(self, prefix: str) -> Bucket:
        from retake.bucket.wrappers import PrefixedBucket

        return PrefixedBucket(self, prefix)

    def now(self) -> datetime | None:
        here = f"{self._place.prefix}.retake/now"
        date = date_of(self._objects.ask("ask for the time", here, "list_objects_v2", Prefix=here, MaxKeys=1))
        return None if date is None else datetime.fromtimestamp(date, UTC)

    def find(self, stem: str, endings: Iterable[str]) -> list[Entry]:
        keys = {check_key(f"{stem}{ending}") for ending in endings}
        return [entry for entry in self.list(stem) if entry.key in keys] if keys else []

    def list(self, prefix: str) -> list[Entry]:
        check_prefix(prefix)
        found: list[Entry] = []
        more: dict[str, str] = {}
        while True:
            start = f"{self._place.prefix}{prefix}"
            answer = self._objects.ask(f"list {prefix}*", prefix, "list_objects_v2", Prefix=start, **more)
            found += map(self._entry, answer.get("Contents", []))
            if not answer.get("IsTruncated"):
                return sorted(entry for entry in found if is_key(entry.key))
            more = {"ContinuationToken": answer["NextContinuationToken"]}

    def _entry(self, found: dict[str, Any]) -> Entry:
        key = found["Key"].removeprefix(self._place.prefix)
        return Entry(key, found["Size"], found["LastModified"].timestamp())
