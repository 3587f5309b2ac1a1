"""Which of the four pictures is upscaled: the first, or the one that the chat API chooses (IMAGE_GENERATION.pick).

The choice is a paid call like any other, but its answer is not worth a second one: on any trouble the first picture is
taken, and a choice that was begun is never made again.
"""

from logging import getLogger
from typing import Any

from retake.bucket import Room
from retake.clock import Clock
from retake.errors import CapReached, OutcomeUnknown, SettingsError, VendorError
from retake.media import MediaError
from retake.paid.guard import DROP, PaidCallGuard
from retake.paid.journal import Intent
from retake.story import transitions
from retake.story.documents import UNKNOWN, Results, Step
from retake.story.step_context import StepContext
from retake.story.store import DocumentStore

_log = getLogger(__name__)

_QUESTION = "Which of these four pictures is the best first frame of a video?"


def pick(context: StepContext, results: Results) -> int:
    """Return which of the four pictures is upscaled, 1–4."""
    if context.settings.image.pick != "vision":
        return 1
    if results.picked is None:
        _choose(context, results)
        results = context.store.documents.midjourney.results or results
    return results.picked or 1


def _choose(context: StepContext, results: Results) -> None:
    journal = PickJournal(context.store, context.clock)
    guard = PaidCallGuard(
        journal,
        context.budget,
        lease=context.store.lease,
        clock=context.clock,
        process=context.process,
        call_timeout_s=context.settings.workflow.call_timeout_seconds,
        on_unknown=DROP,
    )
    try:
        pictures, writer = _pictures(context, results), context.vendors.writer()
        guard.call(Step.CONTENT, {}, lambda: writer.choose(_QUESTION, pictures))
    except CapReached:
        return
    except (VendorError, SettingsError, MediaError, KeyError) as error:  # SettingsError: no key
        _log.warning("the choice of a picture failed (%s): the first is taken", error)
        if not isinstance(error, VendorError) or not journal.ended:  # nothing was asked
            journal.not_made()
        return
    doc = context.store.documents.midjourney
    index = doc.results and doc.results.picked
    _log.info("picture %s of 4 was chosen", index, extra={"step": Step.UPSCALE.value})


def _pictures(context: StepContext, results: Results) -> list[str]:
    """Return the four pictures as links, or as data URIs cut from their grid."""
    singles = results.task_result.get("temporary_image_urls") or []
    if len(singles) == 4:
        return list(singles)
    most = context.settings.workflow.max_picture_bytes
    grid = context.vendors.downloader().download(results.task_result["image_url"], most)
    return [context.media.data_uri(quarter) for quarter in context.media.quarters(grid)]


class PickJournal:
    """`retake.paid.journal.Journal` of the choice: it counts as billed from its beginning, in `paid_calls`, unless it
    turns out not to have been carried out."""

    def __init__(self, store: DocumentStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._begun = False
        self.ended = False  # the call was made, and its end is on record

    def set_aside(self) -> Room:
        return self._store.set_aside()

    def begin(self, intent: Intent) -> None:
        doc, now = self._store.documents.midjourney, self._clock.now()
        self._store.save_midjourney(transitions.choice_begun(doc, now, intent.price_usd, intent.reservation))
        self._begun = True

    @property
    def pending(self) -> str | None:
        return Step.UPSCALE.value if self._begun else None

    def accepted(self, answer: Any, room: Room | None = None) -> None:
        self._made(answer, "done", room)

    def refused(self, error: VendorError) -> None:
        self._made(1, None)

    def not_made(self) -> None:
        """Record that the first picture is taken without a call."""
        if self._begun:
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
        self._begun, self.ended = False, True
