"""Decides what to do next: a pure, total function of the documents, the limits and the time.

row  what the documents say                                        action
───  ────────────────────────────────────────────────────────────  ──────────────────────────────────────────────
     no generation under way (`generation_id` null)
 1     `generation: true`                                           LOWER_FLAG
 2     the last `max_failed_in_a_row` generations all failed        WAIT, exit 69, until the operator resumes; tidy up
 3     else                                                         BEGIN (tidy up; new content if 666/ has room)
     a generation under way
 4     `task_failed_max_retries`                                    DEAD_LETTER (keep everything, clear the id)
 5     `pending_call`, held for the operator (and "hold" is set,    WAIT, exit 75
       or reconciling it failed too often)
 6     `pending_call`                                               RECONCILE (what became of it?)
 7     an error status, attempts left, the next not due yet         WAIT, exit 0, until `retry_at`
 8     an error status, attempts left                               RETRY (count, reset; the step runs next tick)
 9     an error status, none left, `on_exhausted: mock`             SUBSTITUTE (once there is content)
10     an error status, none left                                   FAIL
11     `timed_out_mock_needed`                                      MAKE_MOCK (FAIL when that has failed too often)
12     .json, .png and .mp4 are there                               FINISH
13     a Runway task in flight                                      POLL_VIDEO
14     a Midjourney task in flight for too long                     TIME_OUT (ask once more, then give it up)
15     a Midjourney task in flight                                  FETCH
16     results of an upscale                                        ORDER_VIDEO
17     results of an imagine                                        ORDER_UPSCALE
18     no .json                                                     WRITE
19     `generation: true`                                           ORDER_IMAGINE
20     .json is there, all else empty                               RAISE_FLAG

After an error that only a person can fix (class C), an action that would run a script becomes WAIT, exit 78, until
`critical_retry_minutes` have passed. Tasks in flight come before results in hand: while an upscale is in flight the
results of the imagine are kept, and must not start a second one.

A degraded mode holds back some actions, and mode 1 may replace a video by a mock (`under_mode`). While a mode, a cap or
a breaker holds back ORDER_VIDEO, or its RETRY, the tick saves the picture (`picture_unsaved`).

This is the only place that decides what comes next. The tick carries out an Action itself, or runs the script that does
(`script_of`). The script carries out what `next_step` returns: rows 6, 12, 13 and 15 to 20, without the waiting and
counting that only a tick does.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from retake.clock import CLOCKS_DIFFER
from retake.degraded.mode import EMERGENCY, FULL, MINIMAL, REDUCED, Mode
from retake.exit_codes import ExitCode
from retake.settings.shared import Workflow
from retake.story.documents import (
    FAILED_STEP,
    IMAGINE,
    UNKNOWN,
    Documents,
    GenDocument,
    MidjourneyDocument,
    PendingCall,
    Status,
    Step,
    Task,
)


class Act(StrEnum):
    """The actions of a tick."""

    WAIT = "wait"
    LOWER_FLAG = "lower the flag `generation`, which no generation raised"
    BEGIN = "tidy up and begin a new generation"
    DEAD_LETTER = "move the failed generation to the dead letters"
    RECONCILE = "find out what became of a paid call"
    RETRY = "grant one more attempt"
    SUBSTITUTE = "fall back to a mock: no attempt is left"
    MOCK_VIDEO = "let a mock take the place of the video"
    FAIL = "give up: no attempt is left"
    MAKE_MOCK = "make the mock"
    FINISH = "finish: all files are there"
    POLL_VIDEO = "wait for the video"
    TIME_OUT = "give up on Midjourney unless it is ready"
    FETCH = "ask Midjourney for the task's state"
    ORDER_VIDEO = "order the video"
    ORDER_UPSCALE = "order the upscale"
    ORDER_IMAGINE = "order the pictures"
    WRITE = "write the content"
    RAISE_FLAG = "raise the flag `generation`, which a crash lost"


class Action(NamedTuple):
    """What to do, for which step, and why, in words for the log."""

    act: Act
    step: Step
    why: str
    exit_code: int = ExitCode.OK  # of a WAIT
    until: datetime | None = None  # when the failed step is due again: of a RETRY, and of a WAIT that time ends
    tidies: bool = False  # whether the tick tidies up first: of a WAIT; a BEGIN always does


COUNTED_AFTER = timedelta(minutes=3)
"""The time after a call from which the vendor's counts are assumed to include it."""

ASK_TO_RESOLVE = "say --resolve retry (it may be billed twice) or --resolve skip"
"""The request to an operator about a paid call that is held."""

PAYS = {
    Act.WRITE: Step.CONTENT,
    Act.ORDER_IMAGINE: Step.IMAGINE,
    Act.ORDER_UPSCALE: Step.UPSCALE,
    Act.ORDER_VIDEO: Step.RUNWAY,
}
"""The actions that make a paid call, and its step."""

PICTURE_ONLY = "--picture-only"
"""The option of generate_media.py with which it saves the picture and orders nothing."""

_ENDS = frozenset({Act.FINISH, Act.FAIL, Act.SUBSTITUTE, Act.DEAD_LETTER})
"""The actions that end a generation, or its calls to vendors."""

CONTENT_SCRIPT, MEDIA_SCRIPT, FETCH_SCRIPT = "generate_content", "generate_media", "fetch_media"

_SCRIPTS = {
    Act.WRITE: CONTENT_SCRIPT,
    Act.RECONCILE: MEDIA_SCRIPT,
    Act.ORDER_IMAGINE: MEDIA_SCRIPT,
    Act.ORDER_UPSCALE: MEDIA_SCRIPT,
    Act.ORDER_VIDEO: MEDIA_SCRIPT,
    Act.POLL_VIDEO: MEDIA_SCRIPT,
    Act.MAKE_MOCK: MEDIA_SCRIPT,
    Act.TIME_OUT: FETCH_SCRIPT,  # perhaps nobody has asked for hours: the schedule stood still, or the key was refused
    Act.FETCH: FETCH_SCRIPT,
}

_VENDORS = {
    Step.CONTENT: "openai",
    Step.IMAGINE: "midjourney",
    Step.UPSCALE: "midjourney",
    Step.FETCH: "midjourney",
    Step.RUNWAY: "runway",
    Step.RUNWAY_POLL: "runway",
}


def script_of(action: Action) -> str | None:
    """Return the script that carries out the action, or None if the tick does so itself."""
    if action.act is Act.RECONCILE and action.step is Step.CONTENT:
        return CONTENT_SCRIPT
    return _SCRIPTS.get(action.act)


def vendor_of(action: Action) -> str | None:
    """Return the vendor that the action calls, or None."""
    return vendor_of_step(action.step) if script_of(action) else None


def vendor_of_step(step: Step) -> str | None:
    """Return the vendor of a step, or None."""
    return _VENDORS.get(step)


def uncapped(step: Step) -> str:
    """Return "": there is no cap."""
    return ""


def decide(documents: Documents, limits: Workflow, now: datetime, over: Callable[[Step], str] = uncapped) -> Action:
    """Return the next action. Total: every parsed set of documents has one.

    `over(step)` returns why a cap forbids a paid call of the step now, or "". It is called only for an action that
    pays, since it may read the bucket. Raises what `over` raises.
    """
    doc = documents.midjourney
    if documents.gen.generation_id is None:
        return _without_generation(documents.gen, doc, limits)
    action = _with_generation(documents, limits, now)
    until = held_until(doc, limits)
    if script_of(action) and until and is_held(doc, limits, now):
        why = f"a person is needed, tried again at {until:%H:%M} UTC: {doc.error.message}"
        return Action(Act.WAIT, action.step, why, ExitCode.CONFIG, until)
    paying = PAYS.get(action.act)
    why = over(paying) if paying else ""
    return capped(action, why) if why else action


def next_step(documents: Documents) -> Action:
    """Return the work that the documents of a generation call for, ignoring failures and what is not due yet."""
    call = documents.midjourney.pending
    return _reconcile(call) if call else _work(documents)


def capped(action: Action, why: str) -> Action:
    """Return the WAIT that replaces an action that a cap holds back. `why` says which cap."""
    return Action(Act.WAIT, action.step, why, ExitCode.TRY_LATER)


def decide_in(
    mode: Mode,
    documents: Documents,
    limits: Workflow,
    now: datetime,
    over: Callable[[Step], str] = uncapped,
    *,
    video_mock: bool,
) -> tuple[Action, Action]:
    """Return what `decide` returns, and what replaces it in a degraded mode. No cap holds back a video that a mock
    replaces, since the mock is free."""
    mocks = mode.mode == REDUCED and video_mock
    due = decide(documents, limits, now, lambda step: "" if mocks and step is Step.RUNWAY else over(step))
    return due, under_mode(due, mode, video_mock=video_mock)


def under_mode(action: Action, mode: Mode, *, video_mock: bool) -> Action:
    """Return what replaces an action in a degraded mode: a WAIT if the mode holds it back, or, with `video_mock`, a
    mock for a video that mode 1 does not order. For BEGIN see `begin_held`.

    The RETRY of a step that pays is held back too, since it would use up an attempt without a call.
    """
    if not holds_back(action, mode.mode):
        return action._replace(tidies=action.tidies and mode.mode != EMERGENCY)
    if mode.mode == REDUCED and video_mock:
        return Action(Act.MOCK_VIDEO, Step.RUNWAY, mode.title)
    return Action(Act.WAIT, action.step, f"{mode.title} holds it back: {action.act}")


def holds_back(action: Action, mode: int) -> bool:
    """Return whether a degraded mode, 0 to 3, holds the action back."""
    if mode == FULL or action.act is Act.WAIT:
        return False
    step = action.step if action.act is Act.RETRY else PAYS.get(action.act)
    if mode == REDUCED:
        return step is Step.RUNWAY
    return mode == EMERGENCY or step in PAYS.values()


def picture_unsaved(action: Action, documents: Documents, mode: int) -> bool:
    """Return whether the picture of a video is still to be saved, while `action` is not carried out now: its link
    expires, and in the end the vendor forgets the task. An emergency mode lets nothing be asked for; what waits for
    its time, or for a key, does so first."""
    due = next_step(documents).act is Act.ORDER_VIDEO and documents.gen.generation_id is not None
    return due and action.until is None and mode != EMERGENCY and "png" not in documents.files


def begin_held(mode: Mode, *, video_mock: bool) -> str:
    """Return why a degraded mode begins no generation, or ""."""
    held = mode.mode >= MINIMAL or (mode.mode == REDUCED and not video_mock)
    return f"{mode.title} holds it back" if held else ""


def _without_generation(gen: GenDocument, doc: MidjourneyDocument, limits: Workflow) -> Action:
    if doc.generation:
        return Action(Act.LOWER_FLAG, Step.IMAGINE, "`generation` is true, but no generation is under way")
    if stopped(gen, limits):
        why = f"the last {gen.failed_in_a_row} generations all failed; fix the cause, then run with --resume"
        return Action(Act.WAIT, Step.CONTENT, why, ExitCode.FAILED, tidies=True)
    return Action(Act.BEGIN, Step.CONTENT, "no generation is under way")


def stopped(gen: GenDocument, limits: Workflow) -> bool:
    """Return whether too many generations in a row have failed. No other is then begun until the operator resumes."""
    return gen.generation_id is None and gen.failed_in_a_row >= limits.max_failed_in_a_row


def mock_follows(documents: Documents, limits: Workflow) -> bool:
    """Return whether a mock replaces what is given up. Nothing can replace the text."""
    return limits.on_exhausted == "mock" and "json" in documents.files


def _with_generation(documents: Documents, limits: Workflow, now: datetime) -> Action:
    doc = documents.midjourney
    status = doc.status
    if status is Status.TASK_FAILED_MAX_RETRIES:
        return Action(Act.DEAD_LETTER, doc.present_step, "the generation failed for good")
    if doc.pending:
        return _pending(doc.pending, limits, now)
    if status is not None and status in FAILED_STEP:
        return _failed(documents, status, limits, now)
    if status is Status.TIMED_OUT_MOCK_NEEDED:
        if doc.retries_of(Step.MOCK) > limits.max_retries:
            return Action(Act.FAIL, Step.MOCK, f"the mock failed {doc.retries_of(Step.MOCK)} times")
        return Action(Act.MAKE_MOCK, Step.MOCK, "the vendors were given up on")
    action = _work(documents)
    late = action.act is Act.FETCH and doc.task and _is_overdue(doc.task, limits.mj_timeout_seconds, now)
    if late and doc.task:
        return Action(Act.TIME_OUT, Step.FETCH, f"no {doc.task.task_type} after {limits.mj_timeout_seconds} s")
    return action


def _is_overdue(task: Task, seconds: float, now: datetime) -> bool:
    return task.requested_at is not None and now - task.requested_at > timedelta(seconds=seconds)


def _ahead(doc: MidjourneyDocument, now: datetime) -> bool:
    """Return whether the last failure is dated in the future, by a wrong clock. Then nothing waits for it."""
    return doc.error.at is not None and doc.error.at - now > CLOCKS_DIFFER


def comparable(call: PendingCall, now: datetime) -> bool:
    """Return whether the vendor's counts, saved with a held call, may by now prove that it was not carried out."""
    asked = call.requested_at
    return (
        bool(call.raw.get("usage"))
        and not call.raw.get("compared")
        and asked is not None
        and now > asked + COUNTED_AFTER
    )


def undecided(call: PendingCall, limits: Workflow) -> bool:
    """Return whether a person may decide about the call: it is held, or reconciling it has failed more often than the
    current `max_retries`."""
    return call.outcome == UNKNOWN or call.failed_reconciles > limits.max_retries


def _pending(call: PendingCall, limits: Workflow, now: datetime) -> Action:
    if call.failed_reconciles > limits.max_retries:
        why = f"finding out what became of the call for {call.step} failed {call.failed_reconciles} times"
        return Action(Act.WAIT, call.step, f"{why}: {ASK_TO_RESOLVE}", ExitCode.TRY_LATER)
    if call.outcome == UNKNOWN and limits.on_unknown_outcome == "hold" and not comparable(call, now):
        why = f"nobody can tell whether the call for {call.step} was carried out: --resolve retry, or --resolve skip"
        return Action(Act.WAIT, call.step, why, ExitCode.TRY_LATER)
    return _reconcile(call)


def _reconcile(call: PendingCall) -> Action:
    return Action(Act.RECONCILE, call.step, f"the call for {call.step} has no result on record")


def _failed(documents: Documents, status: Status, limits: Workflow, now: datetime) -> Action:
    from retake.story.retry_policy import attempt_left

    doc, step = documents.midjourney, FAILED_STEP[status]
    used, due = doc.retries_of(step), None if _ahead(doc, now) else doc.error.retry_at
    if attempt_left(doc, step, limits, now):
        why = f"attempt {used + 1}/{limits.max_retries} for status {status}"
        if due and now < due:
            return Action(Act.WAIT, step, f"{why} is due at {due:%Y-%m-%d %H:%M:%S} UTC", until=due)
        return Action(Act.RETRY, step, why, until=due or now)
    why = f"{status} after {used} {'retry' if used == 1 else 'retries'}"
    if step is not Step.CONTENT and mock_follows(documents, limits):
        return Action(Act.SUBSTITUTE, step, why)
    return Action(Act.FAIL, step, why)


def _work(documents: Documents) -> Action:
    """Return what comes next if nothing has failed: rows 12, 13 and 15 to 20."""
    doc, results = documents.midjourney, documents.midjourney.results
    if documents.complete:
        return Action(Act.FINISH, Step.RUNWAY, "text, picture and video are ready")
    if doc.runway_task:
        return Action(Act.POLL_VIDEO, Step.RUNWAY_POLL, f"task {doc.runway_task.task_id} is in flight")
    if doc.task:
        return Action(Act.FETCH, Step.FETCH, f"{doc.task.task_type} task {doc.task.task_id}")
    if results and results.task_type == IMAGINE:
        return Action(Act.ORDER_UPSCALE, Step.UPSCALE, "the pictures are ready")
    if results:
        return Action(Act.ORDER_VIDEO, Step.RUNWAY, "the upscaled picture is ready")
    if "json" not in documents.files:
        return Action(Act.WRITE, Step.CONTENT, "there is no text yet")
    if doc.generation:
        return Action(Act.ORDER_IMAGINE, Step.IMAGINE, "the text is ready")
    return Action(Act.RAISE_FLAG, Step.IMAGINE, "the text is ready, and nothing else")


def awaits_fix(documents: Documents, limits: Workflow, now: datetime) -> bool:
    """Return whether a person has to fix the cause of the last failure (class C) before the generation goes on.

    A call that is pending although vendors are no longer held back was begun after that failure. A generation that is
    complete, or has no attempt left, waits for nobody.
    """
    doc = documents.midjourney
    if held_until(doc, limits) is None or _with_generation(documents, limits, now).act in _ENDS:
        return False
    return not doc.pending or is_held(doc, limits, now)


def is_held(doc: MidjourneyDocument, limits: Workflow, now: datetime) -> bool:
    """Return whether no vendor is called now because of a failure that only a person can fix."""
    until = held_until(doc, limits)
    return until is not None and now < until and not _ahead(doc, now)


def held_until(doc: MidjourneyDocument, limits: Workflow) -> datetime | None:
    """Return the time until which no vendor is called after a failure that only a person can fix (class C), or None."""
    at = doc.error.at if doc.error.critical else None
    try:
        return at + timedelta(minutes=limits.critical_retry_minutes) if at else None
    except OverflowError:
        return None
