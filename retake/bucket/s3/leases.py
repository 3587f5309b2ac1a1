"""The leases of a bucket in an S3-compatible store, and the claims that they are built from."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from retake.attempts import countdown
from retake.bucket import LeaseTerms, check_key
from retake.bucket.claims.lease import KillTimer
from retake.bucket.claims.leases import ClaimLeases, wait_for
from retake.bucket.claims.store import Claims, FarClaims, Stamped
from retake.bucket.s3.client import AnswerLost, RequestRefused, S3Client, S3Place, connect, date_of
from retake.bucket.s3.conditions import conditions
from retake.bucket.s3.removal import remove
from retake.clock import Clock
from retake.errors import LeaseLost, StorageError

PATIENCE_S = 30.0  # for a request of the bucket
_LEASE_PATIENCE_S = 10.0  # for a request of a lease
_SHORT = LeaseTerms(ttl_s=60.0, skew_s=5.0, margin_s=5.0)  # of a lease for one read and one write


class S3ClaimStore(FarClaims):
    """A `ClaimStore` in `place`. `client` needs short timeouts and little patience, because a lease does not wait."""

    def __init__(self, client: S3Client, place: S3Place) -> None:
        self._client = client
        self._place = place

    @property
    def conditional(self) -> bool:
        return conditions(self._client, self._place).absent

    def claims(self, prefix: str) -> Claims:
        found: list[Stamped] = []
        date: float | None = None
        more: dict[str, str] = {}
        while True:
            answer = self._list(prefix, more)
            date = date if found else date_of(answer)  # that of the first page, which is the earliest
            found += [Stamped(self._name(it["Key"]), it["LastModified"].timestamp()) for it in answer["Contents"]]
            if not answer.get("IsTruncated"):
                return Claims(tuple(found), date)
            more = {"ContinuationToken": answer["NextContinuationToken"]}

    def _list(self, prefix: str, more: dict[str, str]) -> dict[str, Any]:
        answer = self._client.must("list the claims", "list_objects_v2", Prefix=self._key(prefix), **more)
        return {"Contents": [], **answer}

    def claim(self, name: str) -> float:
        try:
            answer = self._client.once("put_object", Key=self._key(name), Body=b"")
        except (RequestRefused, AnswerLost) as error:
            raise self._client.failed(f"store the claim {name}", error) from error
        date = date_of(answer)
        if date is None:
            raise self._client.failed(f"store the claim {name}", ValueError("the answer has no Date"))
        return date

    def claim_if_absent(self, name: str, nonce: str) -> bool:
        try:
            self._client.once("put_object", Key=self._key(name), Body=nonce.encode(), IfNoneMatch="*")
        except (RequestRefused, AnswerLost) as error:
            if isinstance(error, RequestRefused) and error.status not in (409, 412):
                raise self._client.failed(f"store the claim {name}", error) from error
            found = self.nonce(name)
            if found is None and isinstance(error, RequestRefused) and error.status == 412:
                return False  # somebody had it and has released it since
            if found is None:  # a 409 caused by others, or the request never arrived: nobody has it, and we withdraw
                raise self._client.failed(f"store the claim {name}", error) from error
            return found == nonce
        return True

    def nonce(self, name: str) -> str | None:
        try:
            body: bytes = self._client.ask(f"read the claim {name}", "get_object", Key=self._key(name))["Body"]
        except RequestRefused as error:
            if error.status == 404:
                return None
            raise self._client.failed(f"read the claim {name}", error) from error
        return body.decode("utf-8", "replace")

    def withdraw(self, name: str) -> None:
        remove(self._client, self._key(name), f"remove the claim {name}")

    def _key(self, name: str) -> str:
        return f"{self._place.prefix}.retake/{name}"

    def _name(self, key: str) -> str:
        return key.removeprefix(f"{self._place.prefix}.retake/")


class S3Leases(ClaimLeases):
    """`Leases` (see retake.bucket.contract) by claims below `.retake/` in `place`."""

    def __init__(
        self, client: S3Client, place: S3Place, clock: Clock, terms: LeaseTerms, kill_timer: KillTimer
    ) -> None:
        super().__init__(self._claim_store, terms=terms, short=_SHORT, kill_timer=kill_timer, clock=clock)
        self._client, self._place = client, place

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """See `Leases.alone`."""
        honoured = conditions(self._client, self._place)
        if honoured.absent and honoured.match:
            yield
            return
        left = countdown(PATIENCE_S, self._clock)
        lease = wait_for(self._connect(""), check_key(f"{name}-writes"), left, terms=_SHORT, clock=self._clock)
        try:
            yield
            try:
                lease.check()
            except LeaseLost as error:
                raise StorageError(f"writing {name} took longer than the lease for it lasts; try again") from error
        finally:
            lease.release()

    def _claim_store(self, _folder: str) -> S3ClaimStore:
        return S3ClaimStore(self._claim_client(), self._place)

    def _claim_client(self) -> S3Client:
        """Open a separate client: requests of a lease have short timeouts and wait for no others."""
        read_s = min(_LEASE_PATIENCE_S, self._terms.ttl_s / 3)
        client = connect(self._place, connect_s=min(5.0, read_s), read_s=read_s)
        return S3Client(client, self._place, self._clock, read_s)
