"""Mirrors each generation as a run on the ledger. The documents remain the source of truth for its state.

The ledger has what happened: the beginning, each failure, retry and interruption, and the end. It is written after the
documents, so a crash in between leaves it behind. `RunMirror.sync` compares the run with the documents, and makes the
transitions that bring it in line. It is called before each action of a tick and at its end, and does nothing if both
agree.

the decision on the documents               the state of the run
──────────────────────────────────────────  ──────────────────────────────────────────────────────────────────────
DEAD_LETTER                                 failed; cancelled, if somebody cancelled it
FAIL                                        failed
FINISH                                      succeeded
RETRY, and WAIT until something is due      retry_scheduled; next_retry_at is when it is due
anything else                               running

Operators do no work themselves: what an intervention leaves to do waits for the next tick, queued, or retry_scheduled
and due at once (`RunMirror.hand_over`), and is claimed then.

The end is recorded before the id is removed from config_gen.json. So if no generation is under way, the last run has
ended, and a tick need not open the ledger.
"""

from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from retake.clock import Clock, stamp
from retake.operations.events import BY_HAND, OPERATOR, RECOVERY, REMARK, STEP_DONE
from retake.runs import Ledger
from retake.runs.run import CHANGED, ERROR, Note, Run, StaleRun
from retake.runs.states import OPEN, TRANSITIONS, RunStatus, Trigger
from retake.runs.validation import mended, mended_record
from retake.story.decision import PAYS, Act, Action
from retake.story.documents import IMAGINE, PAID_STEPS, UNKNOWN, Documents, MidjourneyDocument, Status, Step
from retake.story.settings import prefix_of

_BY_RECOVERY = frozenset({Trigger.PROCESS_RESTART, Trigger.RECOVERY_RESUME})
_FAILURES = frozenset({Trigger.RETRYABLE_ERROR, Trigger.NON_RETRYABLE_ERROR})
_BEGINS_WORK = frozenset({Trigger.WORKER_CLAIM, Trigger.RETRY_DUE, Trigger.RECOVERY_RESUME})
_PAYING = frozenset({*PAYS, Act.POLL_VIDEO})
_ENDS_BADLY = frozenset({RunStatus.FAILED, RunStatus.CANCELLED})


class RunTarget(NamedTuple):
    """The state that a run should have."""

    status: RunStatus
    next_retry_at: datetime | None = None  # set if and only if it is retry_scheduled
    error: Mapping[str, Any] | None = None  # the standard record of the last failure, if any
    by: str = OPERATOR  # who cancelled it, if it is cancelled

    def met_by(self, status: RunStatus) -> bool:
        """Return whether a run with this status needs no transition. FAILED and CANCELLED count as the same."""
        return status is self.status or {status, self.status} <= _ENDS_BADLY


# --- what the documents say: pure -------------------------------------------------------------------------------------


def expected(documents: Documents, action: Action) -> RunTarget:
    """Return the state that the run of the generation under way should have. `action` is the decision on its
    documents."""
    doc = documents.midjourney
    error = mended_record(doc.error.raw) if doc.error.code is not None else None
    match action.act:
        case Act.FINISH:
            return RunTarget(RunStatus.SUCCEEDED)
        case Act.DEAD_LETTER:
            if not doc.cancelled:
                return RunTarget(RunStatus.FAILED, error=error)
            by = doc.cancelled.get("by")
            return RunTarget(RunStatus.CANCELLED, error=error, by=by if by in BY_HAND else OPERATOR)
        case Act.FAIL:
            return RunTarget(RunStatus.FAILED, error=error)
        case _ if action.until:
            return RunTarget(RunStatus.RETRY_SCHEDULED, action.until, error)
        case _:
            return RunTarget(RunStatus.RUNNING, error=error)


def task_of(pipeline: str, generation_id: str) -> str:
    """Return the task id of a generation's runs: "20260101-0930", "en/20260101-0930"."""
    return f"{prefix_of(pipeline.partition('/')[2])}{generation_id}"


def route(start: RunStatus, end: RunStatus) -> list[Trigger]:
    """Return the triggers of the shortest path from one state to another, or [] if there is none. An interrupted run is
    always resumed, since the documents say how to continue."""
    ways: deque[tuple[RunStatus, list[Trigger]]] = deque([(start, [])])
    seen = {start}
    while ways:
        status, way = ways.popleft()
        if status is end:
            return way
        for (before, trigger), after in TRANSITIONS.items():
            if before is status and after not in seen and trigger is not Trigger.RECOVERY_ABORT:
                seen.add(after)
                ways.append((after, [*way, trigger]))
    return []


def facts(documents: Documents, known: Container[str]) -> Iterator[Note]:
    """Yield a note for each fact in the documents that belongs on the ledger, whether it is there already or not.
    `known` are the identities of the notes on the ledger."""
    doc, results = documents.midjourney, documents.midjourney.results
    for entry in doc.rolled_back:  # first, since the steps that follow are done again
        at, step, letter = entry.get("at_utc"), entry.get("step"), entry.get("letter")
        text = f"rolled back to {step} by the {entry.get('by')}; what was given up is in dead_letters/{letter}/"
        yield _remark(_ROLLED_BACK, text, step=step, at_utc=at)
    if "json" in documents.files:
        yield _done(Step.CONTENT, "the text is ready")
    if results and results.task_type == IMAGINE:
        yield _done(Step.IMAGINE, "the pictures are ready", task_id=results.task_id)
    elif results:
        yield _done(Step.UPSCALE, "the upscaled picture is ready", task_id=results.task_id)
    yield from _doubtful_calls(doc)
    for entry in doc.skipped:
        at, step = entry.get("at_utc"), entry.get("step")
        yield _remark("skipped", f"{step} is done without, by the {entry.get('by')}", step=step, at_utc=at)
    if doc.status is Status.TIMED_OUT_MOCK_NEEDED:
        yield _remark(_MOCK, "the vendors are given up on: a mock is made on this machine")
    if times := doc.retries_of(Step.MOCK):
        yield _remark("mock_failed", f"the mock failed {times} times", times=times)
    if "mp4" in documents.files:
        mock = doc.status is Status.TIMED_OUT_MOCK_NEEDED or identity(REMARK, {"code": _MOCK}) in known
        yield _done(Step.MOCK, "the mock is made") if mock else _done(Step.RUNWAY, "the video is ready")


def _doubtful_calls(doc: MidjourneyDocument) -> Iterator[Note]:
    """Yield a note for each call that may have been paid for twice, or in vain."""
    for call in doc.paid_calls:
        facts = {name: call[name] for name in ("step", "call", "requested_at_utc") if name in call}
        what = f"the {call.get('step')} call of {call.get('requested_at_utc')}"
        if call.get("possible_duplicate"):
            yield _remark("possible_duplicate", f"{what} may have been carried out, and is asked again", **facts)
        elif call.get("outcome") == UNKNOWN:
            yield _remark("unknown_outcome", f"nobody knows whether {what} was carried out", **facts)
        elif call.get("outcome") == "wasted":
            yield _remark("wasted", f"{what} was billed, and its answer is of no use", **facts)
    if doc.pending and doc.pending.outcome == UNKNOWN:
        step, at = doc.pending.step, doc.pending.raw.get("requested_at_utc")
        text = f"nobody can tell whether the {step} call was carried out: it waits for the operator"
        yield _remark("held", text, step=step.value, requested_at_utc=at)


def identity(kind: str, payload: Mapping[str, Any]) -> str:
    """Return what identifies an event among those of its kind, regardless of who wrote it, when, and in which words."""
    if kind == ERROR:
        return f"{kind} {payload.get('error_id') or [payload.get('timestamp'), payload.get('error_code')]}"
    return f"{kind} {[(name, payload[name]) for name in sorted(payload) if name not in _INCIDENTAL]}"


_INCIDENTAL = frozenset({"actor", "text", "seen_at_utc"})
_MOCK = "mock_instead"
_ROLLED_BACK = "rolled_back"

_REDONE: Mapping[str, tuple[Step, ...]] = {
    step: (*PAID_STEPS[number:], Step.MOCK) for number, step in enumerate(PAID_STEPS)
}
"""For each step that is rolled back to, the steps whose results are recorded again."""


def _outdated(kind: str, payload: Mapping[str, Any]) -> set[str]:
    """Return the identities of notes that may be recorded again after this note: a rollback has steps done again."""
    if kind != REMARK or payload.get("code") != _ROLLED_BACK:
        return set()
    done = {identity(*_done(step, "")) for step in _REDONE.get(str(payload.get("step")), ())}
    return {*done, identity(REMARK, {"code": _MOCK})}


def _done(step: Step, text: str, **facts: Any) -> Note:
    return Note(STEP_DONE, mended({"step": step.value, **facts, "text": text}))


def _remark(code: str, text: str, **facts: Any) -> Note:
    return Note(REMARK, mended({"code": code, **facts, "text": text}))  # other programs may write documents too


# --- the ledger -------------------------------------------------------------------------------------------------------


class RunMirror:
    """Keeps the run of the generation under way in line with the documents, while the lease is held.

    `pipeline` is "story" or "story/CHANNEL". `actor` is who acts ("cron", "operator"), `worker` who holds the lease. If
    the ledger is `external`, outside the bucket of the documents, the result of a call is written before the next one
    is paid for, so that nothing more is paid for while the ledger is unreachable.

    Every method may raise StorageError. The next tick then writes what is missing.
    """

    def __init__(
        self, ledger: Ledger, pipeline: str, clock: Clock, *, actor: str, worker: str, external: bool = False
    ) -> None:
        self.actor = actor
        self._external = external
        self._ledger = ledger
        self._pipeline = pipeline
        self._clock = clock
        self._worker = worker
        self._task_id: str | None = None
        self._run: Run | None = None
        self._ended = 0  # the number of runs of the task that have ended
        self._known: set[str] = set()  # the identities of the task's notes on the ledger
        self._pending: dict[str, Note] = {}  # notes to be written with the next transition or at the end of the tick

    def sync(self, documents: Documents, action: Action, *, interrupted: bool = False) -> None:
        """Bring the run in line with the documents, if a generation is under way. `action` is the decision on them.
        `interrupted` is whether the process that worked on the generation has died."""
        self._retry_if_stale(
            lambda: self._align(documents, expected(documents, action), self._route, interrupted, resumed=True)
        )
        if self._external and action.act in _PAYING and documents.gen.generation_id is not None:
            self.flush()

    def observe(self, documents: Documents, action: Action, *, interrupted: bool = False) -> None:
        """Do what `sync` does, but claim nothing: a run that waits for a worker goes on waiting.

        If `interrupted`, a run that has ended stays the last one, even if the documents say that its work continues.
        """
        wanted, generation_id = expected(documents, action), documents.gen.generation_id

        def way(run: Run, to: RunTarget) -> list[Trigger]:
            return [] if to.status is RunStatus.RUNNING else self._route(run, to)

        def align() -> None:
            self._look(str(generation_id))
            if self._run is None or not (interrupted and self._run.ended):
                self._align(documents, wanted, way, interrupted, resumed=False)

        if generation_id is not None:
            self._retry_if_stale(align)

    def hand_over(self, documents: Documents, action: Action) -> None:
        """Do what `sync` does, but leave the work to the next tick: a run that goes on waits for a claim, due now."""
        wanted = expected(documents, action)
        if wanted.status is RunStatus.RUNNING:
            wanted = wanted._replace(next_retry_at=self._clock.now(), error=None)  # the error is on record
        self._retry_if_stale(
            lambda: self._align(documents, wanted, self._handover_route, interrupted=False, resumed=False)
        )

    def remark(self, code: str, text: str) -> None:
        """Record something that is not in the documents. It is written with the next transition, or by `flush`."""
        note = _remark(code, text, at_utc=stamp(self._clock.now()))
        self._pending[identity(*note)] = note

    def flush(self) -> None:
        """Write the notes that are not on the ledger yet, if a run was looked up."""
        if self._run is None:
            return
        for key, note in list(self._pending.items()):
            self._ledger.note(self._run, note.kind, note.payload, actor=self.actor)
            self._known.add(key)
            del self._pending[key]

    # --- implementation -----------------------------------------------------------------------------------------------

    def _retry_if_stale(self, align: Callable[[], None]) -> None:
        try:
            align()
        except StaleRun:  # a recovery of silent runs has just moved it: try again from its current state
            self._run = None
            align()

    def _align(
        self,
        documents: Documents,
        wanted: RunTarget,
        way: Callable[[Run, RunTarget], list[Trigger]],
        interrupted: bool,
        *,
        resumed: bool,
    ) -> None:
        if documents.gen.generation_id is None:
            return
        self._look(documents.gen.generation_id)
        run = self._run
        if run and run.ended:
            if wanted.met_by(run.status):
                return
            self._run = run = None  # the documents say that the work continues, which takes a new run
        self._collect_notes(documents)
        if run is None:
            self._run = run = self._begin_run(self._worker if resumed and wanted.status is RunStatus.RUNNING else None)
        if interrupted and run.status is RunStatus.RUNNING:
            run = self._move(Trigger.PROCESS_RESTART, wanted)
            run = self._move(Trigger.RECOVERY_RESUME, wanted) if resumed else run
        for trigger in way(run, wanted):
            self._move(trigger, wanted)
        if wanted.status is RunStatus.RUNNING and (error := self._unrecorded(wanted.error)):
            self._pending.setdefault(identity(ERROR, error), Note(ERROR, error))

    def _look(self, generation_id: str) -> None:
        """Read the runs of the generation, unless that is already done."""
        task_id = task_of(self._pipeline, generation_id)
        if task_id != self._task_id and self._task_id is not None:
            self._pending = {}
        if task_id == self._task_id and self._run is not None:
            return
        self._task_id, self._run, self._ended, self._known = task_id, None, 0, set()
        while run := self._ledger.find(f"{task_id}#{self._ended + 1}"):
            self._run = run
            events = self._ledger.events(run.run_id)
            for it in events:
                if it.kind != CHANGED:
                    self._known.add(identity(it.kind, it.payload))
                    self._known -= _outdated(it.kind, it.payload)
            if not run.ended:
                break
            self._ended += 1

    def _collect_notes(self, documents: Documents) -> None:
        for note in facts(documents, {*self._known, *self._pending}):
            key = identity(*note)
            if key not in self._known and key not in self._pending:
                seen = {"seen_at_utc": stamp(self._clock.now())}
                self._pending[key] = note._replace(payload={**note.payload, **seen})
                self._known -= _outdated(*note)

    def _begin_run(self, worker: str | None) -> Run:
        """Return a new run of the task, claimed by `worker` if that is given."""
        assert self._task_id is not None
        for run in self._ledger.runs(status=OPEN, pipeline=self._pipeline):
            if run.task_id != self._task_id:
                note = _remark("abandoned", f"its documents are gone, and {self._task_id} is under way instead")
                self._ledger.move(run, Trigger.CANCEL_COMMAND, actor=RECOVERY, notes=[note])
        key = f"{self._task_id}#{self._ended + 1}"
        return self._ledger.create_for_task(
            self._task_id, key, actor=self.actor, pipeline=self._pipeline, worker=worker
        )

    def _route(self, run: Run, wanted: RunTarget) -> list[Trigger]:
        scheduled = RunStatus.RETRY_SCHEDULED
        if run.status is scheduled and wanted.status is scheduled and self._unrecorded(wanted.error):
            return [Trigger.RETRY_DUE, Trigger.RETRYABLE_ERROR]  # it was retried meanwhile, by hand
        return route(run.status, wanted.status)

    def _handover_route(self, run: Run, wanted: RunTarget) -> list[Trigger]:
        if wanted.status is not RunStatus.RUNNING:
            return self._route(run, wanted)
        if run.status is RunStatus.RUNNING:
            return [Trigger.RETRYABLE_ERROR]
        if run.next_retry_at and wanted.next_retry_at and run.next_retry_at > wanted.next_retry_at:
            return [Trigger.RETRY_DUE, Trigger.RETRYABLE_ERROR]  # no single transition makes it due earlier
        return []

    def _unrecorded(self, error: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        return error if error and identity(ERROR, error) not in self._known else None

    def _move(self, trigger: Trigger, wanted: RunTarget) -> Run:
        assert self._run is not None
        by_recovery, failed = trigger in _BY_RECOVERY, trigger in _FAILURES
        error = self._unrecorded(wanted.error) if failed else None
        notes = {} if by_recovery or trigger is Trigger.WORKER_CLAIM else self._pending
        if error:
            notes.pop(identity(ERROR, error), None)
        self._run = self._ledger.move(
            self._run,
            trigger,
            actor=RECOVERY if by_recovery else wanted.by if trigger is Trigger.CANCEL_COMMAND else self.actor,
            worker=self._worker if trigger in _BEGINS_WORK else None,
            next_retry_at=wanted.next_retry_at if trigger is Trigger.RETRYABLE_ERROR else None,
            error=error,
            error_code=str(wanted.error["error_code"]) if failed and wanted.error else None,
            notes=list(notes.values()),
        )
        self._known.update(notes, [identity(ERROR, error)] if error else [])
        if notes:
            self._pending = {}
        if self._run.ended:
            self._ended += 1
        return self._run
