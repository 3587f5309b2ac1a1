"""Who may write on B2: the lease, and what stands in for it where somebody writes without one."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from retake.bucket import ANY, Expect, Handover, Holder, Lease, LeaseTerms
from retake.bucket.b2.calls import B2Calls
from retake.bucket.b2.claims import B2Claims
from retake.bucket.b2.marks import State
from retake.bucket.kill_timer import Switch
from retake.clock import SystemClock
from retake.errors import LeaseHeld, LeaseLost, StorageError

_NAME = "writes"  # of the short lease
_SHORT = LeaseTerms(ttl_s=30.0, skew_s=5.0, margin_s=5.0)
_LOOKS_S = (0.05, 0.1, 0.2, 0.4)  # between tries to get it, then again each of the last

_here = threading.Lock()  # writers of one process wait for each other here rather than at B2


class WriteRight:
    """The leases taken or joined by one client, whose claims lie below `place`. Writes carry the token of the last."""

    def __init__(self, calls: B2Calls, place: str, terms: LeaseTerms, switch: Switch) -> None:
        self._calls, self._place, self._terms, self._switch = calls, place, terms, switch
        self._token: int | None = None  # of the lease that we write under
        self._since = 0.0  # when it was ours for certain, by B2's clock

    def take(self, name: str, owner: str) -> Lease:
        """See `Bucket.lease`."""
        from retake.bucket.claims import LeaseClock, take

        clock, terms = LeaseClock(), self._terms
        claims, switch = self._leases(), self._switch
        return self._under(take(claims, name, owner, clock=clock, terms=terms, renewing=self._leases, switch=switch))

    def join(self, name: str, handed: str) -> Lease:
        """See `Bucket.join`."""
        from retake.bucket.claims import LeaseClock, join

        return self._under(join(self._leases(), name, handed, clock=LeaseClock(), terms=self._terms))

    def holder(self, name: str) -> Holder | None:
        """See `Bucket.holder`."""
        from retake.bucket.claims import holder

        return holder(self._leases(), name, now=SystemClock().now().timestamp(), terms=self._terms)

    def break_lease(self, name: str, owner: str) -> int:
        """See `retake.bucket.claims.break_lease`."""
        from retake.bucket.claims import break_lease

        return break_lease(self._leases(), name, owner)

    def token_for(self, state: State) -> int:
        """The token that our next write over `state` carries. Raises LeaseLost if a later holder has written.

        Without a lease it is the highest that is there. A higher token than ours from before our lease was taken is no
        later holder's: it is of another lease, or somebody has removed the claims, and the tokens begin anew.
        """
        highest = state.best.token if state.best else 0
        if self._token is None or highest <= self._token:
            return self._token or highest
        if state.ours[-1].stamp > self._since:
            raise LeaseLost(
                f"a later holder of the lease has written {state.ours[-1].name} (token {highest}, ours is "
                f"{self._token}): nothing more is written"
            )
        return highest

    @contextmanager
    def alone(self, expect: str | Expect) -> Iterator[None]:
        """No other conditional write by Retake happens meanwhile: the lease sees to it, or a short one does."""
        if self._token is not None or expect is ANY:
            yield
            return
        with _here:
            lease = self._short_one()
            try:
                yield
            finally:
                lease.release()

    def _short_one(self) -> Lease:
        from retake.bucket.claims import LeaseClock, take

        claims, number = B2Claims(self._calls, f"{self._place}writes/"), 0
        while True:
            try:
                return take(claims, _NAME, "a writer", clock=LeaseClock(), terms=_SHORT)
            except LeaseHeld as error:
                pause = _LOOKS_S[min(number, len(_LOOKS_S) - 1)]
                if self._calls.left() <= pause:
                    raise StorageError(f"another program is writing there, try again: {error}") from error
                self._calls.sleep(pause)
                number += 1

    def _leases(self) -> B2Claims:
        return B2Claims(self._calls, self._place)

    def _under(self, lease: Lease) -> Lease:
        self._token, self._since = lease.token, (self._calls.date or 0.0) + 1  # B2 tells the time in whole seconds
        return _Noted(lease, self._no_longer_under)

    def _no_longer_under(self, token: int) -> None:
        if self._token == token:
            self._token = None


class _Noted:
    """`lease`, whose end `ended` hears of."""

    def __init__(self, lease: Lease, ended: Callable[[int], None]) -> None:
        self.token = lease.token
        self._lease, self._ended = lease, ended

    def check(self) -> None:
        self._lease.check()

    def left(self) -> float | None:
        return self._lease.left()

    def handover(self) -> Handover:
        return self._lease.handover()

    def release(self) -> None:
        self._ended(self.token)
        self._lease.release()
