"""Fencing on B2: every write carries the token of the lease that it was made under."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from retake.bucket import ANY, Expect, Handover, Lease, LeaseTerms
from retake.bucket.b2.calls import B2Calls
from retake.bucket.b2.claims import B2ClaimStore
from retake.bucket.b2.marks import State
from retake.bucket.claims.leases import ClaimLeases
from retake.errors import LeaseLost

_SHORT = LeaseTerms(ttl_s=30.0, skew_s=5.0, margin_s=5.0)

_here = threading.Lock()  # writers of one process wait for each other here rather than at B2


class Fencing:
    """The tokens of one client, whose own things are below `place`. Its writes carry that of the latest lease."""

    def __init__(self, calls: B2Calls, place: str) -> None:
        self._calls = calls
        self._short = ClaimLeases(lambda: B2ClaimStore(calls, f"{place}writes/"), terms=_SHORT)
        self._token: int | None = None  # of the lease that we write under
        self._since = 0.0  # when that was certainly ours, by B2's clock

    def under(self, lease: Lease) -> Lease:
        """Return `lease`; until it is released, writes carry its token."""
        self._token, self._since = lease.token, (self._calls.date or 0.0) + 1  # B2's dates are in whole seconds
        return _FencedLease(lease, self._no_longer_under)

    def token_for(self, state: State) -> int:
        """Return the token that our next write over `state` carries: without a lease, the highest that is there.

        Raises LeaseLost if a later holder has written. A higher token from before our lease was taken is not a later
        holder's: it belongs to another lease, or somebody removed the claims and the tokens began anew.
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
        """Keep other conditional writes by Retake out of the block: by the lease, or else by a short one."""
        if self._token is not None or expect is ANY:
            yield
            return
        with _here:
            lease = self._short.wait("writes", self._calls.left)
            try:
                yield
            finally:
                lease.release()

    def _no_longer_under(self, token: int) -> None:
        if self._token == token:
            self._token = None


class _FencedLease:
    """`lease`; `ended` is called with its token when it is released."""

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
