"""The story's paid calls as the guard records them: `pending_call`, `spend` and `paid_calls` of config_midjourney.json.

Each method is one save of the document: the intent, its price and its reservation are on record together, and so are
the answer and what it makes of the generation.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from retake.bucket import Room
from retake.clock import Clock
from retake.errors import Code, OutcomeUnknown, Refused, VendorError, escalate
from retake.logs import alert
from retake.paid.caps import Reservation
from retake.paid.guard import Intent
from retake.paid.spending import Spending
from retake.story import transitions
from retake.story.clients import Vendors
from retake.story.decision import ASK_TO_RESOLVE, comparable
from retake.story.documents import UNKNOWN, MidjourneyDocument, PendingCall, Step
from retake.story.spending import known
from retake.story.store import DocumentStore

Accepted = Callable[[MidjourneyDocument, Any], MidjourneyDocument]

_ACCEPTED: Mapping[Step, Accepted] = {
    Step.CONTENT: transitions.answered,
    Step.IMAGINE: transitions.picture_ordered,
    Step.UPSCALE: transitions.picture_ordered,
    Step.RUNWAY: transitions.video_ordered,
}
"""What the vendor's answer makes of the document."""


class StoryBudget(NamedTuple):
    """`retake.paid.guard.Budget` of the generation in `store`."""

    store: DocumentStore
    spending: Spending

    def price(self, step: str) -> float:
        return self.spending.price(step)

    def reserve(self, step: str) -> Reservation:
        return self.spending.reserve(known(self.store.documents.midjourney), step)


class StoryJournal:
    """`retake.paid.guard.Journal` in config_midjourney.json. `record` makes the error record of a failure of the
    present step."""

    def __init__(
        self, store: DocumentStore, vendors: Vendors, clock: Clock, record: Callable[[VendorError], dict[str, Any]]
    ) -> None:
        self._store = store
        self._vendors = vendors
        self._clock = clock
        self._record = record

    def set_aside(self) -> Room:
        return self._store.set_aside()

    def begin(self, intent: Intent) -> None:
        self._store.save_midjourney(transitions.intended(self._doc, Step(intent.step), self._clock.now(), *intent[1:]))

    @property
    def pending(self) -> str | None:
        call = self._doc.pending
        return call.step.value if call else None

    def accepted(self, answer: Any, room: Room | None = None) -> None:
        self._store.save_midjourney(_ACCEPTED[self._call.step](self._doc, answer), room)

    def refused(self, error: Refused) -> None:
        conclude(self._store, transitions.call_refused(self._doc, self._record(error)), error)

    def wasted(self, error: VendorError) -> None:
        conclude(self._store, transitions.call_wasted(self._doc, self._record(error)), error)

    def lost(self, error: OutcomeUnknown) -> None:
        self._store.save_midjourney(transitions.call_lost(self._doc, self._record(error)))

    def held(self, error: OutcomeUnknown) -> None:
        record = {**self._record(error), "recovery_actions": [escalate("operator", ASK_TO_RESOLVE)]}
        self._store.save_midjourney(transitions.call_held(self._doc, record))

    def find(self) -> str | None:
        if self._call.step in (Step.IMAGINE, Step.UPSCALE):
            return self._vendors.midjourney().find(self._call.raw)
        return None

    def disproved(self) -> Refused | None:
        """Compare the vendor's counts with those saved before a held call: where they are equal, the call was not
        carried out after all."""
        call = self._call
        if call.outcome != UNKNOWN or not comparable(call, self._clock.now()):
            return None
        counted = self._vendors.video_generator().usage()
        if counted is None or counted != call.raw["usage"]:
            self._store.save_midjourney(transitions.usage_compared(self._doc))
            raise OutcomeUnknown(Code.NETWORK, f"the vendor's counts have moved since the {call.step} call")
        return Refused(Code.NETWORK, f"by the vendor's counts the {call.step} call was not carried out")

    @property
    def _doc(self) -> MidjourneyDocument:
        return self._store.documents.midjourney

    @property
    def _call(self) -> PendingCall:
        assert self._doc.pending is not None, "no paid call is pending"
        return self._doc.pending


class PickJournal:
    """`retake.paid.guard.Journal` of the choice: it counts as billed from its beginning, in `paid_calls`, unless it
    turns out not to have been carried out."""

    def __init__(self, store: DocumentStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def set_aside(self) -> Room:
        return self._store.set_aside()

    def begin(self, intent: Intent) -> None:
        doc, now = self._store.documents.midjourney, self._clock.now()
        self._store.save_midjourney(transitions.choice_begun(doc, now, intent.price_usd, intent.reservation))

    @property
    def pending(self) -> str | None:
        return Step.UPSCALE.value if self._picked == 0 else None

    @property
    def ended(self) -> bool:
        """Whether the call was made, and its end is on record."""
        return bool(self._picked)

    def accepted(self, answer: Any, room: Room | None = None) -> None:
        self._made(answer, "done", room)

    def refused(self, error: VendorError) -> None:
        self._made(1, None)

    def not_made(self) -> None:
        """Record that the first picture is taken without a call."""
        if self.pending:
            self._made(1, None)
        else:
            self._store.save_midjourney(transitions.picture_picked(self._store.documents.midjourney, 1))

    def wasted(self, error: VendorError) -> None:
        self._made(1, "wasted")

    def lost(self, error: OutcomeUnknown) -> None:
        self._made(1, UNKNOWN)

    held = lost

    def find(self) -> None:
        return None

    def disproved(self) -> None:
        return None

    def _made(self, index: int, outcome: str | None, room: Room | None = None) -> None:
        self._store.save_midjourney(transitions.choice_made(self._store.documents.midjourney, index, outcome), room)

    @property
    def _picked(self) -> int | None:
        """Which picture the document has as chosen: None before the call begins, 0 while it is under way."""
        results = self._store.documents.midjourney.results
        return results.picked if results else None


def conclude(store: DocumentStore, doc: MidjourneyDocument, error: VendorError) -> None:
    """Save what a failure makes of the document. An error that a person must fix is alerted once, not each time."""
    before = store.documents.midjourney.error
    if doc.error.critical:
        doc = transitions.alerted(doc)
        if not (before.alerted and before.code == error.code):
            alert(error.code.value, f"{error}. Everything waits until it is fixed", step=doc.present_step.value)
    store.save_midjourney(doc)
