"""What a pipeline implements so that the guard can protect its paid calls: a journal, and a budget.

The journal is the pipeline's own record: a document in a bucket, a row in a database. Each method has saved what it was
told when it returns, in one write. At most one call is pending at a time.

    none ── begin ──▶ pending ── accepted ──▶ none            the vendor took the order
                         ├────── refused ───▶ none            certainly not carried out
                         ├────── wasted ────▶ none            carried out and billed, the answer is of no use
                         ├────── lost ──────▶ none            nobody can know; it may be made again
                         └────── held ──────▶ pending, held   nobody can know; the operator decides
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from retake.bucket import Room
from retake.errors import OutcomeUnknown, Refused, VendorError

if TYPE_CHECKING:
    from retake.paid.caps import Reservation


class Intent(NamedTuple):
    """A paid call that is about to be made."""

    step: str
    facts: Mapping[str, Any]  # what the vendor can be asked by, should the answer get lost; ready for JSON
    price_usd: float
    reservation: "Reservation | None" = None  # what was set aside for it; None: no cap is kept


class Journal(Protocol):
    """The record of one pipeline's paid calls. Every method may raise StorageError, LeaseLost and StateError."""

    def set_aside(self) -> Room:
        """Set aside room for the answer, so that a full disk cannot lose it. Nothing is on record yet."""
        ...

    def begin(self, intent: Intent) -> None:
        """Record that the call is about to be made."""
        ...

    @property
    def pending(self) -> str | None:
        """The step of the call that has begun and has no result on record, or None."""
        ...

    def accepted(self, answer: Any, room: Room | None = None) -> None:
        """Record the vendor's answer; `room` is what was set aside for it, or None to do without."""
        ...

    def refused(self, error: Refused) -> None:
        """Record that the call was certainly not carried out."""
        ...

    def wasted(self, error: VendorError) -> None:
        """Record that the call was carried out and billed, and that its answer is of no use."""
        ...

    def lost(self, error: OutcomeUnknown) -> None:
        """Record that nobody can know whether the call was carried out, and that it may be made again."""
        ...

    def held(self, error: OutcomeUnknown) -> None:
        """Record that nobody can know, and that nothing more is paid for until the operator decides."""
        ...

    def find(self) -> Any | None:
        """Ask the vendor for the answer of the pending call; return it, or None where the vendor cannot tell. Free."""
        ...

    def disproved(self) -> Refused | None:
        """Return the proof that the pending call was not carried out, if the vendor gives one by now. Free. Raises
        OutcomeUnknown where the vendor's word shows that only a person can tell."""
        ...


class Budget(Protocol):
    """What a pipeline may spend."""

    def price(self, step: str) -> float:
        """Return what a paid call of the step costs, in US dollars."""
        ...

    def reserve(self, step: str) -> "Reservation | None":
        """Set the price of a call aside; None where no cap is kept. Raises CapReached: nothing may be paid for then."""
        ...
