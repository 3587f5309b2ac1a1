"""The state of the story for an operator: its documents, and the decision on them, in words."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NamedTuple

from retake.degraded.mode import Mode
from retake.errors import ErrorRecord, StateError
from retake.operations.attempts import StepAttempt
from retake.operations.port import PipelineState, Waiting
from retake.operations.words import with_full_stop
from retake.paid.caps import Today
from retake.settings.shared import Workflow
from retake.story.decision import (
    Act,
    Action,
    awaits_fix,
    begin_held,
    decide,
    decide_in,
    stopped,
    uncapped,
    undecided,
    vendor_of,
)
from retake.story.documents import FAILED_STEP, Documents, MidjourneyDocument, PendingCall, Status, Step
from retake.story.operator_rules import why
from retake.story.settings import Settings, prefix_of
from retake.story.spending import known, price_of
from retake.story.store import DocumentStore
from retake.story.tidy import TidyPlan, tidy_plan

OPERATOR = "the operator"

WORDS: Mapping[Status | None, str] = {
    None: "it continues with the next tick",
    Status.WAITING_FOR_IMAGINE: "four pictures are ordered; waiting for Midjourney",
    Status.WAITING_FOR_UPSCALE: "the upscale is ordered; waiting for Midjourney",
    Status.WAITING_FOR_RUNWAY: "the video is ordered; waiting for Runway",
    Status.CONTENT_FAILED: "writing the text failed",
    Status.IMAGINE_TRIGGER_FAILED: "ordering the pictures failed",
    Status.UPSCALE_TRIGGER_FAILED: "ordering the upscale failed",
    Status.MJ_FETCH_FAILED: "asking Midjourney for its task's state failed",
    Status.RUNWAY_TRIGGER_FAILED: "ordering the video failed",
    Status.RUNWAY_POLL_FAILED: "asking Runway for its task's state failed",
    Status.RUNWAY_POLL_TIMEOUT: "the video was not ready within one tick",
    Status.TIMED_OUT_MOCK_NEEDED: "no more calls to the vendors; a mock is made",
    Status.TASK_FAILED_MAX_RETRIES: "it failed for good; the next tick moves it to the dead letters",
}
"""Each status in words."""

_NEXT_ACTS = {
    Act.WAIT: "rest",
    Act.RECONCILE: "settle",
    Act.DEAD_LETTER: "bury",
    Act.ORDER_VIDEO: "film",
    Act.POLL_VIDEO: "film",
}
"""The values of `next_act`, which programs read, that differ from the names in the code."""


def step_attempt(doc: MidjourneyDocument, limits: Workflow) -> StepAttempt:
    """Return the current or last attempt of the generation under way."""
    step = doc.present_step
    return StepAttempt(step.value, doc.retries_of(step) + 1, limits.max_retries + 1)


def held_call(documents: Documents, limits: Workflow, channel: str | None) -> str:
    """Return what a person has to decide about a paid call of unknown outcome, or ""."""
    generation_id, pending = documents.gen.generation_id, documents.midjourney.pending
    if not generation_id or pending is None or not undecided(pending, limits):
        return ""
    name = f"{prefix_of(channel)}{generation_id}"
    return (
        f"Nobody can tell whether the {pending.step} call was carried out: look at the vendor's account, then "
        f"`retry {name}` (it is made again) or `skip {name}`"
    )


def story_state(
    name: str,
    store: DocumentStore,
    settings: Settings,
    today: Today | StateError | None,
    vendor_off: Callable[[str], str],
    mode: Mode = Mode(),  # noqa: B008  immutable
) -> PipelineState:
    """Return the state of the story called `name`; see `OperatedPipeline.state`. Raises StorageError."""
    book = None if isinstance(today, StateError) else today
    try:
        documents = store.read()
    except StateError as error:
        seen = book and book._replace(pipeline=name)
        told = "stops at the invalid document"
        return PipelineState("unreadable", readable=False, next_tick=told, today=seen, needs=(str(error),))
    seen = book and book.seen_by(name, known(documents.midjourney))
    over = (lambda step: seen.over(price_of(settings, step))) if seen else uncapped
    mock = settings.modes.video_mock
    action, coming = decide_in(mode, documents, settings.workflow, store.clock.now(), over, video_mock=mock)
    held = begin_held(mode, video_mock=mock) or over(Step.CONTENT)
    to_fix = awaits_fix(documents, settings.workflow, store.clock.now())
    held_back = coming.act is Act.WAIT or bool(_off(coming, vendor_off))
    view = _View(documents, action, settings.workflow, name.partition("/")[2], to_fix, held_back)
    return view.state(seen, coming, next_tick(store, coming, held, vendor_off))


class _View(NamedTuple):
    """The documents, and the decision on them."""

    documents: Documents
    action: Action
    limits: Workflow
    channel: str  # "" without channels
    to_fix: bool  # whether a person has to fix the cause of the last failure
    held_back: bool  # whether the next tick waits, also for a degraded mode or a breaker

    @property
    def doc(self) -> MidjourneyDocument:
        return self.documents.midjourney

    @property
    def waits(self) -> bool:
        return self.action.act is Act.WAIT

    @property
    def held(self) -> PendingCall | None:
        """The paid call of unknown outcome that a person has to decide on, if any."""
        call = self.doc.pending
        return call if call and self.waits and undecided(call, self.limits) else None

    def state(self, today: Today | None, coming: Action, next_tick: str) -> PipelineState:
        """Return the state. `coming` is the action that a degraded mode leaves, `next_tick` the same in words."""
        doc, gen, act = self.doc, self.documents.gen, coming.act
        name = gen.generation_id
        waiting = self._waiting() if name else None
        failing = doc.status in FAILED_STEP
        return PipelineState(
            self._words(waiting) if name else "no generation is under way",
            item_id=name,
            step=step_attempt(doc, self.limits) if name else None,
            status=doc.status,
            error=doc.error if name else ErrorRecord(),
            waiting=waiting,
            failing=failing,
            next_retry_at=self.action.until if failing else None,
            next_act=_NEXT_ACTS.get(act, act.name.lower()),
            next_tick=next_tick,
            idle=act is Act.WAIT,
            interrupted=self.documents.public.processing_lock,
            failed_in_a_row=gen.failed_in_a_row,
            stopped=stopped(gen, self.limits),
            today=today,
            needs=tuple(self._needs()),
            notes=tuple(_incomplete_ids(gen.warned)),
        )

    def _words(self, waiting: Waiting | None) -> str:
        if self.doc.cancelled:
            return "it was cancelled; the next tick moves it to the dead letters"
        if self.held:
            return "a paid call of unknown outcome is held"
        if self.waits and waiting and waiting.party == OPERATOR:
            return "it waits until a person has fixed something"
        return "it is waiting" if self.held_back and self.doc.status is None else WORDS[self.doc.status]

    def _waiting(self) -> Waiting | None:
        doc = self.doc
        if call := self.held:
            return Waiting(OPERATOR, f"what became of the {call.step} call", call.requested_at)
        if self.to_fix:
            return Waiting(OPERATOR, doc.error.advice or "what the error names", doc.error.at)
        if doc.runway_task:
            return Waiting("Runway", f"task {doc.runway_task.task_id}", doc.runway_task.requested_at)
        if doc.task:
            return Waiting("Midjourney", f"{doc.task.task_type} task {doc.task.task_id}", doc.task.requested_at)
        return None

    def _needs(self) -> list[str]:
        doc, generation_id, failed = self.doc, self.documents.gen.generation_id, self.documents.gen.failed_in_a_row
        if not generation_id:
            options = f"--resume --channel {self.channel}" if self.channel else "--resume"
            mend = f"the last {failed} generations all failed; fix the cause, then run the manager with {options}"
            return [mend] if stopped(self.documents.gen, self.limits) else []
        name = f"{prefix_of(self.channel)}{generation_id}"
        if call := self.held:
            return [
                f"nobody can tell whether the {call.step} call of {name} was carried out: look at the vendor's "
                f"account, then retry {name} (make it again) or skip {name}"
            ]
        return [f"{with_full_stop(doc.error.message)} Then retry {name}.".strip()] if self.to_fix else []


def _incomplete_ids(warned: list[str]) -> list[str]:
    more = f" and {len(warned) - 10} more" if len(warned) > 10 else ""
    return [f"published, and lacking files: {', '.join(warned[:10])}{more}"] if warned else []


def next_tick(store: DocumentStore, action: Action, held: str, vendor_off: Callable[[str], str]) -> str:
    """Return what the next tick does, in words. `held` says why no generation is begun, or "". `vendor_off(vendor)`
    returns why a vendor is not called, or "". Raises StorageError."""
    if action.act is Act.WAIT:
        moved = _moved(tidy_plan(store)) if action.tidies else 0
        return f"{f'moves {moved} files and ' if moved else ''}waits: {why(action)}"
    if action.act is Act.BEGIN:
        return _beginning(store, held, _off(Action(Act.WRITE, Step.CONTENT, ""), vendor_off))
    if alone := _off(action, vendor_off):
        return f"waits: {alone}; due then: {action.act} ({why(action)})"
    return f"{action.act} ({why(action)})"


def _off(action: Action, vendor_off: Callable[[str], str]) -> str:
    """Return why the vendor of the action is not called, or ""."""
    vendor = vendor_of(action)
    return vendor_off(vendor) if vendor else ""


def breaker_ahead(documents: Documents, limits: Workflow, now: datetime, vendor_off: Callable[[str], str]) -> str:
    """Return which breaker holds the next call back, and what lets one through, as a sentence after another, or ""."""
    action = decide(documents, limits, now)
    off = _off(action, vendor_off)
    return f". {off}. To let one call through at once: breaker probe {vendor_of(action)}" if off else ""


def _moved(plan: TidyPlan) -> int:
    return sum(map(len, plan.moves))


def _beginning(store: DocumentStore, held: str, off: str) -> str:
    plan = tidy_plan(store)
    tidying = f"move {moved} files, then " if (moved := _moved(plan)) else ""
    if not plan.room:
        return f"{tidying}begin nothing: {store.paths.folder_666} holds a ready group"
    if held:
        return f"{tidying}begin nothing: {held}"
    return f"{tidying}begin a new generation" + (f", then wait: {off}" if off else "")
