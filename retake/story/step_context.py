"""What a step works with: the settings, the documents, the vendors, the clock, the guard of paid calls.

Everything that touches the world comes in through here, so that a test or a simulation decides what the world is.
"""

from collections.abc import Callable
from random import random
from typing import Any

from retake.clock import Clock
from retake.errors import VendorError
from retake.paid.guard import PaidCallGuard
from retake.paid.spending import Spending
from retake.story import transitions
from retake.story.clients import MediaTools, Vendors
from retake.story.documents import MidjourneyDocument, Status, Step
from retake.story.journal import StoryBudget, StoryJournal, conclude
from retake.story.retry_policy import StepFailure, failure_record
from retake.story.settings import Settings
from retake.story.spending import story_spending
from retake.story.store import DocumentStore
from retake.ticking.process import Process


class StepContext:
    """The surroundings of one step, its documents read under the lease.

    `process` answers signals and keeps the kernel's timer. `spending` must be that of the whole bucket; left out, the
    store's bucket is taken for the whole. `nonce()` returns 0 … 2**32-1, `random()` 0 … 1.
    """

    def __init__(
        self,
        settings: Settings,
        store: DocumentStore,
        vendors: Vendors,
        media: MediaTools,
        clock: Clock,
        *,
        process: Process | None = None,
        nonce: Callable[[], int] | None = None,
        random: Callable[[], float] = random,
        spending: Spending | None = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.vendors = vendors
        self.media = media
        self.clock = clock
        self.process = process or Process(clock)
        self.nonce = nonce or _random_nonce
        self._random = random
        self.journal = StoryJournal(store, vendors, clock, self.record)
        self.budget = StoryBudget(store, spending or story_spending(settings, store.bucket, clock))
        self.paid = PaidCallGuard(
            self.journal,
            self.budget,
            lease=store.lease,
            clock=clock,
            process=self.process,
            call_timeout_s=settings.workflow.call_timeout_seconds,
            on_unknown=settings.workflow.on_unknown_outcome,
        )

    @property
    def generation_id(self) -> str:
        """The generation under way, "" if there is none."""
        return self.store.documents.gen.generation_id or ""

    def record(
        self, error: VendorError, step: Step | None = None, doc: MidjourneyDocument | None = None
    ) -> dict[str, Any]:
        """Return the error record of a failure of `step`, by default the present one, as `doc` counts it, by default
        the one in the store."""
        doc = doc or self.store.documents.midjourney
        failure = StepFailure.of(doc, step or doc.present_step, error, self.clock.now())
        return failure_record(self.settings, failure, self.generation_id, self._random)

    def fail(self, status: Status, error: VendorError) -> VendorError:
        """Save that a step failed while no paid call was pending; return the error, to be raised."""
        doc = self.store.documents.midjourney
        conclude(self.store, transitions.failed(doc, status, self.record(error)), error)
        return error


def _random_nonce() -> int:
    from random import SystemRandom

    return SystemRandom().randrange(2**32)
