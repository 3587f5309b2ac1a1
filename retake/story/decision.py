"""What to do next: a pure, total function of the documents, the limits and the time.

row  what the documents say                                        what is done
───  ────────────────────────────────────────────────────────────  ──────────────────────────────────────────────
     no generation under way (`generation_id` null)
 1     `generation: true`                                           LOWER_FLAG
 2     the last `max_failed_in_a_row` generations all failed        REST, exit 69, until the operator says go on
 3     else                                                         BEGIN (tidy up; new content if 666/ has room)
     a generation under way
 4     `task_failed_max_retries`                                    BURY (dead letter, clear the id)
 5     `pending_call`, held for the operator (and «hold» is set,    REST, exit 75
       or finding out what became of it failed too often)
 6     `pending_call`                                               SETTLE (what became of it?)
 7     an error status, attempts left, the next not due yet         REST, exit 0, until `retry_at`
 8     an error status, attempts left                               RETRY (count, reset; the step runs next tick)
 9     an error status, none left, `on_exhausted: mock`             SUBSTITUTE (from where there is content)
10     an error status, none left                                   FAIL
11     `timed_out_mock_needed`                                      MAKE_MOCK (FAIL when that has failed too often)
12     .json, .png and .mp4 are there                               FINISH
13     a Runway task in flight                                      FILM (poll it)
14     a Midjourney task in flight for too long                     TIME_OUT
15     a Midjourney task in flight                                  FETCH
16     results of an upscale                                        FILM (order the video)
17     results of an imagine                                        ORDER_UPSCALE
18     no .json                                                     WRITE
19     `generation: true`                                           ORDER_IMAGINE
20     .json is there, all else empty                               RAISE_FLAG

Where the last error is one that only a person can mend (class C), whatever would run a script rests instead, exit
78, until `critical_retry_minutes` have passed. Results in hand come after a task in flight: while an upscale is in
flight the results of the imagine are kept, and must not start a second one.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from retake.clock import parse_stamp
from retake.errors import ErrorClass
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
)
from retake.story.settings import Workflow

if TYPE_CHECKING:
    from retake.paid.caps import Today


class Act(StrEnum):
    """The things that a tick can do."""

    REST = "rest"
    LOWER_FLAG = "lower the flag `generation`, which no generation raised"
    BEGIN = "tidy up and begin a new generation"
    BURY = "put the failed generation among the dead letters"
    SETTLE = "find out what became of a paid call"
    RETRY = "grant one more attempt"
    SUBSTITUTE = "make do with a mock: no attempt is left"
    FAIL = "give up: no attempt is left"
    MAKE_MOCK = "make the mock"
    FINISH = "finish: all files are there"
    FILM = "make the video"
    TIME_OUT = "give up on Midjourney: it took too long"
    FETCH = "ask Midjourney how the task stands"
    ORDER_UPSCALE = "order the upscale"
    ORDER_IMAGINE = "order the pictures"
    WRITE = "write the content"
    RAISE_FLAG = "raise the flag `generation`, which a crash lost"


RUNS_A_SCRIPT = frozenset(
    {Act.SETTLE, Act.MAKE_MOCK, Act.FILM, Act.FETCH, Act.ORDER_UPSCALE, Act.ORDER_IMAGINE, Act.WRITE}
)


class Action(NamedTuple):
    """What to do, for which step, and why, in words for the log."""

    act: Act
    step: Step
    why: str
    exit_code: int = 0  # of a REST
    until: datetime | None = None  # of a RETRY, and of a REST that ends by itself: when what failed is due again


COUNTED_AFTER = timedelta(minutes=3)
"""How long after a call its vendor's counts are taken to include it."""

ASK_TO_RESOLVE = "say --resolve retry (it may be billed twice) or --resolve skip"
"""What an operator is asked to do about a paid call that is held."""

PAYS = {Act.WRITE: Step.CONTENT, Act.ORDER_IMAGINE: Step.IMAGINE, Act.ORDER_UPSCALE: Step.UPSCALE}
"""The actions that make a paid call, whatever else the documents say; FILM is one too where it orders."""


def decide(
    documents: Documents,
    limits: Workflow,
    now: datetime,
    prices: Mapping[Step, float] | None = None,
    today: "Today | None" = None,
) -> Action:
    """The next action. Total: every parsed set of documents has one. `prices` are US dollars of one paid call of each
    step, `today` is what the day has cost; without both the caps are not looked at."""
    doc = documents.midjourney
    if documents.gen.generation_id is None:
        return _without_generation(documents.gen, doc, limits)
    action = _with_generation(documents, limits, now)
    until = held_until(doc, limits)
    if action.act in RUNS_A_SCRIPT and until and now < until:
        message = (doc.last_error or {}).get("message", "")
        why = f"a person is needed, tried again at {until:%H:%M} UTC: {message}"
        return Action(Act.REST, action.step, why, 78, until)
    paying = paid_step(action)
    over = today.over(prices[paying]) if prices and paying and today else ""
    return rest_of_day(action, over) if over else action


def paid_step(action: Action) -> Step | None:
    """The step whose paid call the action makes; None where it makes none."""
    if action.act is Act.FILM:
        return Step.RUNWAY if action.step is Step.RUNWAY else None
    return PAYS.get(action.act)


def rest_of_day(action: Action, over: str) -> Action:
    """What is done instead of an action that a cap holds back; `over` says which and why."""
    return Action(Act.REST, action.step, over, 75)


def _without_generation(gen: GenDocument, doc: MidjourneyDocument, limits: Workflow) -> Action:
    if doc.generation:
        return Action(Act.LOWER_FLAG, Step.IMAGINE, "«generation: true», but no generation is under way")
    if gen.failed_in_a_row >= limits.max_failed_in_a_row:
        why = f"the last {gen.failed_in_a_row} generations all failed; mend the cause, then run with --resume"
        return Action(Act.REST, Step.CONTENT, why, 69)
    return Action(Act.BEGIN, Step.CONTENT, "no generation is under way")


def _with_generation(documents: Documents, limits: Workflow, now: datetime) -> Action:
    doc = documents.midjourney
    status = doc.status
    if status is Status.TASK_FAILED_MAX_RETRIES:
        return Action(Act.BURY, doc.present_step, "the generation failed for good")
    if doc.pending:
        return _pending(doc, limits, now)
    if status is not None and status in FAILED_STEP:
        return _failed(documents, status, limits, now)
    if status is Status.TIMED_OUT_MOCK_NEEDED:
        if doc.retries_of(Step.MOCK) > limits.max_retries:
            return Action(Act.FAIL, Step.MOCK, f"the mock failed {doc.retries_of(Step.MOCK)} times")
        return Action(Act.MAKE_MOCK, Step.MOCK, "the vendors were given up on")
    if documents.complete:
        return Action(Act.FINISH, Step.RUNWAY, "text, picture and video are there")
    return _in_flight(documents, limits, now) or _next_order(documents)


def comparable(call: PendingCall, now: datetime) -> bool:
    """Whether the vendor's counts, saved with a held call, can say now that it was not carried out."""
    asked = call.requested_at
    return (
        bool(call.raw.get("usage"))
        and not call.raw.get("compared")
        and asked is not None
        and now > asked + COUNTED_AFTER
    )


def _pending(doc: MidjourneyDocument, limits: Workflow, now: datetime) -> Action:
    call = doc.pending
    assert call is not None
    if call.failed_settles > limits.max_retries:
        why = f"finding out what became of the call for {call.step} failed {call.failed_settles} times"
        return Action(Act.REST, call.step, f"{why}: {ASK_TO_RESOLVE}", 75)
    if call.outcome == UNKNOWN and limits.on_unknown_outcome == "hold" and not comparable(call, now):
        why = f"nobody can tell whether the call for {call.step} was carried out: --resolve retry, or --resolve skip"
        return Action(Act.REST, call.step, why, 75)
    return Action(Act.SETTLE, call.step, f"the call for {call.step} has no result on record")


def _failed(documents: Documents, status: Status, limits: Workflow, now: datetime) -> Action:
    doc, step = documents.midjourney, FAILED_STEP[status]
    used, due = doc.retries_of(step), retry_at(doc)
    if used < limits.max_retries and not _overdue(doc, step, limits, now):
        why = f"attempt {used + 1}/{limits.max_retries} for status {status}"
        if due and now < due:
            return Action(Act.REST, step, f"{why} is due at {due:%Y-%m-%d %H:%M:%S} UTC", until=due)
        return Action(Act.RETRY, step, why, until=due or now)
    if limits.on_exhausted == "mock" and step is not Step.CONTENT and "json" in documents.files:
        return Action(Act.SUBSTITUTE, step, f"{status} after {used} retries")
    return Action(Act.FAIL, step, f"{status} after {used} retries")


def _overdue(doc: MidjourneyDocument, step: Step, limits: Workflow, now: datetime) -> bool:
    """Answered polls clear the counter of failed ones, so that polls which fail and answer by turns never use it up:
    what bounds them is the time since the task was ordered."""
    task = doc.runway_task
    if step is not Step.RUNWAY_POLL or task is None or task.requested_at is None:
        return False
    return now - task.requested_at > timedelta(seconds=limits.runway_timeout_seconds)


def _in_flight(documents: Documents, limits: Workflow, now: datetime) -> Action | None:
    doc = documents.midjourney
    if doc.runway_task:
        return Action(Act.FILM, Step.RUNWAY_POLL, f"task {doc.runway_task.task_id} is in flight")
    task = doc.task
    if task is None:
        return None
    if task.requested_at and now - task.requested_at > timedelta(seconds=limits.mj_timeout_seconds):
        return Action(Act.TIME_OUT, Step.FETCH, f"no {task.task_type} after {limits.mj_timeout_seconds} s")
    return Action(Act.FETCH, Step.FETCH, f"{task.task_type} task {task.task_id}")


def _next_order(documents: Documents) -> Action:
    doc = documents.midjourney
    results = doc.results
    if results and results.task_type == IMAGINE:
        return Action(Act.ORDER_UPSCALE, Step.UPSCALE, "the pictures are there")
    if results:
        return Action(Act.FILM, Step.RUNWAY, "the upscaled picture is there")
    if "json" not in documents.files:
        return Action(Act.WRITE, Step.CONTENT, "there is no text yet")
    if doc.generation:
        return Action(Act.ORDER_IMAGINE, Step.IMAGINE, "the text is there")
    return Action(Act.RAISE_FLAG, Step.IMAGINE, "the text is there, and nothing else")


def held_until(doc: MidjourneyDocument, limits: Workflow) -> datetime | None:
    """Until when nothing is asked of a vendor that refused for a reason only a person can mend (class C)."""
    error = doc.last_error or {}
    if error.get("error_class") != ErrorClass.CRITICAL:
        return None
    try:
        return parse_stamp(error["timestamp"]) + timedelta(minutes=limits.critical_retry_minutes)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def retry_at(doc: MidjourneyDocument) -> datetime | None:
    """When what failed is due again: so many seconds after its failure as the record's recovery action RETRY says.
    None where it says nothing."""
    error = doc.last_error or {}
    try:
        delays = [it["delay_seconds"] for it in error["recovery_actions"] if it["action"] == "RETRY"]
        return parse_stamp(error["timestamp"]) + timedelta(seconds=delays[0])
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        return None
