"""The leases of a bucket on B2, built from claims: small files that are never overwritten, and a consistent listing.

B2 refuses conditional headers on its S3 API (501) and has none on its native one. So claims here are never made by
create-if-absent, whatever a server answers.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import BytesIO

from retake.bucket import ANY, Expect, Handover, Lease, LeaseTerms
from retake.bucket.b2.calls import B2Calls
from retake.bucket.b2.marks import State, Version
from retake.bucket.claims.lease import KillTimer
from retake.bucket.claims.leases import ClaimLeases, wait_for
from retake.bucket.claims.store import Claims, ClaimStore, FarClaims, Stamped
from retake.bucket.contract import without_thread
from retake.bucket.scanning import DRAFT, Remnant
from retake.clock import SystemClock
from retake.errors import LeaseLost

_OWN_FOLDER = ".retake/"
_SHORT = LeaseTerms(ttl_s=30.0, skew_s=5.0, margin_s=5.0)

_one_writer = threading.Lock()  # threads of one process wait here rather than at B2


class Fencing:
    """The fencing token of one client's writes: that of its latest lease. Its claims are below `place`."""

    def __init__(self, calls: B2Calls, place: str) -> None:
        self._calls, self._place = calls, place
        self._token: int | None = None  # of the lease that we write under
        self._since = 0.0  # a moment by B2's clock at which that lease was certainly ours

    def under(self, lease: Lease) -> Lease:
        """Return `lease`, wrapped; until it is released, writes carry its token."""
        self._token, self._since = lease.token, (self._calls.date or 0.0) + 1  # B2's dates are in whole seconds
        return _FencedLease(lease, self._release)

    def token_for(self, state: State) -> tuple[int, int]:
        """Return the token that our next write over `state` carries, and how much was added to it (`Mark.raised`).
        Without a lease, those of the highest mark that is there.

        Raises LeaseLost if a later holder has written. A higher token that dates from before our lease is not a later
        holder's: it belongs to another lease, or the claims are gone and the tokens started over. Ours is added to it.
        """
        highest, raised = (state.best.token, state.best.raised) if state.best else (0, 0)
        if self._token is None:
            return highest, raised
        if (theirs := highest - raised) > self._token:
            if state.ours[-1].stamp > self._since:
                raise LeaseLost(
                    f"a later holder of the lease has written {state.ours[-1].name} (token {theirs}, ours is "
                    f"{self._token}): nothing more is written"
                )
            raised = highest
        return self._token + raised, raised

    @contextmanager
    def alone(self, expect: str | Expect) -> Iterator[None]:
        """Exclude other conditional writes by Retake during the block, by the lease that is held or by a short one."""
        if self._token is not None or expect is ANY:
            yield
            return
        with _one_writer:
            store = B2ClaimStore(self._calls, f"{self._place}writes/")
            lease = wait_for(store, "writes", self._calls.left, terms=_SHORT, clock=SystemClock())
            try:
                yield
            finally:
                lease.release()

    def _release(self, token: int) -> None:
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

    def without_thread(self) -> AbstractContextManager[None]:
        return without_thread(self._lease)

    def release(self) -> None:
        self._ended(self.token)
        self._lease.release()


DEADLINE_S = 15.0  # for one call of a lease, including retries and pauses


class B2ClaimStore(FarClaims):
    """A `ClaimStore` below `place` in the bucket of `calls`."""

    conditional = False

    def __init__(self, calls: B2Calls, place: str) -> None:
        self._calls, self._place = calls, place
        self._ids: dict[str, set[str]] = {}  # of the versions we have seen, so that removing them needs no listing

    def claims(self, prefix: str) -> Claims:
        with self._calls.within(DEADLINE_S):
            found = self._listed(self._place + prefix)
        for version in found:
            self._ids.setdefault(version.name, set()).add(version.id)
        stamped = tuple(Stamped(it.name.removeprefix(self._place), it.stamp) for it in found if not it.hides)
        return Claims(stamped, self._calls.date)

    def claim(self, name: str) -> float:
        """See `ClaimStore.claim`. B2 gives stamps in milliseconds, but orders by seconds only."""
        with self._calls.within(DEADLINE_S):
            stored = self._calls.upload(self._place + name, BytesIO(), {}, once=True)
        self._ids.setdefault(stored.name, set()).add(stored.id)
        return stored.stamp

    def withdraw(self, name: str) -> None:
        whole = self._place + name
        with self._calls.within(DEADLINE_S):
            ids = self._ids.get(whole) or {version.id for version in self._calls.versions_of(whole)}
            for version_id in ids:
                self._calls.delete(version_id, whole)
        self._ids.pop(whole, None)

    def _listed(self, name: str) -> list[Version]:
        """Return every version of every name that begins with `name`."""
        return self._calls.versions(name)

    def claim_if_absent(self, name: str, nonce: str) -> bool:
        raise NotImplementedError("B2 has no conditional writes")

    def nonce(self, name: str) -> str | None:
        raise NotImplementedError("B2 has no conditional writes")


class B2Leases(ClaimLeases):
    """`Leases` (see retake.bucket.contract) by claims in `place`, "<prefix>.retake/", fenced by tokens."""

    def __init__(self, calls: B2Calls, place: str, terms: LeaseTerms, kill_timer: KillTimer) -> None:
        def connect(folder: str) -> B2ClaimStore:
            return B2ClaimStore(calls, place + folder)

        super().__init__(connect, terms=terms, short=_SHORT, kill_timer=kill_timer, clock=SystemClock())
        self._fencing = Fencing(calls, place)
        self._calls, self._place = calls, place

    def lease(self, name: str, owner: str, store: ClaimStore | None = None) -> Lease:
        return self._fencing.under(super().lease(name, owner, store))

    def join(self, name: str, handed: str) -> Lease:
        return self._fencing.under(super().join(name, handed))

    def alone(self, name: str) -> AbstractContextManager[None]:
        """See `Leases.alone`. Does nothing: a conditional write without a lease takes a short one for itself."""
        return nullcontext()

    def remains(self) -> Iterator[Remnant]:
        """See `Remains.remains`: claims, scratch objects, and unfinished large files. A part has its own claims. The
        size of an unfinished file is given as 0, because asking for it costs a call."""
        from retake.bucket.b2.large import abandoned

        yield from super().remains()
        prefix = self._place.removesuffix(_OWN_FOLDER)
        for it in abandoned(self._calls.connection, prefix):
            yield Remnant(it.name.removeprefix(prefix), DRAFT, 0, it.begun_at, removable=True)

    def clear(self, remnant: Remnant) -> None:
        """See `Remains.clear`."""
        if remnant.kind == DRAFT:
            from retake.bucket.b2.large import cancel_abandoned

            cancel_abandoned(self._calls.connection, self._place.removesuffix(_OWN_FOLDER) + remnant.name)
        else:
            super().clear(remnant)
