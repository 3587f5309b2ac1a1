"""How one pipeline stands: read in a few operations however much there is in the bucket, nothing written, no lease
taken."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from retake.bucket import Bucket, Holder
from retake.clock import Clock, stamp
from retake.console.day import as_seen_by
from retake.errors import RetakeError, StateError
from retake.operations.attempts import present
from retake.paid.caps import Today
from retake.paid.day_book import Sums
from retake.runs import Ledger
from retake.runs.run import Run
from retake.runs.states import FINAL, RunStatus
from retake.story.beginning import tidy_plan
from retake.story.decision import Act, Action, decide
from retake.story.documents import FAILED_STEP, UNKNOWN, Documents, MidjourneyDocument, Status, Step
from retake.story.environment import LEASE
from retake.story.generation import DEAD_LETTERS
from retake.story.operator_rules import why
from retake.story.prices import prices
from retake.story.settings import Settings
from retake.story.store import DocumentStore

OPERATOR = "the operator"

ENDED_SHOWN = 5
"""How many of the last ended runs are told."""

_WORDS: Mapping[Status | None, str] = {
    None: "it goes on with the next tick",
    Status.WAITING_FOR_IMAGINE: "four pictures are ordered; waiting for Midjourney",
    Status.WAITING_FOR_UPSCALE: "the upscale is ordered; waiting for Midjourney",
    Status.WAITING_FOR_RUNWAY: "the video is ordered; waiting for Runway",
    Status.CONTENT_FAILED: "writing the text failed",
    Status.IMAGINE_TRIGGER_FAILED: "the pictures could not be had",
    Status.UPSCALE_TRIGGER_FAILED: "the upscale could not be had",
    Status.MJ_FETCH_FAILED: "Midjourney does not say how its task stands",
    Status.RUNWAY_TRIGGER_FAILED: "the video could not be had",
    Status.RUNWAY_POLL_FAILED: "Runway does not say how its task stands",
    Status.RUNWAY_POLL_TIMEOUT: "the video was not there in the time of one tick",
    Status.TIMED_OUT_MOCK_NEEDED: "the vendors were given up on; a mock is made",
    Status.TASK_FAILED_MAX_RETRIES: "it failed for good; the next tick puts it among the dead letters",
}

_NEXT_ACTS = {
    Act.WAIT: "rest",
    Act.RECONCILE: "settle",
    Act.DEAD_LETTER: "bury",
    Act.ORDER_VIDEO: "film",
    Act.POLL_VIDEO: "film",
}
"""`next_act` where programs read other names than the code has."""


class Waiting(NamedTuple):
    """What is awaited, of whom, and since when."""

    whom: str  # «Midjourney», «Runway», «the operator»
    what: str
    since: datetime | None


class Overview(NamedTuple):
    """How a pipeline stands. `needs` is what a person has to do, a sentence each; `notes` are worth knowing."""

    channel: str | None
    documents: Documents | None  # None: one of them cannot be made sense of
    action: Action | None  # what is decided next
    next_tick: str  # what the next tick does, in words
    waiting: Waiting | None
    next_retry_at: datetime | None
    holder: Holder | None
    dead_letters: int
    counts: Mapping[RunStatus, int]
    ended: tuple[Run, ...]
    needs: tuple[str, ...]
    notes: tuple[str, ...]
    today: Today | None = None  # what the day has cost; None: its book was not looked at, or makes no sense

    @property
    def doc(self) -> MidjourneyDocument:
        return self.documents.midjourney if self.documents else MidjourneyDocument({})

    @property
    def sums(self) -> Sums | None:
        """What the pipeline has spent today. None: not known, for its document may know more than the book."""
        return self.today.sums if self.today and self.documents else None

    @property
    def generation_id(self) -> str | None:
        return self.documents.gen.generation_id if self.documents else None

    @property
    def words(self) -> str:
        """The status in words."""
        if not self.documents:
            return "unreadable"
        if self.generation_id is None:
            return "no generation is under way"
        if self.doc.cancelled:
            return "it was cancelled; the next tick puts it among the dead letters"
        resting = self.action is not None and self.action.act is Act.WAIT
        if resting and self.doc.pending:
            return "a paid call of unknown outcome is held"
        if resting and self.waiting and self.waiting.whom == OPERATOR:
            return "it waits until a person has mended something"
        return "it rests" if resting and self.doc.status is None else _WORDS[self.doc.status]


class _Read(NamedTuple):
    """What was read, before it is judged."""

    documents: Documents | None
    unreadable: str
    holder: Holder | None
    dead_letters: int
    counts: Mapping[RunStatus, int]
    ended: tuple[Run, ...]
    ledger_away: str


def overview(
    channel: str | None,
    name: str,
    bucket: Bucket,
    ledger: Ledger | RetakeError,
    settings: Settings,
    clock: Clock,
    *,
    ended: int = ENDED_SHOWN,
    today: Today | StateError | None = None,
    shut: Callable[[Action], str] = lambda action: "",
) -> Overview:
    """Look at the pipeline called `name` («story/CHANNEL») in its part of the bucket. A ledger that could not be opened
    comes as its error, and so does a book of the day (`today`) that makes no sense. Raises StorageError if the bucket
    does not answer."""
    store = DocumentStore(bucket, settings.paths, None, clock)
    read = _read(store, name, ledger, ended)
    now, limits = clock.now(), settings.workflow
    seen = None if isinstance(today, StateError) or today is None else _seen(today, name, read.documents)
    action = decide(read.documents, limits, now, prices(settings), seen) if read.documents else None
    first = seen.over(prices(settings)[Step.CONTENT]) if seen else ""
    return Overview(
        channel,
        read.documents,
        action,
        _next_tick(store, action, first, shut, read.holder),
        _waiting(read.documents, action) if read.documents else None,
        action.until if action and read.documents and read.documents.midjourney.status in FAILED_STEP else None,
        read.holder,
        read.dead_letters,
        read.counts,
        read.ended,
        (*_needs(read, action, limits.max_failed_in_a_row), *([str(today)] if isinstance(today, StateError) else ())),
        (*_notes(read, settings, now), *([f"today's spending is {seen.doubt}"] if seen and seen.doubt else ())),
        seen,
    )


def _seen(today: Today, name: str, documents: Documents | None) -> Today:
    return as_seen_by(today, name, documents.midjourney) if documents else today._replace(pipeline=name)


def advice(error: Mapping[str, Any]) -> str:
    """What the record of an error says that somebody should do; "" if nobody need do anything."""
    return next((str(it.get("what") or "") for it in _actions(error) if it.get("action") == "ESCALATE"), "")


def _actions(error: Mapping[str, Any]) -> list[dict[str, Any]]:
    actions = error.get("recovery_actions")
    return [it for it in actions if isinstance(it, dict)] if isinstance(actions, list) else []


def _read(store: DocumentStore, name: str, ledger: Ledger | RetakeError, ended: int) -> _Read:
    documents, unreadable = None, ""
    try:
        documents = store.read()
    except StateError as error:
        unreadable = str(error)
    holder = store.bucket.holder(LEASE)
    graves = {entry.key for entry in store.bucket.list(DEAD_LETTERS) if entry.key.endswith("/report.json")}
    counts: Mapping[RunStatus, int] = {}
    last: tuple[Run, ...] = ()
    away = str(ledger) if isinstance(ledger, RetakeError) else ""
    if not isinstance(ledger, RetakeError):
        try:
            counts = ledger.counts(pipeline=name)
            last = tuple(ledger.runs(status=FINAL, pipeline=name, limit=ended)) if ended else ()
        except RetakeError as error:
            away = str(error)
    return _Read(documents, unreadable, holder, len(graves), counts, last, away)


def _next_tick(
    store: DocumentStore, action: Action | None, over_cap: str, shut: Callable[[Action], str], holder: Holder | None
) -> str:
    """What the next tick does. `over_cap` says why nothing new can be paid for, if so; `shut` why the vendor that an
    action asks is left alone; `holder` is at work now."""
    if action is None:
        told = "stops at the document that cannot be made sense of"
    elif action.act is Act.WAIT:
        told = f"rests: {why(action)}"
    elif action.act is Act.BEGIN:
        told = _beginning(store, over_cap, shut(Action(Act.WRITE, Step.CONTENT, "")))
    elif alone := shut(action):
        told = f"rests: {alone}; due then: {action.act} ({why(action)})"
    else:
        told = f"{action.act} ({why(action)})"
    return f"leaves it to {holder.owner}, who is at work; as things stand after that, {told}" if holder else told


def _beginning(store: DocumentStore, over_cap: str, shut: str) -> str:
    plan = tidy_plan(store)
    moved = sum(map(len, plan.moves))
    tidying = f"move {moved} files, then " if moved else ""
    begin = f"begin a new generation, then rest: {shut}" if shut else "begin a new generation"
    begin = f"begin nothing: {over_cap}" if over_cap else begin
    return f"{tidying}{begin if plan.room else f'begin nothing: {store.paths.folder_666} holds a ready group'}"


def _waiting(documents: Documents, action: Action | None) -> Waiting | None:
    doc = documents.midjourney
    if documents.gen.generation_id is None:
        return None
    if doc.pending and action and action.act is Act.WAIT:
        return Waiting(OPERATOR, f"what became of the {doc.pending.step} call", doc.pending.requested_at)
    if doc.error.critical:
        return Waiting(OPERATOR, advice(doc.error.raw) or "what the error names", doc.error.at)
    if doc.runway_task:
        return Waiting("Runway", f"task {doc.runway_task.task_id}", doc.runway_task.requested_at)
    if doc.task:
        return Waiting("Midjourney", f"{doc.task.task_type} task {doc.task.task_id}", doc.task.requested_at)
    return None


def _needs(read: _Read, action: Action | None, most_failed: int) -> list[str]:
    needs = [read.unreadable] if read.unreadable else []
    if read.ledger_away:
        needs.append(f"the ledger cannot be read: {read.ledger_away}")
    if not read.documents or not action:
        return needs
    doc, name = read.documents.midjourney, read.documents.gen.generation_id
    failed = read.documents.gen.failed_in_a_row
    if not name and failed >= most_failed:
        needs.append(f"the last {failed} generations all failed; mend the cause, then run the manager with --resume")
    if name and doc.pending and doc.pending.outcome == UNKNOWN and action.act is Act.WAIT:
        needs.append(
            f"nobody can tell whether the {doc.pending.step} call of {name} was carried out: look at the vendor's "
            f"account, then retry {name} (make it again) or skip {name}"
        )
    elif name and doc.error.critical:
        needs.append(f"{doc.error.message} Then: retry {name}".strip())
    return needs


def _notes(read: _Read, settings: Settings, now: datetime) -> list[str]:
    notes = []
    holder, limit = read.holder, 2 * settings.workflow.script_timeout_seconds
    if holder and holder.since and now - holder.since > timedelta(seconds=limit):
        notes.append(f"the lease is held for long: look whether {holder.owner} is still at work")
    if read.documents and not holder and read.documents.public.processing_lock:
        notes.append("the last tick did not come to its end; the next one goes on from what is on record")
    warned = read.documents.gen.warned if read.documents else []
    if warned:
        shown = ", ".join(warned[:10]) + (f" and {len(warned) - 10} more" if len(warned) > 10 else "")
        notes.append(f"published, and lacking files: {shown}")
    return notes


def as_document(seen: Overview, settings: Settings, now: datetime) -> dict[str, Any]:
    """The overview as JSON has it."""
    doc, action = seen.doc, seen.action
    step = doc.present_step if seen.generation_id else None
    at = present(doc, settings.workflow)
    sums = seen.sums
    return {
        "channel": seen.channel,
        "needs": list(seen.needs),
        "notes": list(seen.notes),
        "generation_id": seen.generation_id,
        "step": step,
        "status": doc.status,
        "status_in_words": seen.words,
        "attempt": at.number if step else None,
        "max_attempts": at.most if step else None,
        "next_retry_at": _stamped(seen.next_retry_at),
        "waiting_for": seen.waiting
        and {"whom": seen.waiting.whom, "what": seen.waiting.what, "since": _stamped(seen.waiting.since)},
        "last_error": (doc.error.raw or None) if seen.generation_id else None,
        "lease": seen.holder
        and {
            "owner": seen.holder.owner,
            "since": _stamped(seen.holder.since),
            "until": _stamped(seen.holder.until),
        },
        "next_tick": seen.next_tick,
        "next_act": _NEXT_ACTS.get(action.act, action.act.name.lower()) if action else None,
        "dead_letters": seen.dead_letters,
        "failed_in_a_row": seen.documents.gen.failed_in_a_row if seen.documents else None,
        "spend_today": {
            "settled_usd": sums.settled if sums else None,
            "reserved_usd": sums.reserved if sums else None,
            "cap_usd": settings.workflow.daily_cap_usd,
        },
        "runs": {status.value: n for status, n in seen.counts.items()},
        "last_ended": [run_document(run) for run in seen.ended],
    }


def run_document(run: Run) -> dict[str, Any]:
    """A run as JSON has it."""
    return {field: stamp(it) if isinstance(it, datetime) else it for field, it in run._asdict().items()}


def _stamped(moment: datetime | None) -> str | None:
    return stamp(moment) if moment else None
