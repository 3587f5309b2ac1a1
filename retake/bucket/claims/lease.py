"""A lease held by claims, for its holder and for the holder's scripts.

It is lost when its claim is gone or ended, or when its deadline has passed. A rival's claim alone does not end it.
Elapsed time is bounded from both sides; each bound is used where being wrong costs an attempt, not safety.

The kill timer: the kernel kills this process when its lease has expired. Without it, a process that was frozen between
checking its lease and acting on the answer would act when it wakes, however late. With the timer set, the kernel
delivers the signal before the process runs one more instruction. The clock of a paused virtual machine stands still, so
a pause of the whole machine goes unnoticed.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import NamedTuple

from retake.bucket import Handover, LeaseTerms
from retake.bucket.claims.names import Stem, highest, last_end, parse
from retake.bucket.claims.renewal import RenewalThread
from retake.bucket.claims.store import Claims, ClaimStore
from retake.clock import Clock, SystemClock
from retake.errors import LeaseLost, StorageError

_log = logging.getLogger(__name__)


KillTimer = Callable[[float], None]
"""Called with the seconds until the process must end, replacing any earlier timer; 0 clears the timer."""


def set_kill_timer(seconds: float) -> None:
    """Kill this process by SIGALRM after `seconds`, replacing any earlier timer. 0 clears the timer."""
    if seconds and signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        with suppress(ValueError):  # only the main thread may do this, and it sets the timer first
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
    if seconds:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, seconds)


def no_kill_timer(seconds: float) -> None:
    """Do nothing: for processes that also do work outside their lease."""


class ClockReading(NamedTuple):
    """One moment, by two clocks, in seconds."""

    monotonic: float
    wall: float


class LeaseClock:
    """The machine's monotonic clock and its time of day.

    The monotonic clock runs at the right rate, but may stop while the machine is suspended. The time of day does not
    stop then, but people and programs may set it.
    """

    def __init__(self, clock: Clock | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock or SystemClock()
        self._monotonic = monotonic

    def mark(self) -> ClockReading:
        """Return this moment."""
        return ClockReading(self._monotonic(), self._clock.now().timestamp())

    def at_most(self, since: ClockReading) -> float:
        """Return an upper bound of the seconds since then, for deciding how long we may still act.

        It includes suspension, and ignores a clock that was set back.
        """
        now = self.mark()
        return max(0.0, now.monotonic - since.monotonic, now.wall - since.wall)

    def at_least(self, since: ClockReading) -> float:
        """Return a lower bound of the seconds since then, for deciding how old somebody else's claim is.

        It ignores a clock that was set forward.
        """
        return max(0.0, self._monotonic() - since.monotonic)

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)


class ClaimLease:
    """A `Lease` held by the claim `name`, which was sent at `sent`.

    `lower` are the names of claims with lower tokens, which are removed with our own when the lease is released.
    """

    def __init__(
        self,
        store: ClaimStore,
        stem: Stem,
        name: str,
        sent: ClockReading,
        *,
        clock: LeaseClock,
        terms: LeaseTerms,
        lower: Iterable[str] = (),
    ) -> None:
        self.token = stem.token
        self._store, self._stem, self._clock, self._terms = store, stem, clock, terms
        self._sent = sent
        self._seen = name  # our newest record in a listing
        self._seq = 0
        self._ours = [name]
        self._lower = list(lower)
        self._lost = ""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: RenewalThread | None = None
        self._kill_timer: KillTimer = no_kill_timer

    def left(self) -> float:
        """Return the seconds until the deadline, which counts from before the last valid claim was sent."""
        return self._terms.ttl_s - self._terms.margin_s - self._clock.at_most(self._sent)

    def check(self) -> None:
        """See `Lease.check`. Only reads the clock; renewals ask the store."""
        if self._over.is_set():
            raise LeaseLost(f"the lease {self._stem.place} was released; nothing more may be written or paid for")
        if self._lost:
            raise LeaseLost(self._lost)
        if self.left() <= 0:
            raise LeaseLost(
                f"the lease {self._stem.place} has expired: the store did not answer a renewal within "
                f"{self._terms.ttl_s:.0f} s, or this machine was suspended, or its clock set forward; nothing more is "
                "written or paid for"
            )

    def handover(self) -> Handover:
        self.check()
        return Handover(self._stem.handed, ())

    def renew(self, store: ClaimStore | None = None) -> None:
        """Hold the lease for another term. The renewal counts only if it is answered before the old term ends.

        Raises LeaseLost, or StorageError if the store failed: it can be tried again until the deadline.
        """
        store = store or self._store
        name = self._stem.renewal(self._seq + 1)
        self._seq += 1
        self._ours.append(name)
        sent = self._clock.mark()
        store.claim(name)
        if not self._counts():
            self._lost = f"the renewal of the lease {self._stem.place} was answered too late"
            raise LeaseLost(self._lost)
        self._sent = sent
        self._set_kill_timer()
        self._look(store.claims(self._stem.place), name)
        self._drop_old(store)

    def _counts(self) -> bool:
        """Return whether an answer that arrives now is in time. Later, somebody else may already hold the lease."""
        return self.left() > 0

    def _look(self, claims: Claims, name: str) -> None:
        """Check that our last record and the new one are there, and that nobody has ended the lease."""
        records = parse(self._stem.place, claims)
        names = {record.name for record in records}
        if last_end(records) >= self.token:
            self._lost = f"the lease {self._stem.place} was broken by the operator, or released"
        elif not {self._seen, name} <= names:
            self._lost = f"our claim to the lease {self._stem.place} is gone: somebody else took over or removed it"
        if self._lost:
            raise LeaseLost(self._lost)
        self._seen = name

    def _drop_old(self, store: ClaimStore) -> None:
        for name in [name for name in self._ours if name != self._seen]:
            with suppress(StorageError):  # it does no harm, and releasing the lease tries again
                store.withdraw(name)
                self._ours.remove(name)

    def arm(self, kill_timer: KillTimer) -> None:
        """Set `kill_timer` to the end of the lease, now and at each renewal."""
        self._kill_timer = kill_timer
        self._set_kill_timer()

    def _set_kill_timer(self) -> None:
        """Set the timer to half the margin after the deadline: time for an orderly stop, before anybody else can hold
        the lease."""
        with self._lock:
            if not self._over.is_set():
                self._kill_timer(max(0.001, self.left() + self._terms.margin_s / 2))

    def release(self) -> None:
        with self._lock:
            if self._over.is_set():
                return
            self._over.set()
            self._kill_timer(0.0)
        if self._thread:
            self._thread.stop(self._terms.ttl_s / 4)
        if self._end():  # claims that stay do no harm beside the record of the end
            self._store.withdraw_all([*self._ours, *self._lower])

    def _end(self) -> bool:
        """Record that the lease is over, and return whether that succeeded. Only then may our claims be deleted: the
        token must be remembered."""
        for _ in range(2):
            try:
                self._store.claim(self._stem.end)
            except StorageError as error:
                _log.warning("the lease could not be released and will expire: %s", error)
            else:
                return True
        return False

    def keep(self, connect: Callable[[], ClaimStore]) -> None:
        """Renew the lease after each third of its term, in a daemon thread with its own client."""
        self._thread = RenewalThread(self, connect, retry_s=self._terms.ttl_s / 24)

    def due(self) -> float | None:
        """See `Renewable.due`."""
        if self._lost or self._over.is_set() or self.left() <= 0:
            return None
        return max(0.0, self._terms.ttl_s / 3 - self._clock.at_most(self._sent))

    def without_thread(self) -> AbstractContextManager[None]:
        """See `RenewedLease.without_thread`."""
        return self._thread.away() if self._thread else nullcontext()


class JoinedLease:
    """The lease that a script's manager holds. Each `check` asks the store whether the manager still holds it.
    A script may outlive its manager. The store's clock limits for how long: a rival waits until the claim's stamp is
    older than TTL + 2·SKEW, while the script stops at TTL - margin after the same stamp. A higher token also stops it,
    because that stamp may belong to a renewal that was stored too late to count, after the rival had looked.
    """

    def __init__(self, store: ClaimStore, stem: Stem, *, clock: LeaseClock, terms: LeaseTerms) -> None:
        self.token = stem.token
        self._store, self._stem, self._clock, self._terms = store, stem, clock, terms
        self._released = False
        self._sure_s = 0.0  # seconds from `_asked` for which it is certainly held
        self._asked = clock.mark()

    def check(self) -> None:
        """See `Lease.check`. Costs one listing. Raises StorageError if the store does not answer."""
        if self._released:
            raise LeaseLost(f"the lease {self._stem.place} was released; nothing more may be written or paid for")
        asked = self._clock.mark()
        claims = self._store.claims(self._stem.place)
        newest = self._newest(claims)
        age = store_now(self._store, claims) - newest + self._clock.at_most(asked)
        if age >= self._terms.ttl_s - self._terms.margin_s:
            raise LeaseLost(f"the lease {self._stem.place} has expired: its manager is gone; nothing more is written")
        self._sure_s = self._terms.ttl_s - self._terms.margin_s - (age - self._clock.at_most(asked))
        self._asked = asked

    def left(self) -> float:
        """See `Lease.left`."""
        return self._sure_s - self._clock.at_most(self._asked)

    def _newest(self, claims: Claims) -> float:
        """Return the stamp of the manager's last claim. Raises LeaseLost if there is none, or if it was ended."""
        records = parse(self._stem.place, claims)
        ours = [it for it in records if it.token == self.token and it.nonce == self._stem.nonce and not it.ended]
        if not ours:
            ours = [it for it in records if it.name == self._stem.numbered and self._store_says_ours()]
        if not ours or last_end(records) >= self.token or highest(records) > self.token:
            raise LeaseLost(f"the lease {self._stem.place} is over: its manager released it, or somebody took over")
        return max(record.stamp for record in ours)

    def _store_says_ours(self) -> bool:
        """Return whether the numbered claim holds our nonce. The store is the manager's, so it honours conditions."""
        return self._store.nonce(self._stem.numbered) == self._stem.nonce

    def handover(self) -> Handover:
        self.check()
        return Handover(self._stem.handed, ())

    def release(self) -> None:
        self._released = True


def store_now(store: ClaimStore, claims: Claims) -> float:
    """Return the store's time of its answer or, if the answer has no date, of a write made now."""
    if claims.date is not None:
        return claims.date
    from os import urandom

    scratch = f"scratch/{urandom(8).hex()}"
    try:
        return store.claim(scratch)
    finally:
        with suppress(StorageError):
            store.withdraw(scratch)
