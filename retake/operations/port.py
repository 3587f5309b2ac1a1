"""The port between operators and pipelines: what a pipeline reports about itself, and the orders that it accepts.

Each pipeline implements `OperatedPipeline` once. Programs that show pipelines to people or take their orders (the
console, the dashboard) know nothing else about them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from retake.bucket import Bucket, Entry
from retake.errors import ErrorRecord, RetakeError, StateError
from retake.exit_codes import ExitCode
from retake.operations.attempts import StepAttempt
from retake.operations.bills import PaidSums
from retake.operations.finding import Finding
from retake.paid.caps import Today
from retake.paid.day_book import Known
from retake.runs.run import Run

if TYPE_CHECKING:
    from retake.checking import Examination


class Refusal(RetakeError):
    """The order does not fit the current state. The message says why, and what can be done. Nothing is changed."""

    exit_code = ExitCode.BAD_STATE


class Verb(StrEnum):
    """The orders about an item of a pipeline's work."""

    RETRY = "retry"
    SKIP = "skip"
    CANCEL = "cancel"
    REQUEUE = "requeue"
    DROP = "drop"
    ROLLBACK = "rollback"


class ItemOrder(NamedTuple):
    """An operator's order about one item."""

    verb: Verb
    item_id: str
    run: Run | None = None  # the item's last run, if the ledger has one
    step: str | None = None  # for a ROLLBACK: the step to repeat


class OrderPlan(NamedTuple):
    """The plan of an order."""

    order: ItemOrder  # that would be carried out: to retry a dead letter is to requeue it
    lost: str = ""  # what would be lost for good; the operator must agree to it
    then: str = ""  # for a REQUEUE: what the next tick would do


class OrderResult(NamedTuple):
    """The result of an order."""

    order: ItemOrder
    what: str
    next_tick: str = ""  # what the next tick does, a sentence
    warning: str = ""
    status: str | None = None  # the item's status in the pipeline's document


class OrderDone(NamedTuple):
    """A finished order: its JSON document, and what was done in words."""

    document: dict[str, Any]
    what: str
    then: str = ""
    warning: str = ""


class Waiting(NamedTuple):
    """What a pipeline waits for."""

    party: str  # "Midjourney", "the operator"
    what: str
    since: datetime | None


class PipelineState(NamedTuple):
    """The state of a pipeline according to its own documents."""

    words: str  # in a few words
    readable: bool = True  # False: one of the documents is invalid, and most of the rest is not known
    item_id: str | None = None  # the item under way, for a pipeline that has one at a time
    step: StepAttempt | None = None  # the item's current attempt
    status: str | None = None  # in the document
    error: ErrorRecord = ErrorRecord()  # the item's last failure
    waiting: Waiting | None = None
    failing: bool = False  # the step failed and is to be retried
    next_retry_at: datetime | None = None
    next_act: str | None = None
    next_tick: str = ""  # what the next tick does, unless another process has the lease
    idle: bool = False  # the next tick would change nothing
    interrupted: bool = False  # a tick is under way, or was cut off
    failed_in_a_row: int | None = None
    stopped: bool = False  # too many failed in a row: nothing is begun until a person acts
    today: Today | None = None  # the day's spending as this pipeline sees it
    needs: tuple[str, ...] = ()  # what a person has to do, a sentence each
    notes: tuple[str, ...] = ()  # worth knowing
    own_book: bool = False  # `today` is the pipeline's own book, not the bucket's


class Present(NamedTuple):
    """An item under way, and its current attempt."""

    item_id: str
    step: StepAttempt


class Evidence(NamedTuple):
    """Everything that a pipeline keeps about one item."""

    files: list[Entry]  # with their keys in the pipeline's part of the bucket
    calls: list[dict[str, Any]]  # paid calls, in order
    step: StepAttempt | None = None  # the current attempt, while the item is under way
    held: str = ""  # what a person has to decide about a paid call of unknown outcome


class Bill(NamedTuple):
    """The cost of an item."""

    item_id: str
    outcome: str  # "done", "failed", "cancelled", "under way", "nobody's"
    calls: list[dict[str, Any]]


class PaidMonth(NamedTuple):
    """The bills of a month, whose sums are known without reading them."""

    number: int  # of bills
    by_day: Mapping[str, PaidSums]  # not empty
    by_step: Mapping[str, PaidSums]
    bills: Callable[[], list[Bill]]  # reads them; raises StateError, StorageError

    @property
    def last_day(self) -> str:
        return max(self.by_day)


class PaidWork(NamedTuple):
    """The paid work of a pipeline."""

    bills: list[Bill]
    known: Known  # what its document says about the day
    today: Today | None = None  # the day, if the pipeline keeps its own book
    months: Sequence[PaidMonth] = ()  # further bills, whose calls are all within the requested days


class OperatedPipeline(Protocol):
    """A pipeline as an operator sees it. Every method may raise StateError and StorageError.

    Methods that change something take the pipeline's lease themselves, and raise LeaseHeld while a tick is running.
    """

    name: str  # as in its runs: "story", "story/CHANNEL"
    channel: str | None
    lease_name: str | None  # None: its items are locked one by one, and no tick works on them
    recovered_by: Mapping[str, frozenset[str]]  # by step: the steps whose result shows that it works again

    @property
    def bucket(self) -> Bucket:
        """The pipeline's part of the bucket."""
        ...

    @property
    def prefix(self) -> str:
        """The prefix of that part; "" or ending in "/"."""
        ...

    @property
    def vendors(self) -> Mapping[str, str]:
        """The vendor that each step calls, by the name that people know."""
        ...

    @property
    def holds_unknown(self) -> bool:
        """Whether a paid call of unknown outcome is held for the operator rather than made again."""
        ...

    def has_setting(self, name: str) -> bool:
        """Return whether "SECTION.name" is one of its settings."""
        ...

    def leasable(self) -> Bucket:
        """Return its part of the bucket for a process that takes the lease; the process is killed if the lease
        expires."""
        ...

    def state(self, today: Today | StateError | None, vendor_off: Callable[[str], str]) -> PipelineState:
        """Return the pipeline's state. `today` is the day's book, or the error in it; None leaves caps out.
        `vendor_off(vendor)` returns why a vendor's breaker lets no call through, or ""."""
        ...

    def present(self) -> Sequence[Present]:
        """Return the items under way, only the newest if there are very many."""
        ...

    def evidence(self, item_id: str) -> Evidence:
        """Return everything about an item; nothing for an unknown one. Invalid documents are skipped."""
        ...

    def paid_since(self, day: str) -> PaidWork:
        """Return the bills that may have calls counted on `day` or later, each in `bills` or in one of `months`."""
        ...

    def check(self) -> Iterator[Finding]:
        """Check the pipeline's documents and yield the findings. Raises nothing."""
        ...

    def examinations(self) -> "Sequence[Examination]":
        """Return the examinations of `retake check` for its documents, files and rows, but not for its ledger. Their
        views and keys are those of the whole bucket."""
        ...

    def plan(self, order: ItemOrder) -> OrderPlan:
        """Return what the order would do. Raises Refusal."""
        ...

    def carry_out(self, order: ItemOrder, agreed: str = "") -> OrderResult:
        """Carry out what `plan` returned. `agreed` is the loss that the operator agreed to. Raises Refusal,
        LeaseHeld."""
        ...

    def lower_flag(self) -> bool:
        """Lower the flag that a crashed tick left up, and return whether it was up. Raises LeaseHeld."""
        ...
