"""The leases of a bucket in an S3-compatible store."""

from collections.abc import Iterator
from contextlib import contextmanager

from retake.attempts import countdown
from retake.bucket import LeaseTerms, check_key
from retake.bucket.claims.lease import KillTimer
from retake.bucket.claims.leases import ClaimLeases, wait_for
from retake.bucket.s3.claims import S3ClaimStore
from retake.bucket.s3.client import S3Client, S3Place, connect
from retake.bucket.s3.conditions import conditions
from retake.clock import Clock
from retake.errors import LeaseLost, StorageError

PATIENCE_S = 30.0  # for a request of the bucket
_LEASE_PATIENCE_S = 10.0  # for a request of a lease
_SHORT = LeaseTerms(ttl_s=60.0, skew_s=5.0, margin_s=5.0)  # of a lease for one read and one write


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
        """Open a client of its own: requests of a lease are short, and wait for no others."""
        read_s = min(_LEASE_PATIENCE_S, self._terms.ttl_s / 3)
        client = connect(self._place, connect_s=min(5.0, read_s), read_s=read_s)
        return S3Client(client, self._place, self._clock, read_s)
