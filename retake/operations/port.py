"""The port between operators and pipelines: what a pipeline tells of itself, and what it can be ordered to do.

Each pipeline implements `OperatedPipeline` once. Whoever shows pipelines to people or takes their orders (the console,
a dashboard) knows nothing else of them.
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
    """What the operator asks for does not fit the present state. Says why, and what can be done. Nothing is changed."""

    exit_code = ExitCode.BAD_STATE


class Verb(StrEnum):
    """What a pipeline can be ordered to do with an item of its work."""

    RETRY = "retry"
    SKIP = "skip"
    CANCEL = "cancel"
    REQUEUE = "requeue"
    DROP = "drop"
    ROLLBACK = "rollback"


class ItemOrder(NamedTuple):
    """What an operator wants done with one item."""

    verb: Verb
    item_id: str
    run: Run | None = None  # the item's last run, if the ledger has one
    step: str | None = None  # of a ROLLBACK: the step that is to be taken again


class OrderPlan(NamedTuple):
    """What an order would do."""

    order: ItemOrder  # what would be carried out: to retry a dead letter is to requeue it
    lost: str = ""  # what would be lost for good, which the operator must agree to
    then: str = ""  # of a REQUEUE: what the next tick would do


class OrderResult(NamedTuple):
    """What an order has done."""

    order: ItemOrder
    what: str
    next_tick: str = ""  # what the next tick does, a sentence
    warning: str = ""
    status: str | None = None  # of the item, as the pipeline's document has it


class OrderDone(NamedTuple):
    """What was done: as JSON has it, and in words."""

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
    """How a pipeline stands by its own documents."""

    words: str  # in a few words
    readable: bool = True  # False: one of the documents is invalid, and most of the rest is not known
    item_id: str | None = None  # the item under way, of a pipeline that has one at a time
    step: StepAttempt | None = None  # at which the item is
    status: str | None = None  # as the document has it
    error: ErrorRecord = ErrorRecord()  # the item's last failure
    waiting: Waiting | None = None
    failing: bool = False  # the step failed and is to be retried
    next_retry_at: datetime | None = None
    next_act: str | None = None
    next_tick: str = ""  # what the next tick does, if nobody else is at work
    idle: bool = False  # the next tick would change nothing
    interrupted: bool = False  # a tick is under way, or ended before its time
    failed_in_a_row: int | None = None
    stopped: bool = False  # too many failed in a row: nothing is begun until a person acts
    today: Today | None = None  # the day's spending as this pipeline sees it
    needs: tuple[str, ...] = ()  # what a person has to do, a sentence each
    notes: tuple[str, ...] = ()  # worth knowing
    own_book: bool = False  # `today` is a book of its own, not that of the bucket


class Present(NamedTuple):
    """An item under way, and where it is."""

    item_id: str
    step: StepAttempt


class Evidence(NamedTuple):
    """What a pipeline keeps of one item."""

    files: list[Entry]  # with their keys in the pipeline's part of the bucket
    calls: list[dict[str, Any]]  # paid calls, in their order
    step: StepAttempt | None = None  # at which the item is, while it is under way
    held: str = ""  # what a person has to decide about a paid call of unknown outcome


class Bill(NamedTuple):
    """What an item has cost."""

    item_id: str
    outcome: str  # "done", "failed", "cancelled", "under way", "nobody's"
    calls: list[dict[str, Any]]


class PaidMonth(NamedTuple):
    """Bills whose sums are known without reading them."""

    number: int
    by_day: Mapping[str, PaidSums]  # not empty
    by_step: Mapping[str, PaidSums]
    bills: Callable[[], list[Bill]]  # reads them; raises StateError, StorageError

    @property
    def last_day(self) -> str:
        return max(self.by_day)


class PaidWork(NamedTuple):
    """What a pipeline has paid for."""

    bills: list[Bill]
    known: Known  # what its document says of the day
    today: Today | None = None  # the day, where it keeps a book of its own
    months: Sequence[PaidMonth] = ()  # further bills, all of whose calls are of the days asked for


class OperatedPipeline(Protocol):
    """A pipeline as an operator sees it. Every method may raise StateError and StorageError.

    What changes something takes the pipeline's lease itself, and raises LeaseHeld while a tick is at work.
    """

    name: str  # as its runs have it: "story", "story/CHANNEL"
    channel: str | None
    lease_name: str | None  # None: its items are locked one by one, and no tick works on them
    recovered_by: Mapping[str, frozenset[str]]  # by step: the steps whose result shows that it works again

    @property
    def bucket(self) -> Bucket:
        """Its part of the bucket."""
        ...

    @property
    def prefix(self) -> str:
        """Of that part; "" or ending in "/"."""
        ...

    @property
    def vendors(self) -> Mapping[str, str]:
        """By step: the vendor it calls, as people know it."""
        ...

    @property
    def holds_unknown(self) -> bool:
        """Whether a paid call of unknown outcome is held for the operator rather than made again."""
        ...

    def has_setting(self, name: str) -> bool:
        """Return whether "SECTION.name" is one of its settings."""
        ...

    def leasable(self) -> Bucket:
        """Return its part of the bucket for a process that takes the lease: the process ends if the lease runs out."""
        ...

    def state(self, today: Today | StateError | None, vendor_off: Callable[[str], str]) -> PipelineState:
        """Return how it stands. `today` is the day's book, or what is wrong with it; None leaves caps out.
        `vendor_off(vendor)` returns why a vendor's breaker lets no call through, or ""."""
        ...

    def present(self) -> Sequence[Present]:
        """Return the items under way; of very many the newest."""
        ...

    def evidence(self, item_id: str) -> Evidence:
        """Return what there is of an item, nothing of one that is unknown. Invalid documents are passed over."""
        ...

    def paid_since(self, day: str) -> PaidWork:
        """Return the bills that may have calls counted on `day` or later; each is in `bills` or in one of `months`."""
        ...

    def check(self) -> Iterator[Finding]:
        """Yield what a check of its documents finds. Raises nothing."""
        ...

    def examinations(self) -> "Sequence[Examination]":
        """Return what `retake check` looks at of its documents, files and rows; not its ledger. Their views are of the
        whole bucket, and so are the keys that they know."""
        ...

    def plan(self, order: ItemOrder) -> OrderPlan:
        """Return what the order would do. Raises Refusal."""
        ...

    def carry_out(self, order: ItemOrder, agreed: str = "") -> OrderResult:
        """Do what `plan` returned. `agreed` is the loss that the operator agreed to. Raises Refusal, LeaseHeld."""
        ...

    def lower_flag(self) -> bool:
        """Lower the flag that a crashed tick left up; return whether it was up. Raises LeaseHeld."""
        ...
