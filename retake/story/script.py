"""A step as a script: its context, its journals of paid calls, and how it runs.

A script is run by a tick under the tick's lease, or by hand under its own. Everything that touches the outside world
comes in through `StepContext`, so that tests and simulations can replace it.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from retake.bucket import Room, this_process
from retake.clock import Clock, SystemClock
from retake.errors import Code, LeaseLost, OutcomeUnknown, Refused, StateError, VendorError
from retake.exit_codes import ExitCode
from retake.logs import alert, bind, diagnosing, open_streams, setup_logging
from retake.paid.guard import Intent, Journal, PaidCallGuard
from retake.paid.spending import CapsBudget, Spending
from retake.story import transitions
from retake.story.clients import LocalMedia, MediaTools, RealVendors, Vendors
from retake.story.decision import comparable
from retake.story.documents import UNKNOWN, MidjourneyDocument, PendingCall, Status, Step
from retake.story.settings import (
    CHANNEL_VARIABLE,
    LEASE,
    Settings,
    open_storage,
    part_of,
    pipeline_of,
    settings_and_keys,
)
from retake.story.spending import known, story_spending
from retake.story.store import DocumentStore
from retake.ticking.process import LEASE_VARIABLE, KillTimer, Process, StopSignal, exit_code_of, is_terminal


class StepContext:
    """The context of one step, with the documents read under the lease.

    `process` answers signals and sets the kernel's timer. `spending` must be for the whole bucket; the default takes
    the store's bucket to be the whole one. `nonce()` returns 0 … 2**32-1.
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
        spending: Spending | None = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.vendors = vendors
        self.media = media
        self.clock = clock
        self.process = process or Process(clock)
        self.nonce = nonce or (lambda: int.from_bytes(os.urandom(4)))
        self.journal = StoryJournal(store, vendors, clock, self.record)
        self.budget = CapsBudget(
            spending or story_spending(settings, store.bucket, clock), lambda: known(store.documents.midjourney)
        )
        self.paid = self.guard(self.journal, settings.workflow.on_unknown_outcome)

    def guard(self, journal: Journal, on_unknown: str) -> PaidCallGuard:
        """Return the guard of the paid calls that `journal` records."""
        return PaidCallGuard(
            journal,
            self.budget,
            lease=self.store.lease,
            clock=self.clock,
            process=self.process,
            call_timeout_s=self.settings.workflow.call_timeout_seconds,
            on_unknown=on_unknown,
        )

    @property
    def generation_id(self) -> str:
        """The id of the generation under way, or ""."""
        return self.store.documents.gen.generation_id or ""

    def check_under_way(self, generation_id: str) -> None:
        """Raise StateError unless this generation is the one under way, and has not failed for good."""
        if not generation_id or generation_id != self.generation_id:
            raise StateError(
                f"generation {generation_id or repr('')} is not under way: {self.store.paths.config_gen} names "
                f"{self.generation_id or 'none'}. Nothing was changed"
            )
        if self.store.documents.midjourney.status is Status.TASK_FAILED_MAX_RETRIES:
            from retake.story.operator_rules import has_ended

            raise StateError(f"{has_ended(self.store.documents)}. Nothing was changed")

    def record(
        self, error: VendorError, step: Step | None = None, doc: MidjourneyDocument | None = None
    ) -> dict[str, Any]:
        """Return the error record of a failure of `step` (default: the current one), with the retries that `doc`
        (default: the one in the store) counts."""
        from random import random

        from retake.story.retry_policy import StepFailure, failure_record

        doc = doc or self.store.documents.midjourney
        failure = StepFailure.of(doc, step or doc.present_step, error, self.clock.now())
        return failure_record(self.settings, failure, self.generation_id, random)

    def fail(
        self, status: Status, error: VendorError, step: Step | None = None, doc: MidjourneyDocument | None = None
    ) -> VendorError:
        """Save that a step failed while no paid call was pending. Return the error, for the caller to raise. For `step`
        and `doc` see `record`."""
        doc = doc or self.store.documents.midjourney
        conclude(self.store, transitions.failed(doc, status, self.record(error, step, doc)), error)
        return error


Accepted = Callable[[MidjourneyDocument, Any], MidjourneyDocument]

_ACCEPTED: Mapping[Step, Accepted] = {
    Step.CONTENT: transitions.answered,
    Step.IMAGINE: transitions.picture_ordered,
    Step.UPSCALE: transitions.picture_ordered,
    Step.RUNWAY: transitions.video_ordered,
}
"""Return the document after the vendor's answer to a call of the step."""


class StoryJournal:
    """The `retake.paid.guard.Journal` in config_midjourney.json: `pending_call`, `spend` and `paid_calls`.

    Each method is one save: the intent, its price and its reservation are recorded together, and so are the answer and
    its effect on the generation. `record` returns the error record of a failure of the current step.
    """

    def __init__(
        self, store: DocumentStore, vendors: Vendors, clock: Clock, record: Callable[[VendorError], dict[str, Any]]
    ) -> None:
        self._store = store
        self._vendors = vendors
        self._clock = clock
        self._record = record
        self._following: tuple[Intent, MidjourneyDocument] | None = None  # with the document in which it is recorded
        self.save_text: Callable[[Mapping[str, Any]], None] | None = None
        """Saves the text made from all answers, if that is the record of the last one (`PendingCall.in_text`)."""

    def set_aside(self) -> Room:
        return self._store.set_aside()

    def begin(self, intent: Intent) -> None:
        self._store.save_midjourney(self._intended(self._doc, intent))

    @property
    def pending(self) -> str | None:
        call = self._doc.pending
        return call.step.value if call else None

    def accepted(self, answer: Any, room: Room | None = None) -> None:
        """See `retake.paid.guard.Journal`. An answer whose record is the text is saved in the document only if the text
        could not be saved, in the room that was set aside."""
        call, doc = self._call, _ACCEPTED[self._call.step](self._doc, answer)
        if call.in_text and self.save_text and room is None:
            self.save_text(doc.draft)
            self._store.documents = self._store.documents._replace(midjourney=transitions.content_ready(doc))
        else:
            self._store.save_midjourney(doc, room)

    def accepted_before(self, following: Intent, answer: Any, room: Room | None = None) -> None:
        """See `retake.paid.guard.SeriesJournal`. Another try writes exactly the same document, so that an earlier try
        that succeeded, but whose answer was lost, is recognised."""
        if self._following is None or self._following[0] is not following:
            self._following = following, self._intended(_ACCEPTED[self._call.step](self._doc, answer), following)
        self._store.save_midjourney(self._following[1], room)

    def refused(self, error: Refused) -> None:
        conclude(self._store, transitions.call_refused(self._doc, self._record(error)), error)

    def wasted(self, error: VendorError) -> None:
        conclude(self._store, transitions.call_wasted(self._doc, self._record(error)), error)

    def lost(self, error: OutcomeUnknown) -> None:
        self._store.save_midjourney(transitions.call_lost(self._doc, self._record(error)))

    def held(self, error: OutcomeUnknown) -> None:
        self._store.save_midjourney(transitions.call_held(self._doc, self._record(error)))

    def find(self) -> str | None:
        """See `retake.paid.guard.Journal`. A task that is already on record is not taken, as it belongs to an earlier
        call: since clocks may differ, the search includes the minute before the call, and another order of an upscale
        has the same words."""
        if self._call.step not in (Step.IMAGINE, Step.UPSCALE):
            return None
        found = self._vendors.midjourney().find(self._call.raw)
        return None if found in [call.get("task_id") for call in self._doc.paid_calls] else found

    def disproved(self) -> Refused | None:
        """Compare the vendor's counts with those saved before a held call. If they are equal, the call was not carried
        out."""
        call = self._call
        if call.outcome != UNKNOWN or not comparable(call, self._clock.now()):
            return None
        counted = self._vendors.video_generator().usage()
        if counted is None or counted != call.raw["usage"]:
            self._store.save_midjourney(transitions.usage_compared(self._doc))
            raise OutcomeUnknown(Code.NETWORK, f"the vendor's counts have moved since the {call.step} call")
        return Refused(Code.NETWORK, f"by the vendor's counts the {call.step} call was not carried out")

    def _intended(self, doc: MidjourneyDocument, intent: Intent) -> MidjourneyDocument:
        return transitions.intended(doc, Step(intent.step), self._clock.now(), *intent[1:])

    @property
    def _doc(self) -> MidjourneyDocument:
        return self._store.documents.midjourney

    @property
    def _call(self) -> PendingCall:
        assert self._doc.pending is not None, "no paid call is pending"
        return self._doc.pending


class PickJournal:
    """The `retake.paid.guard.Journal` of the choice of a picture. From its beginning the call counts as billed, in
    `paid_calls`, unless it turns out not to have been carried out."""

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
        """The chosen picture in the document: None before the call begins, 0 while it is under way."""
        results = self._store.documents.midjourney.results
        return results.picked if results else None


def conclude(store: DocumentStore, doc: MidjourneyDocument, error: VendorError) -> None:
    """Save the document after a failure. An error that a person must fix is alerted once, not each time."""
    before = store.documents.midjourney.error
    if doc.error.critical:
        doc = transitions.alerted(doc)
        if not (before.alerted and before.code == error.code):
            told = str(error).removesuffix(".")  # a vendor's error often ends with a sentence of advice
            alert(error.code.value, f"{told}. Everything waits until it is fixed", step=doc.present_step.value)
    store.save_midjourney(doc)


# --- how a step runs: by a tick under its lease, or by hand under its own --------------------------------------------

_GRACE_S = 30.0  # after the time at which the tick would have killed the script


def run_script(work: Callable[[StepContext], None], channel: str | None = None) -> int:
    """Set up a step's context, do its work, and return the exit code. Messages go to the log. `channel` overrides the
    one in the environment."""
    open_streams()
    environ = {**os.environ, **({CHANNEL_VARIABLE: channel} if channel else {})}
    setup_logging(sys.stderr, human=is_terminal(), environ=environ)
    return exit_code_of(lambda: _work(work, environ), part_of_a_run=LEASE_VARIABLE in environ)


def _work(work: Callable[[StepContext], None], environ: Mapping[str, str]) -> int:
    handed = environ.get(LEASE_VARIABLE)
    settings, keys = settings_and_keys(environ, warn=not handed)
    channel = environ.get(CHANNEL_VARIABLE)
    whole, clock = open_storage(settings), SystemClock()
    bucket, spending = part_of(whole, settings, channel), story_spending(settings, whole, clock, pipeline_of(channel))
    lease = bucket.join(LEASE, handed) if handed else bucket.lease(LEASE, this_process())
    stop, timer = StopSignal(), KillTimer(settings.workflow.script_timeout_seconds + _GRACE_S if handed else None)
    process = Process(clock, stopping=lambda: stop.count > 0, kill_after=timer.kill_after)
    try:
        store = DocumentStore(bucket, settings.paths, lease, clock)
        store.read()
        if diagnosing():
            from retake.story.decision import next_step
            from retake.story.diagnosis import log_decision

            log_decision(store.documents, next_step(store.documents))
        vendors, media = RealVendors(settings, keys), LocalMedia(settings)
        context = StepContext(settings, store, vendors, media, clock, process=process, spending=spending)
        with bind(generation_id=context.generation_id or None, channel=channel):
            try:
                work(context)
                if not handed:  # otherwise the tick does it, unless it continues with another step
                    store.save_midjourney(store.documents.midjourney)
            finally:
                if not handed:
                    with suppress(LeaseLost):  # its new holder may have reservations that our document does not have
                        lease.check()
                        spending.heal(known(store.documents.midjourney))
    finally:
        lease.release()
    return ExitCode.OK


def write(generation_id: str, channel: str | None = None) -> int:
    """Do the work of generate_content.py, and return the exit code."""
    from retake.story.content import load_prompts, prompts_file, write_content

    return run_script(
        lambda context: write_content(context, generation_id, load_prompts(prompts_file(context.settings))), channel
    )


def make(generation_id: str, channel: str | None = None, *, use_mock: bool = False) -> int:
    """Do the work of generate_media.py, and return the exit code."""
    from retake.story.media import make_media

    return run_script(lambda context: make_media(context, generation_id, use_mock=use_mock), channel)


def save(generation_id: str, channel: str | None = None) -> int:
    """Do the work of generate_media.py --picture-only, and return the exit code."""
    from retake.story.media import save_picture

    return run_script(lambda context: save_picture(context, generation_id), channel)


def ask(channel: str | None = None) -> int:
    """Do the work of fetch_media.py, and return the exit code."""
    from retake.story.media import fetch

    return run_script(fetch, channel)


# --- command lines: those of a tick are parsed without importing click ----------------------------------------------


def content(arguments: Sequence[str], program: str | None = None) -> NoReturn:
    """Run generate_content.py with the command line's arguments, and exit. `program` is its name in messages."""
    match arguments:
        case ["--generation_id", generation_id] if not generation_id.startswith("-"):
            sys.exit(write(generation_id))
    _with_options("content", arguments, program)


def media(arguments: Sequence[str], program: str | None = None) -> NoReturn:
    """Run generate_media.py with the command line's arguments, and exit. `program` is its name in messages."""
    match arguments:
        case ["--generation_id", generation_id] if not generation_id.startswith("-"):
            sys.exit(make(generation_id))
    _with_options("media", arguments, program)


def fetch(arguments: Sequence[str], program: str | None = None) -> NoReturn:
    """Run fetch_media.py with the command line's arguments, and exit. `program` is its name in messages."""
    if not arguments:
        sys.exit(ask())
    _with_options("fetch", arguments, program)


def _with_options(command: str, arguments: Sequence[str], program: str | None) -> NoReturn:
    from retake.story import options

    getattr(options, command)(list(arguments), prog_name=program)
    raise AssertionError("click ends the process")
