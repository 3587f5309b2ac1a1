"""The guard of paid calls: write the intent ahead, ask once, save the answer whatever it takes.

    set room aside → reserve the price → record the intent → ask the vendor, once → record the answer

A crash between the intent and the answer leaves a pending call. The next process reconciles it: it asks the vendor what
became of the call, and if the vendor cannot tell, the operator's rule decides (`on_unknown`). "Refused" and "outcome
unknown" stay different answers all the way: the first may be retried for free, the second may already be billed.

A pipeline implements two ports: a journal and a budget. The journal is the pipeline's own record: a document in a
bucket, a row in a database. Each of its methods saves in one write, before it returns. At most one call is pending at a
time.

    none ── begin ──▶ pending ── accepted ──▶ none            the vendor took the order
                         ├────── refused ───▶ none            certainly not carried out
                         ├────── wasted ────▶ none            carried out and billed, but its answer is useless
                         ├────── lost ──────▶ none            outcome unknown; it may be made again
                         └────── held ──────▶ pending, held   outcome unknown; the operator decides
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from retake.bucket import Conflict, Room
from retake.clock import Clock
from retake.errors import (
    CapReached,
    Code,
    OutcomeUnknown,
    Refused,
    SettingsError,
    StorageError,
    TaskFailed,
    VendorError,
)
from retake.logs import alert

if TYPE_CHECKING:
    from retake.paid.caps import Reservation

_log = getLogger(__name__)


class Intent(NamedTuple):
    """A paid call that is about to be made."""

    step: str
    facts: Mapping[str, Any]  # what identifies the call at the vendor if the answer gets lost, as JSON types
    price_usd: float
    reservation: "Reservation | None" = None  # None: there is no cap


class Journal(Protocol):
    """The record of one pipeline's paid calls. Every method may raise StorageError, LeaseLost and StateError."""

    def set_aside(self) -> Room:
        """Set aside disk space for the answer, so that a full disk cannot lose it. Records nothing yet."""
        ...

    def begin(self, intent: Intent) -> None:
        """Record that the call is about to be made."""
        ...

    @property
    def pending(self) -> str | None:
        """The step of the pending call, which has begun and has no result on record, or None."""
        ...

    def accepted(self, answer: Any, room: Room | None = None) -> None:
        """Record the vendor's answer, in `room`, the space set aside for it, unless that is None."""
        ...

    def refused(self, error: Refused) -> None:
        """Record that the call was certainly not carried out."""
        ...

    def wasted(self, error: VendorError) -> None:
        """Record that the call was carried out and billed, but that its answer is useless."""
        ...

    def lost(self, error: OutcomeUnknown) -> None:
        """Record that the outcome is unknown, and that the call may be made again."""
        ...

    def held(self, error: OutcomeUnknown) -> None:
        """Record that the outcome is unknown, and that nothing more is paid for until the operator decides."""
        ...

    def find(self) -> Any | None:
        """Ask the vendor for the answer of the pending call, for free. Return it, or None if the vendor cannot tell."""
        ...

    def disproved(self) -> Refused | None:
        """Return the proof that the pending call was not carried out, or None if the vendor gives none yet. Free.

        Raises OutcomeUnknown if the vendor's answer shows that only a person can tell.
        """
        ...


@runtime_checkable
class SeriesJournal(Protocol):
    """What a journal implements in addition to support several calls in a row (`PaidCallGuard.call_all`)."""

    def accepted_before(self, following: Intent, answer: Any, room: Room | None = None) -> None:
        """Record the vendor's answer and, in the same write, that the following call is about to be made."""
        ...


@runtime_checkable
class SeriesBudget(Protocol):
    """What a budget implements in addition to support several calls in a row."""

    def reserve_all(self, step: str, calls: int) -> "Reservation | None":
        """Reserve the price of `calls` calls; return None if there is no cap. Raises CapReached."""
        ...


class Budget(Protocol):
    """What a pipeline may spend."""

    def price(self, step: str) -> float:
        """Return the price of a paid call of the step, in US dollars."""
        ...

    def reserve(self, step: str) -> "Reservation | None":
        """Reserve the price of a call; return None if there is no cap. Raises CapReached: then nothing may be paid
        for."""
        ...


_SAVE_PAUSES_S = (1, 2, 4, 8, 15)  # the store may be unreachable for a moment just after the vendor took the order

RETRY, HOLD, DROP = "retry", "hold", "drop"
"""The rules for a call of unknown outcome: make it again, at the risk of being billed twice; let the operator decide;
or give it up, since its answer is not worth a second call."""


_RETRIED = "it will be made again, and may be billed twice"


class Held(Protocol):
    """What a pipeline holds while it pays: a lease, or a run on the ledger."""

    def check(self) -> None:
        """Raise RetakeError if it is no longer held."""
        ...

    def left(self) -> float | None:
        """Return for how many more seconds it is certainly held; None if it does not expire."""
        ...


class PayingProcess(Protocol):
    """The process that pays."""

    def check_stop(self) -> None:
        """Raise Stopped if a signal has asked the process to stop."""
        ...

    def kill_after(self, seconds: float) -> None:
        """Have the kernel end this process after `seconds`; 0 cancels that."""
        ...


class PaidCallGuard:
    """Makes the paid calls of one pipeline.

    `lease` is the pipeline's: no call is made beyond its term. `call_timeout_s` is the longest time in seconds that one
    call may take; a lease that expires must last longer than that. `on_unknown` is RETRY, HOLD or DROP. `how_to_decide`
    tells a person, in an alert, how to decide about a held call.
    """

    def __init__(
        self,
        journal: Journal,
        budget: Budget,
        *,
        lease: Held,
        clock: Clock,
        process: PayingProcess,
        call_timeout_s: float,
        on_unknown: str = RETRY,
        how_to_decide: str = "say --resolve retry or --resolve skip",
    ) -> None:
        self._journal = journal
        self._budget = budget
        self._lease = lease
        self._clock = clock
        self._process = process
        self._call_timeout_s = call_timeout_s
        self._on_unknown = on_unknown
        self._held_until = f"nothing more is paid for until you {how_to_decide}"

    def call(self, step: str, facts: Mapping[str, Any], ask: Callable[[], Any]) -> None:
        """Make a paid call: `ask()` makes it, once, and returns the vendor's answer.

        `facts` identify the call at the vendor if the answer gets lost. Raises Refused, TaskFailed and OutcomeUnknown
        from `ask` once the journal has recorded what became of the call. Any other exception leaves the call pending,
        for `reconcile`. Also raises CapReached, Stopped, LeaseLost, StorageError, and SettingsError if the lease can
        never outlast a call.
        """
        self._process.check_stop()
        with self._room() as room:
            self._term()  # also because reserving settles what our record says, which is out of date without the lease
            reservation = self._budget.reserve(step)
            self._journal.begin(Intent(step, facts, self._budget.price(step), reservation))
            self._ask(ask, lambda answer: self._save(answer, room))

    def call_all(self, step: str, calls: Sequence[tuple[Mapping[str, Any], Callable[[], Any]]]) -> None:
        """Make several paid calls of a step, (facts, ask) each, one after the other. Raises what `call` raises.

        Their prices are reserved at once, and each answer is saved together with the intent of the next call. If the
        caps do not allow all of them, or the journal or the budget supports only single calls, each is made by `call`.
        """
        self._process.check_stop()
        journal, budget, reservation = self._journal, self._budget, None
        if several := len(calls) > 1 and isinstance(journal, SeriesJournal) and isinstance(budget, SeriesBudget):
            self._term()
            try:
                reservation = budget.reserve_all(step, len(calls))
            except CapReached:
                several = False
        if not several:
            for facts, ask in calls:
                self.call(step, facts, ask)
            return
        intents = [Intent(step, facts, budget.price(step), reservation) for facts, _ in calls]
        with ExitStack() as held:
            rooms = [held.enter_context(self._room()) for _ in calls]
            self._journal.begin(intents[0])
            for (_, ask), room, following in zip(calls, rooms, [*intents[1:], None], strict=True):
                self._ask(ask, partial(self._save_before, following, room=room))
                if following and self._journal.pending is None:  # the answer was found by asking the vendor
                    self._journal.begin(following)

    def _ask(self, ask: Callable[[], Any], save: Callable[[Any], None]) -> None:
        """Make the call, once, and save its answer, or what became of it."""
        try:
            with self._killed_after(self._term()):
                answer = ask()
        except VendorError as error:
            self._not_accepted(error)
        else:
            save(answer)

    def reconcile(self) -> None:
        """Find out what became of the pending call. Return once its answer is on record.

        Raises Refused if the call was not carried out, and OutcomeUnknown if nobody can tell.
        """
        if proof := self._journal.disproved():
            self._journal.refused(proof)
            raise proof
        step = self._journal.pending
        self._unknown(OutcomeUnknown(Code.NETWORK, f"the {step} call was begun, and its answer is not on record"))

    @contextmanager
    def _room(self) -> Iterator[Room]:
        room = self._journal.set_aside()
        try:
            yield room
        finally:
            room.release()

    def _term(self) -> float | None:
        """Wait until the lease is certain to outlast the call. Return for how many seconds it is held, or None if it
        does not expire. Raises LeaseLost, and SettingsError if a whole term is too short for the call. `call` asks
        this before it records anything, so that this error leaves no call pending.

        A process that is frozen between this check and the call would make the call when it wakes, however late, while
        somebody else holds the lease. The kernel's timer, set to the end of the term, ends the process instead.
        """
        waited_s, first_s = 0.0, None
        while True:
            self._lease.check()
            left = self._lease.left()
            if left is None or left > self._call_timeout_s:
                return left
            first_s = left if first_s is None else first_s
            if waited_s > first_s:  # that term has passed: the lease was renewed, and is still too short
                raise SettingsError(
                    f"a paid call may take {self._call_timeout_s:g} s, and the lease never lasts that long: let calls "
                    "take less time, or let the bucket's leases last longer (`lease_terms` of open_bucket)"
                )
            self._clock.sleep(1)  # even if asked to stop: the intent is on record, and would be left pending
            waited_s += 1

    @contextmanager
    def _killed_after(self, seconds: float | None) -> Iterator[None]:
        if seconds is None:
            yield
            return
        self._process.kill_after(seconds)
        try:
            yield
        finally:
            self._process.kill_after(0)

    def _not_accepted(self, error: VendorError) -> None:
        if isinstance(error, OutcomeUnknown):
            return self._unknown(error)
        if isinstance(error, Refused):
            self._journal.refused(error)
        elif isinstance(error, TaskFailed):
            self._journal.wasted(error)
        raise error

    def _unknown(self, error: OutcomeUnknown) -> None:
        """Settle a call of unknown outcome: ask the vendor, or else follow the operator's rule."""
        step = self._journal.pending
        answer = self._journal.find()
        if answer is not None:
            _log.info("the %s call was carried out: the vendor has task %s", step, answer, extra={"step": step})
            self._journal.accepted(answer)
            return
        if self._on_unknown == HOLD:
            self._journal.held(error)
        else:
            self._journal.lost(error)
        if self._on_unknown != DROP:
            follows = self._held_until if self._on_unknown == HOLD else _RETRIED
            alert("outcome_unknown", f"{step}: {str(error).rstrip('.')}; {follows}", step=str(step))
        raise error

    def _save_before(self, following: Intent | None, answer: object, room: Room) -> None:
        """Record the answer and, unless a signal has asked the process to stop, the intent of the following call."""
        journal = self._journal
        if following is None or not isinstance(journal, SeriesJournal):
            self._save(answer, room)
            return
        try:
            self._process.check_stop()
        except BaseException:
            self._save(answer, room)
            raise
        self._save(answer, room, partial(journal.accepted_before, following))

    def _save(self, answer: object, room: Room, save: Callable[[Any, Room | None], None] | None = None) -> None:
        """Record the answer, which must not get lost to a full disk or an unreachable store.

        After the first try, the room that was set aside is used. Tries go on for as long as the lease lasts, or, if it
        does not expire or somebody else has written the record, for half a minute. Raises LeaseLost, StorageError.
        """
        tries, save = 0, save or self._journal.accepted
        while True:
            try:
                return save(answer, room if tries else None)
            except StorageError as error:
                for_good = isinstance(error, Conflict) or (self._lease.left() or 0.0) <= 0
                if tries >= len(_SAVE_PAUSES_S) and for_good:
                    raise
                _log.error("the answer to a paid call cannot be saved yet (%s); it was: %s", error, answer)
                self._clock.sleep(_SAVE_PAUSES_S[min(tries, len(_SAVE_PAUSES_S) - 1)])
                tries += 1
