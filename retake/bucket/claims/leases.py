"""The leases of one bucket in a store without locks."""

from collections.abc import Callable

from retake.attempts import attempts, repeating
from retake.bucket import Holder, LeaseTerms, check_key
from retake.bucket.claims.lease import ClaimLease, JoinedLease, KillTimer, LeaseClock, no_kill_timer
from retake.bucket.claims.protocol import break_lease, holder, join, take
from retake.bucket.claims.store import ClaimStore
from retake.clock import Clock, SystemClock
from retake.errors import LeaseHeld, StorageError

_PAUSES_S = (0.05, 0.1, 0.2, 0.4)


class ClaimLeases:
    """Leases by claims in the store that `connect` opens a client of.

    A lease taken here is renewed by a thread, and `kill_timer` is set to its end.
    """

    def __init__(
        self,
        connect: Callable[[], ClaimStore],
        *,
        terms: LeaseTerms,
        kill_timer: KillTimer = no_kill_timer,
        clock: Clock | None = None,
    ) -> None:
        self._connect, self._terms, self._kill_timer = connect, terms, kill_timer
        self._clock = clock or SystemClock()

    def lease(self, name: str, owner: str, store: ClaimStore | None = None) -> ClaimLease:
        """See `Leases.lease`. It is taken, and given back, through `store` if one is given."""
        store = store or self._connect()
        lease = take(store, check_key(name), owner, clock=LeaseClock(self._clock), terms=self._terms)
        lease.arm(self._kill_timer)
        lease.keep(self._connect)
        return lease

    def holder(self, name: str) -> Holder | None:
        """See `Leases.holder`."""
        now = self._clock.now().timestamp()
        return holder(self._connect(), check_key(name), now=now, terms=self._terms)

    def join(self, name: str, handed: str) -> JoinedLease:
        """See `Leases.join`."""
        return join(self._connect(), check_key(name), handed, clock=LeaseClock(self._clock), terms=self._terms)

    def break_lease(self, name: str, owner: str) -> int:
        """See `Leases.break_lease`."""
        return break_lease(self._connect(), check_key(name), owner)

    def wait(self, name: str, left: Callable[[], float]) -> ClaimLease:
        """Take a lease that is not renewed, for one read and one write, and wait for it while `left()` seconds remain.

        Raises StorageError if others keep holding it.
        """
        store, clock = self._connect(), LeaseClock(self._clock)
        for attempt in attempts(repeating(*_PAUSES_S), self._clock.sleep, left=left):
            try:
                return take(store, name, "a writer", clock=clock, terms=self._terms)
            except LeaseHeld as error:
                if attempt.last:
                    raise StorageError(f"another program is writing there, try again: {error}") from error
        raise AssertionError("the last attempt returns or raises")
