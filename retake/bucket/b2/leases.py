"""The leases of a bucket on B2."""

from contextlib import AbstractContextManager, nullcontext

from retake.bucket import Holder, Lease, LeaseTerms
from retake.bucket.b2.calls import B2Calls
from retake.bucket.b2.claims import B2ClaimStore
from retake.bucket.b2.fencing import Fencing
from retake.bucket.claims.leases import ClaimLeases
from retake.bucket.kill_timer import KillTimer


class B2Leases:
    """`Leases` (see retake.bucket.contract) by claims below `place`, fenced by their tokens."""

    def __init__(self, calls: B2Calls, place: str, terms: LeaseTerms, kill_timer: KillTimer) -> None:
        self._fencing = Fencing(calls, place)
        self._leases = ClaimLeases(lambda: B2ClaimStore(calls, place), terms=terms, kill_timer=kill_timer)

    def lease(self, name: str, owner: str) -> Lease:
        return self._fencing.under(self._leases.lease(name, owner))

    def holder(self, name: str) -> Holder | None:
        return self._leases.holder(name)

    def join(self, name: str, handed: str) -> Lease:
        return self._fencing.under(self._leases.join(name, handed))

    def break_lease(self, name: str, owner: str) -> int:
        return self._leases.break_lease(name, owner)

    def alone(self, name: str) -> AbstractContextManager[None]:
        """See `Leases.alone`. A write without a lease that expects a version takes a short lease for itself."""
        return nullcontext()
