"""The leases of one bucket in a store without locks."""

from collections.abc import Callable, Iterator

from retake.attempts import attempts, repeating
from retake.bucket import Holder, Lease, LeaseTerms, check_key
from retake.bucket.claims.lease import ClaimLease, KillTimer, LeaseClock
from retake.bucket.claims.protocol import break_lease, holder, join, take
from retake.bucket.claims.store import ClaimStore
from retake.bucket.scanning import Remnant
from retake.clock import Clock
from retake.errors import LeaseHeld, StorageError

_PAUSES_S = (0.05, 0.1, 0.2, 0.4)


class ClaimLeases:
    """`Leases` (see retake.bucket.contract) by claims, without `alone`, and `Remains` (see retake.bucket.scanning).

    `connect` opens a client of the store at a folder, which is "" except when clearing remnants. A lease taken here is
    renewed by a thread, and `kill_timer` is set to its end. `short` are the terms of leases by `wait_for`.
    """

    def __init__(
        self,
        connect: Callable[[str], ClaimStore],
        *,
        terms: LeaseTerms,
        short: LeaseTerms,
        kill_timer: KillTimer,
        clock: Clock,
    ) -> None:
        self._connect, self._terms, self._short, self._kill_timer = connect, terms, short, kill_timer
        self._clock = clock

    def lease(self, name: str, owner: str, store: ClaimStore | None = None) -> Lease:
        """See `Leases.lease`. The lease is taken and released through `store`, if given."""
        store = store or self._connect("")
        lease = take(store, check_key(name), owner, clock=LeaseClock(self._clock), terms=self._terms)
        lease.arm(self._kill_timer)
        lease.keep(lambda: self._connect(""))
        return lease

    def holder(self, name: str) -> Holder | None:
        now = self._clock.now().timestamp()
        return holder(self._connect(""), check_key(name), now=now, terms=self._terms)

    def join(self, name: str, handed: str) -> Lease:
        return join(self._connect(""), check_key(name), handed, clock=LeaseClock(self._clock), terms=self._terms)

    def break_lease(self, name: str, owner: str) -> int:
        return break_lease(self._connect(""), check_key(name), owner)

    def remains(self) -> Iterator[Remnant]:
        """See `Remains.remains`: claims and scratch objects."""
        from retake.bucket.claims.remains import claims_left, longest

        return claims_left(self._connect(""), longest(self._terms, self._short))

    def clear(self, remnant: Remnant) -> None:
        """See `Remains.clear`."""
        from retake.bucket.claims.remains import clear_claims, longest

        clear_claims(self._connect, remnant, LeaseClock(self._clock), longest(self._terms, self._short))


def wait_for(store: ClaimStore, name: str, left: Callable[[], float], *, terms: LeaseTerms, clock: Clock) -> ClaimLease:
    """Take a lease for one read and one write, waiting for it while `left()` seconds remain. It is not renewed.

    Raises StorageError if others keep holding it.
    """
    for attempt in attempts(repeating(*_PAUSES_S), clock.sleep, left=left):
        try:
            return take(store, name, "a writer", clock=LeaseClock(clock), terms=terms)
        except LeaseHeld as error:
            if attempt.last:
                raise StorageError(f"another program is writing there, try again: {error}") from error
    raise AssertionError("the last attempt returns or raises")
