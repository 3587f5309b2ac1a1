"""A bucket in an S3-compatible store: Amazon S3, R2, MinIO, and others that speak the same.

A version is the store's ETag with a number of ours, which is kept with the object: so what became of a write whose
answer was lost can be seen by looking. The store compares only the ETag, that is the bytes: for a write that expects
a version, what was changed and changed back to the same bytes meanwhile was never changed.

Whether the store honours If-Match and If-None-Match is tried out at the first write that needs it. Where it does not,
comparing and writing are two steps: what is promised then holds among Retake's own processes, which write under the
lease, while what another program writes between the two steps is overwritten; a look after the write shows only what
came after it.

Objects whose names are no keys are not part of the bucket. Below «.retake/» in the prefix lie our own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from retake.bucket import (
    ABSENT,
    ANY,
    Bucket,
    Conflict,
    Entry,
    Expect,
    Holder,
    Lease,
    LeaseTerms,
    NotFound,
    Room,
    check_key,
    check_prefix,
)
from retake.bucket.claims import break_lease, holder, join, take
from retake.bucket.claims.lease_clock import LeaseClock
from retake.bucket.kill_timer import Switch, no_switch
from retake.bucket.room import NoLimit
from retake.bucket.s3.claims import S3ClaimStore, date_of
from retake.bucket.s3.client import Answered, Lost, Wire, connect, parse_url
from retake.bucket.s3.conditions import conditions, remove, remove_quietly
from retake.clock import Clock, SystemClock
from retake.errors import LeaseHeld, LeaseLost, StorageError

_PATIENCE_S = 30.0  # for a request of the bucket
_LEASE_PATIENCE_S = 10.0  # for one of the lease
_MARK = "retake"  # the metadata that carries the number of a write
_SHORT = LeaseTerms(ttl_s=60.0, skew_s=5.0, margin_s=5.0)  # of a lease for one read and one write
_LOOKS_S = (0.05, 0.1, 0.2, 0.4)  # between tries to get it, then again each of the last


class S3Bucket:
    """The bucket that `url` names (s3://BUCKET/PREFIX?endpoint=URL&region=NAME). Any number of threads may use it.

    `switch` is set to the end of each lease taken here (`retake.bucket.kill_timer`).
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        lease_terms: LeaseTerms | None = None,
        switch: Switch = no_switch,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self.url = url
        self._place = parse_url(url)
        self._clock = clock or SystemClock()
        self._terms = lease_terms or LeaseTerms()
        self._switch = switch
        client = connect(self._place, connect_s=10, read_s=min(30.0, patience_s))
        self._wire = Wire(client, self._place, self._clock, patience_s)

    def read(self, key: str) -> tuple[bytes, str]:
        answer = self._ask(f"read {key}", key, "get_object", Key=self._key(key))
        return answer["Body"], _version(answer)

    def write(self, key: str, data: bytes, expect: str | Expect) -> str:
        self._key(key)
        honoured = conditions(self._wire, self._place) if expect is not ANY else None
        if honoured is None:
            return self._put(key, data, {})
        if expect is ABSENT and honoured.absent:
            return self._put(key, data, {"IfNoneMatch": "*"})
        if isinstance(expect, str) and honoured.match:
            return self._put(key, data, {"IfMatch": f'"{expect.rpartition("-")[0]}"'})
        return self._compare_and_put(key, data, expect)

    def set_aside(self, key: str, size: int) -> Room:
        return NoLimit(lambda data, expect: self.write(key, data, expect))

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        """See `Bucket.replace`. With conditions nothing is ever displaced, so nothing is left aside.

        Without, what is there is copied aside before it is replaced; what another program writes after our last look
        and before our write arrives is lost.
        """
        if self._key(key) == self._key(aside):
            raise ValueError(f"the same key twice: {key!r}")
        if self._look(aside) is not None:
            raise Conflict(f"{aside} of {self.url} is there: what was displaced earlier has to be dealt with first")
        if isinstance(expect, Expect) or conditions(self._wire, self._place).match:
            return self.write(key, data, expect)
        return self._displace(key, data, expect, aside)

    def list(self, prefix: str) -> list[Entry]:
        check_prefix(prefix)
        found: list[Entry] = []
        more: dict[str, str] = {}
        while True:
            start = f"{self._place.prefix}{prefix}"
            answer = self._ask(f"list {prefix}*", prefix, "list_objects_v2", Prefix=start, **more)
            found += map(self._entry, answer.get("Contents", []))
            if not answer.get("IsTruncated"):
                return sorted(entry for entry in found if _is_key(entry.key))
            more = {"ContinuationToken": answer["NextContinuationToken"]}

    def delete(self, key: str) -> None:
        try:
            remove(self._wire, self._key(key))
        except Answered as error:
            raise self._wire.failed(f"delete {key}", error) from error

    def copy(self, source: str, target: str) -> None:
        self._ask(
            f"copy {source} to {target}",
            source,
            "copy_object",
            CopySource={"Bucket": self._place.bucket, "Key": self._key(source)},
            Key=self._key(target),
            MetadataDirective="REPLACE",
            Metadata={_MARK: _number()},  # a version that was never there before
        )

    def part(self, prefix: str) -> Bucket:
        from retake.bucket.prefixed import PrefixedBucket

        return PrefixedBucket(self, prefix)

    def lease(self, name: str, owner: str) -> Lease:
        check_key(name)
        return take(
            self._claim_store(),
            name,
            owner,
            clock=LeaseClock(self._clock),
            terms=self._terms,
            renewing=self._claim_store,
            switch=self._switch,
        )

    def holder(self, name: str) -> Holder | None:
        now = self._clock.now().timestamp()
        return holder(self._claim_store(), check_key(name), now=now, terms=self._terms)

    def join(self, name: str, handed: str) -> Lease:
        return join(self._claim_store(), name, handed, clock=LeaseClock(self._clock), terms=self._terms)

    def break_lease(self, name: str, owner: str) -> int:
        return break_lease(self._claim_store(), check_key(name), owner)

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """See `Bucket.alone`."""
        honoured = conditions(self._wire, self._place)
        if honoured.absent and honoured.match:
            yield
            return
        lease = self._short_lease(check_key(f"{name}-writes"))
        try:
            yield
            lease.check()
        except LeaseLost as error:
            raise StorageError(f"writing {name} took longer than the lease for it lasts; try again") from error
        finally:
            lease.release()

    def _short_lease(self, name: str) -> Lease:
        began, pauses = self._clock.now().timestamp(), iter(_LOOKS_S)
        while True:
            try:
                return take(self._claim_store(), name, "a writer", clock=LeaseClock(self._clock), terms=_SHORT)
            except LeaseHeld as error:
                if self._clock.now().timestamp() - began > _PATIENCE_S:
                    raise StorageError(f"another program is writing there, try again: {error}") from error
                self._clock.sleep(next(pauses, _LOOKS_S[-1]))

    def now(self) -> datetime | None:
        here = f"{self._place.prefix}.retake/now"
        date = date_of(self._ask("ask the time", here, "list_objects_v2", Prefix=here, MaxKeys=1))
        return None if date is None else datetime.fromtimestamp(date, UTC)

    def _claim_store(self) -> S3ClaimStore:
        """A client of its own: requests of the lease are short, and wait for no other."""
        read_s = min(_LEASE_PATIENCE_S, self._terms.ttl_s / 3)
        client = connect(self._place, connect_s=min(5.0, read_s), read_s=read_s)
        return S3ClaimStore(Wire(client, self._place, self._clock, read_s), self._place)

    def _key(self, key: str) -> str:
        return f"{self._place.prefix}{check_key(key)}"

    def _entry(self, found: dict[str, Any]) -> Entry:
        key = found["Key"].removeprefix(self._place.prefix)
        return Entry(key, found["Size"], found["LastModified"].timestamp())

    def _ask(self, doing: str, key: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """A request that may be repeated. Raises NotFound (`key`), StorageError."""
        try:
            return self._wire.ask(doing, operation, **arguments)
        except Answered as error:
            if error.status == 404 and error.code != "NoSuchBucket":
                raise NotFound(key) from None
            raise self._wire.failed(doing, error) from error

    def _look(self, key: str) -> str | None:
        """The version of what is there."""
        try:
            return _version(self._ask(f"look at {key}", key, "head_object", Key=self._key(key)))
        except NotFound:
            return None

    def _put(self, key: str, data: bytes, condition: dict[str, str]) -> str:
        """Write once, by all appearances: after a lost answer or a refusal, look whether it is there."""
        number = _number()
        doing = f"write {key}"

        def attempt() -> str:
            try:
                answer = self._wire.once(
                    "put_object", Key=self._key(key), Body=data, Metadata={_MARK: number}, **condition
                )
                return f"{_etag(answer)}-{number}"
            except (Answered, Lost) as error:
                return self._after(key, number, error, bool(condition))

        return self._wire.repeat(doing, attempt)

    def _after(self, key: str, number: str, error: Exception, conditional: bool) -> str:
        """What to make of `error`: the version if the write was carried out after all. Raises Conflict, Lost, …"""
        refused = isinstance(error, Answered) and error.status in (404, 409, 412) and conditional
        if isinstance(error, Answered) and not (refused and error.code != "NoSuchBucket"):
            raise self._wire.failed(f"write {key}", error) from error
        found = self._look(key)
        if found is not None and found.endswith(f"-{number}"):
            return found
        if isinstance(error, Answered) and error.status != 409:
            raise Conflict(
                f"{key} of {self.url} is not what was read: somebody else wrote it; nothing was changed"
            ) from None
        raise Lost(str(error)) from error  # 409: somebody else's write was under way at the same moment

    def _compare_and_put(self, key: str, data: bytes, expect: str | Expect) -> str:
        """The weaker way, for stores without conditions."""
        self._compare(key, expect, "nothing was changed")
        version = self._put(key, data, {})
        self._compare(key, version, "it was written after us")
        return version

    def _compare(self, key: str, expect: str | Expect, so: str) -> None:
        if (self._look(key) or ABSENT) != expect:
            raise Conflict(f"{key} of {self.url} is not what was expected: somebody else wrote it; {so}")

    def _displace(self, key: str, data: bytes, expect: str, aside: str) -> str:
        self._compare(key, expect, "nothing was changed")
        try:
            self.copy(key, aside)
        except NotFound:
            raise Conflict(f"{key} of {self.url} has just been removed by another program") from None
        version = self._compare_and_put_beside(key, data, expect, aside)
        remove_quietly(self._wire, self._key(aside))
        return version

    def _compare_and_put_beside(self, key: str, data: bytes, expect: str, aside: str) -> str:
        """While a copy lies aside. If nothing was written the copy goes, else it stays until it was dealt with."""
        try:
            self._compare(key, expect, "nothing was changed")
        except Conflict:
            remove_quietly(self._wire, self._key(aside))
            raise
        version = self._put(key, data, {})
        self._compare(key, version, f"what was there before is kept as {aside}")
        return version


def _number() -> str:
    return os.urandom(8).hex()


def _etag(answer: dict[str, Any]) -> str:
    return str(answer["ETag"]).strip('"')


def _version(answer: dict[str, Any]) -> str:
    return f"{_etag(answer)}-{answer.get('Metadata', {}).get(_MARK, '')}"


def _is_key(name: str) -> bool:
    try:
        check_key(name)
    except ValueError:
        return False
    return True
