"""The base class of pipelines of your own: docs/add-a-pipeline.md, section "The console and the dashboard".

It implements all of `retake.operations.port.OperatedPipeline`. Its `state` is built on `describe`, which you write.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from retake.bucket import Bucket, Lease, this_process
from retake.clock import Clock
from retake.errors import RetakeError, StateError
from retake.operations.finding import Finding, fault, of_error, ok
from retake.operations.foreign_calls import state_told
from retake.operations.letters import letter_of, lost_with, no_letter
from retake.operations.pipelines import OwnLedger
from retake.operations.port import (
    Evidence,
    ItemOrder,
    OrderPlan,
    OrderResult,
    PaidWork,
    PipelineState,
    Present,
    Refusal,
    Verb,
)
from retake.paid.caps import Today
from retake.paid.day_book import Known
from retake.retrying.dead_letters import DeadLetters

if TYPE_CHECKING:
    from retake.checking import Examination


class OwnPipeline(ABC):
    """A pipeline that keeps its documents below `NAME/` in the bucket, and has one item at a time.

    By default its lease there has the pipeline's name, it has paid for nothing, and the only order that it accepts is
    to drop a dead letter. Override what differs. Every method may raise StateError and StorageError.
    """

    channel: str | None = None
    vendors: Mapping[str, str] = {}
    recovered_by: Mapping[str, frozenset[str]] = {}  # only a step's own result shows that it works again
    holds_unknown = False
    own_ledger: OwnLedger | None = None
    """Where its runs are, unless that is STORAGE.ledger: `OwnLedger(None, WHERE)` is in its part of the bucket."""

    def __init__(self, name: str, whole: Bucket, clock: Clock) -> None:
        self.name, self.prefix = name, f"{name}/"
        self.lease_name: str | None = name
        self.bucket: Bucket = whole.part(self.prefix)
        self.clock = clock

    def has_setting(self, name: str) -> bool:
        return False

    def leasable(self) -> Bucket:
        return self.bucket

    @contextmanager
    def leased(self) -> Iterator[Lease]:
        """Hold the pipeline's lease during the block, which carries out an order. Raises LeaseHeld."""
        lease = self.leasable().lease(self.lease_name or self.name, this_process())
        try:
            yield lease
        finally:
            lease.release()

    # --- queries ---

    @abstractmethod
    def describe(self, today: Today | StateError | None, vendor_off: Callable[[str], str]) -> PipelineState:
        """Return the pipeline's state. The parameters are those of `OperatedPipeline.state`. Raises StateError for an
        invalid document."""

    def state(self, today: Today | StateError | None, vendor_off: Callable[[str], str]) -> PipelineState:
        try:
            return state_told(self, "describe", today, lambda: self.describe(today, vendor_off))
        except StateError as error:
            seen = today if isinstance(today, Today) else None
            return PipelineState("its document is invalid", readable=False, needs=(str(error),), today=seen)

    def present(self) -> Sequence[Present]:
        it = self._plain_state()
        if not it.readable:
            raise StateError("; ".join(it.needs) or it.words)
        return [Present(it.item_id, it.step)] if it.item_id and it.step else []

    def evidence(self, item_id: str) -> Evidence:
        """Return the item's paid calls and its current attempt. Override it to add files, and what a person has to
        decide about a held call."""
        try:
            calls = [call for bill in self.paid_since("").bills if bill.item_id == item_id for call in bill.calls]
            step = next((it.step for it in self.present() if it.item_id == item_id), None)
        except StateError:
            return Evidence([], [])
        return Evidence([], calls, step)

    def paid_since(self, day: str) -> PaidWork:
        return PaidWork([], Known())

    def check(self) -> Iterator[Finding]:
        try:
            it = self._plain_state()
        except RetakeError as error:
            yield of_error(self.name, error)
            return
        yield ok(self.name, it.words) if it.readable else fault(self.name, "; ".join(it.needs) or it.words)

    def examinations(self) -> "Sequence[Examination]":
        """Return a single examination, which knows every key of the part and only checks that the state can be read."""
        from retake.operations.examinations import OwnDocuments

        return [OwnDocuments(self)]

    def _plain_state(self) -> PipelineState:
        """Return the state without caps and breakers."""
        return self.state(None, lambda vendor: "")

    # --- orders ---

    def plan(self, order: ItemOrder) -> OrderPlan:
        """Return what the order would do. Override this and `carry_out`, and call super() for any other order."""
        if order.verb is Verb.DROP:
            return OrderPlan(order)
        raise Refusal(f"{order.item_id}: {self.name} takes no order to {order.verb}. Nothing was changed")

    def carry_out(self, order: ItemOrder, agreed: str = "") -> OrderResult:
        self.plan(order)
        with self.leased() as lease:
            letter = letter_of(self.bucket, self.clock, order.item_id)
            if letter is None:
                raise Refusal(no_letter(order.item_id))
            if (lost := lost_with(letter)) not in ("", agreed):
                raise Refusal(f"the dead letter {order.item_id} has changed: it would lose {lost}. Ask again")
            DeadLetters(self.bucket, self.clock, lease=lease).drop(order.item_id)
        return OrderResult(order, f"the dead letter {order.item_id} is dropped")

    def lower_flag(self) -> bool:
        return False
