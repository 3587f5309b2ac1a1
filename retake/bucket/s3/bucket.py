"""A bucket in an S3-compatible store: Amazon S3, R2, MinIO and others.

A version is the store's ETag plus a random number of ours, which is kept with the object. So after a lost answer, the
object itself shows whether the write took effect. The store compares only the ETag, that is, the content: a write that
expects a version does not notice a change that was undone in the meantime.

Whether the store honours If-Match and If-None-Match is probed at the first write that needs it, and remembered in the
bucket. If it does not, comparing and writing are two steps. The contract then holds among Retake's own processes, which
write under the lease; what another program writes between the two steps is overwritten, and the check after the write
notices only what was written after it.

Objects whose names are not keys are not part of the bucket. Retake's own are below `.retake/` in the prefix.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, BinaryIO

from retake.bucket import (
    ABSENT,
    ANY,
    Bucket,
    Conflict,
    Entry,
    Expect,
    LeaseTerms,
    NotFound,
    check_prefix,
)
from retake.bucket.claims.lease import KillTimer, no_kill_timer
from retake.bucket.contract import is_key
from retake.bucket.diskless import ServiceBucket
from retake.bucket.moves import check_moves, not_the_same, same_content
from retake.bucket.s3.client import S3Client, connect, date_of, parse_url
from retake.bucket.s3.conditions import conditions
from retake.bucket.s3.leases import PATIENCE_S
from retake.bucket.s3.looks import S3Looks
from retake.bucket.s3.objects import S3Objects, etag
from retake.bucket.s3.removal import remove
from retake.clock import Clock, SystemClock


class S3Bucket(S3Looks, ServiceBucket):
    """The bucket that `url` names: s3://BUCKET/PREFIX?endpoint=URL&region=NAME. Thread safe.

    `kill_timer` is set to the end of each lease taken here. Requests are retried for `patience_s` seconds.
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

    def read_range(self, key: str, first: int, last: int) -> bytes:
        """See `RangedReads.read_range`."""
        return self._objects.read_range(key, first, last)

    def write_file(self, key: str, file: BinaryIO, expect: str | Expect) -> str:
        """See `FileWrites.write_file`. One request sends up to 5 GB."""
        self._objects.name(key)
        honoured = conditions(self._client, self._place) if expect is not ANY else None
        if honoured is None:
            return self._objects.put(key, file, {})
        if expect is ABSENT and honoured.absent:
            return self._objects.put(key, file, {"IfNoneMatch": "*"})
        if isinstance(expect, str) and honoured.match:
            return self._objects.put(key, file, {"IfMatch": f'"{expect.rpartition("-")[0]}"'})
        return self._objects.compare_and_put(key, file, expect)

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        """See `SharedWrites.replace`. With conditions nothing is ever displaced, so nothing is kept aside.

        Without them, the present object is copied aside before it is replaced; what another program writes between our
        last look and our write is lost.
        """
        if self._objects.name(key) == self._objects.name(aside):
            raise ValueError(f"the same key twice: {key!r}")
        if self._objects.version(aside) is not None:
            raise Conflict(f"{aside} of {self.url} exists: deal first with what an earlier write displaced")
        if isinstance(expect, Expect) or conditions(self._client, self._place).match:
            return self.write(key, data, expect)
        return self._objects.displace(key, BytesIO(data), expect, aside)

    def delete(self, key: str) -> None:
        remove(self._client, self._objects.name(key), f"delete {key}")

    def copy(self, source: str, target: str) -> None:
        self._objects.copy(source, target)

    def move(self, moves: Sequence[tuple[str, str]]) -> None:
        """See `Moves.move`. If the ETags differ, as for files uploaded in parts and some encrypted ones, the content is
        compared."""
        check_moves(moves)
        tags = self._objects.tags(source for source, _ in moves)
        for source, target in moves:
            if source not in tags:
                raise NotFound(source)
            self._objects.copy(source, target)
        copies = self._objects.tags(target for _, target in moves)
        for source, target in moves:
            if tags[source] != copies.get(target) and not same_content(self, source, target):
                raise not_the_same(source, target)
        for source, _ in moves:
            self.delete(source)

    def part(self, prefix: str) -> Bucket:
        from retake.bucket.wrappers import PrefixedBucket

        return PrefixedBucket(self, prefix)

    def now(self) -> datetime | None:
        here = f"{self._place.prefix}.retake/now"
        date = date_of(self._objects.ask("ask for the time", here, "list_objects_v2", Prefix=here, MaxKeys=1))
        return None if date is None else datetime.fromtimestamp(date, UTC)

    def versions_from(self, start: str) -> Iterator[Sequence[tuple[str, str]]]:
        """See `PagedVersions.versions_from`."""
        prefix = self._place.prefix
        after = {"StartAfter": f"{prefix}{start[:-1]}"} if start else {}  # StartAfter excludes the name itself
        for page in self._objects.pages("", **after):
            found = [(it["Key"].removeprefix(prefix), it) for it in page]
            yield [(key, _seen(it)) for key, it in found if key.encode() >= start.encode()]

    def scan(self, prefix: str, after: str = "") -> Iterator[Entry]:
        """See `Scans.scan`."""
        check_prefix(prefix)
        for found in self._objects.listed(prefix, after):
            key = found["Key"].removeprefix(self._place.prefix)
            if is_key(key):
                yield Entry(key, found["Size"], found["LastModified"].timestamp())


def _seen(listed: dict[str, Any]) -> str:
    return f"{etag(listed)} {listed['Size']} {listed['LastModified'].timestamp()}"
