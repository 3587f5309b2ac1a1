"""What an operator may do to a generation: whether the current state allows it, and how it changes the documents.

what the documents say                            retry                      skip                       cancel
────────────────────────────────────────────────  ─────────────────────────  ─────────────────────────  ────────
a paid call of unknown outcome is held            it is made again           as if no attempt were left  ends it
an error status, attempts left                    now instead of later       a mock takes its place ¹    ends it
an error status, none left                        refused: skip, or later    a mock takes its place ¹    ends it
a person had to fix something (class C)           tried at the next tick     a mock takes its place ¹    ends it
the same, while a paid call's outcome is unknown  asked at the next tick     refused: a tick asks        ends it
a paid call whose outcome is not looked up yet     refused: a tick asks       refused: a tick asks        ends it
the mock is to be made                            refused: a tick makes it   refused: it is the mock     ends it
it continues by itself                            refused: nothing failed    refused: nothing failed     ends it
it failed for good, or was cancelled              refused: a tick ends it    refused                     refused
it is finished, but for its id (a crash)          refused: a tick ends it    refused                     refused

¹ of a picture or a video, if there is a text; nothing can replace the text itself.

Nothing here takes a lease or writes: operator_actions.py carries out what is planned here. rollback.py plans rollbacks.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from retake.operations.bills import paid_in_words
from retake.operations.events import OPERATOR
from retake.operations.port import Refusal, Verb
from retake.settings.shared import Workflow
from retake.story import transitions
from retake.story.decision import Act, Action, decide, is_held, mock_follows, undecided
from retake.story.documents import FAILED_STEP, Documents, MidjourneyDocument, Status, Step
from retake.story.generation import in_flight


class Situation(StrEnum):
    """The state of the generation under way, from an operator's point of view."""

    OVER = "it failed or was cancelled, and is not among the dead letters yet"
    FINISHED = "what it cost is on record, and only its id is left: whoever finished it died"
    HELD = "a paid call of unknown outcome is held for the operator"
    UNASKED = "the outcome of a paid call has not been looked up yet"
    FAILED = "a step failed, and attempts are left"
    EXHAUSTED = "a step failed, and no attempt is left"
    CRITICAL = "a person had to fix something first"
    MOCK_NEXT = "the vendors were given up on: the mock is next"
    GOING = "it continues by itself"


class GenerationPlan(NamedTuple):
    """What an order would do to a generation."""

    generation_id: str
    doc: MidjourneyDocument
    done: str  # what to say once it is done
    ends: bool = False  # whether it ends the generation, which then becomes a dead letter
    lost: str = ""  # what is lost, which the operator must agree to
    warning: str = ""
    letter: str = ""  # of a rollback: the dead letter that keeps what is given up
    files: tuple[str, ...] = ()  # of a rollback: the suffixes of the files that are given up


def situation(documents: Documents, limits: Workflow, now: datetime) -> Situation:
    """Return the situation of the generation under way, which must exist."""
    doc = documents.midjourney
    if doc.status is Status.TASK_FAILED_MAX_RETRIES:
        return Situation.OVER
    if doc.pending:
        if undecided(doc.pending, limits):
            return Situation.HELD
        return Situation.CRITICAL if is_held(doc, limits, now) else Situation.UNASKED
    if doc.status in FAILED_STEP:
        return Situation.FAILED if _without_waits(documents, limits, now).act is Act.RETRY else Situation.EXHAUSTED
    if documents.complete and doc.status is not Status.TIMED_OUT_MOCK_NEEDED:
        return Situation.GOING if doc.status or doc.paid_calls or not doc.blank else Situation.FINISHED
    if doc.error.critical:
        return Situation.CRITICAL
    return Situation.MOCK_NEXT if doc.status is Status.TIMED_OUT_MOCK_NEEDED else Situation.GOING


def plan(verb: Verb, documents: Documents, limits: Workflow, now: datetime, by: str = OPERATOR) -> GenerationPlan:
    """Return how `verb` changes the generation under way, which must exist. Raises Refusal."""
    return _PLANS[verb](documents, limits, now, by)


def why(action: Action) -> str:
    """Return why something is done, for people.

    The log says "attempt 1/3" for the first retry. People also see "attempt 2 of 4", which counts the first call too,
    so for them this becomes "retry 1/3".
    """
    return action.why.replace("attempt ", "retry ", 1) if action.why.startswith("attempt ") else action.why


def _retry(documents: Documents, limits: Workflow, now: datetime, _by: str) -> GenerationPlan:
    doc, name = documents.midjourney, _name(documents)
    current, step = situation(documents, limits, now), documents.midjourney.present_step
    match current:
        case Situation.HELD:
            done, warning = f"the {step} call of {name} is made again", "if it was carried out, it is paid for twice"
            return GenerationPlan(name, transitions.operator_retries(doc), done, warning=warning)
        case Situation.FAILED:
            which = f"retry {doc.retries_of(step) + 1} of {limits.max_retries}"
            unheld = transitions.hold_lifted(doc) if doc.error.critical else doc
            return GenerationPlan(name, transitions.retried(unheld), f"{step} of {name} is retried now ({which})")
        case Situation.CRITICAL:
            return GenerationPlan(
                name, transitions.hold_lifted(doc), f"{step} of {name} is retried now: its wait is over"
            )
        case Situation.EXHAUSTED:
            coming = _without_waits(documents, limits, now)
            used = f"no attempt is left for {step} ({doc.retries_of(step)} of {limits.max_retries} retries used)"
            later = f", then dead-letters requeue {name} gives it new ones" if coming.act is Act.FAIL else ""
            raise Refusal(
                f"{name}: {used}. The next tick: {coming.act}{later}. Or {_alternatives(documents, Verb.SKIP)}"
            )
        case _:
            raise _not_failed(documents, current, limits, now)


def _skip(documents: Documents, limits: Workflow, now: datetime, by: str) -> GenerationPlan:
    doc, name = documents.midjourney, _name(documents)
    current, step = situation(documents, limits, now), documents.midjourney.present_step
    if current is Situation.HELD:
        mock = mock_follows(documents, limits)
        end = "a mock takes its place" if mock else "the generation ends as failed"
        return GenerationPlan(
            name, transitions.operator_skips(doc, mock=mock), f"the {step} call of {name} is not made: {end}"
        )
    if doc.pending and current is Situation.CRITICAL:
        unknown = f"what became of the {step} call is not known yet"
        raise Refusal(f"{name}: {unknown}; fix what the last error names, then retry {name}, or cancel {name}")
    if current not in (Situation.FAILED, Situation.EXHAUSTED, Situation.CRITICAL):
        raise _not_failed(documents, current, limits, now)
    if step is Step.MOCK:
        raise Refusal(f"{name}: the mock cannot be skipped, it is what takes a skipped step's place; cancel {name}")
    if "json" not in documents.files:
        raise Refusal(
            f"{name}: the text cannot be done without, nothing can be made without it; "
            f"{_alternatives(documents, Verb.RETRY if current is not Situation.EXHAUSTED else None)}"
        )
    dropped = [f"task {it}" for it in in_flight(doc)]
    if doc.results and doc.results.task_id and "png" not in documents.files:
        dropped.append(f"what task {doc.results.task_id} delivered")
    warning = f"paid for and given up: {', '.join(dropped)}" if dropped else ""
    skipped = transitions.skipped(doc, by, now)
    return GenerationPlan(name, skipped, f"{step} of {name} is skipped: a mock takes its place", warning=warning)


def _cancel(documents: Documents, limits: Workflow, now: datetime, by: str) -> GenerationPlan:
    doc, name = documents.midjourney, _name(documents)
    current = situation(documents, limits, now)
    if current in (Situation.OVER, Situation.FINISHED):
        raise _not_failed(documents, current, limits, now)
    done = f"{name} is cancelled: everything is kept in dead_letters/{name}/"
    return GenerationPlan(name, transitions.cancelled(doc, by, now), done, ends=True, lost=paid_for(doc))


_PLANS: Mapping[Verb, Callable[[Documents, Workflow, datetime, str], GenerationPlan]] = {
    Verb.RETRY: _retry,
    Verb.SKIP: _skip,
    Verb.CANCEL: _cancel,
}


def paid_for(doc: MidjourneyDocument) -> str:
    """Return what a generation has cost and what is in flight, in words, or "" if nothing was paid for."""
    calls = [*doc.paid_calls, *([doc.pending.raw] if doc.pending else [])]
    return " and ".join(filter(None, (paid_in_words(calls), unfetched(doc))))


def unfetched(doc: MidjourneyDocument) -> str:
    """Return what is in flight, in words, or ""."""
    tasks = in_flight(doc)
    return f"task {', '.join(tasks)} in flight, whose result is not fetched" if tasks else ""


def finished(name: str) -> str:
    """Return why nothing can be done to a generation that is finished except for its id."""
    return f"{name} is finished and what it cost is on record; the next tick lets go of it"


def has_ended(documents: Documents) -> str:
    """Return why nothing can be done to a generation that failed or was cancelled, and what can be done later."""
    name = _name(documents)
    how = "was cancelled" if documents.midjourney.cancelled else "failed for good"
    return (
        f"{name} {how}, and the next tick moves it to the dead letters; after that, dead-letters requeue {name} "
        "resumes it"
    )


def not_looked_up(documents: Documents) -> str:
    """Return why nothing can be done before the outcome of a pending call has been looked up."""
    call = documents.midjourney.pending
    return f"{_name(documents)}: what became of the {call and call.step} call is not known yet; the next tick finds out"


def _not_failed(documents: Documents, current: Situation, limits: Workflow, now: datetime) -> Refusal:
    """Return why there is nothing to retry or to skip."""
    name = _name(documents)
    cancel = f"or cancel {name}"
    match current:
        case Situation.OVER:
            return Refusal(has_ended(documents))
        case Situation.FINISHED:
            return Refusal(finished(name))
        case Situation.UNASKED:
            return Refusal(f"{not_looked_up(documents)}. Wait for it, {cancel}")
        case Situation.MOCK_NEXT:
            return Refusal(f"{name}: no vendor is called any more, the next tick makes the mock. Wait for it, {cancel}")
        case _:
            action: Action = decide(documents, limits, now)
            return Refusal(
                f"{name}: nothing of it has failed ({action.why}); it continues by itself. Wait for it, {cancel}"
            )


def _alternatives(documents: Documents, verb: Verb | None) -> str:
    """Return the commands that can be used instead: `verb`, if it is possible, and cancel."""
    name = _name(documents)
    skip_helps = verb is Verb.SKIP and "json" in documents.files
    return f"{verb} {name}, or cancel {name}" if verb is Verb.RETRY or skip_helps else f"cancel {name}"


def _without_waits(documents: Documents, limits: Workflow, now: datetime) -> Action:
    """Return the decision as if nothing had to be waited for."""
    return decide(documents._replace(midjourney=transitions.hold_lifted(documents.midjourney)), limits, now)


def _name(documents: Documents) -> str:
    name = documents.gen.generation_id
    assert name is not None, "no generation is under way"
    return name
