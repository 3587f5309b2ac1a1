"""A run and its events: values, and the pure rules by which one makes the next.

A store of runs (see retake.runs) keeps what these functions return, whole or not at all.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import uuid4

from retake.clock import stamp
from retake.errors import RunError
from retake.runs import validation
from retake.runs.states import FINAL, START, RunStatus, Trigger, after

CHANGED = "run.status.changed"
"""The event of every transition (seed 002, section 3). Its payload has the nine fields named there."""

ERROR = "run.error"
"""The event that holds the standard error record of a failure, written together with the transition it led to."""

BY_WORKER = "worker"
"""The actor of what a worker does with its own run. A run that is interrupted by anyone else has lost its worker."""

_HEX = frozenset("0123456789abcdef")


class Run(NamedTuple):
    """One run of a task, as it stands. The fields are those of the table `task_runs` (seed 002, section 2)."""

    run_id: str
    task_id: str  # what is to be done; several runs may try it, one after another
    attempt: int  # from 1; which try of the task this is, a retry within the run counted as one
    idempotency_key: str  # never empty, unique everywhere: who creates a run twice gets the one that is there
    status: RunStatus
    created_at: datetime
    updated_at: datetime  # of the last transition
    version: int = 1  # rises with each transition: who holds an older one has lost the run
    pipeline: str = ""  # whose run it is: «story», «story/CHANNEL», «music»
    next_retry_at: datetime | None = None  # set if and only if it is retry_scheduled
    error_code: str | None = None  # of the last failure; a success clears it
    worker: str | None = None  # who has it while it is running
    heartbeat_at: datetime | None = None  # the last sign of life of who has it
    resumes: int = 0  # how often it was taken up again after an interruption
    retries: int = 0  # how often it failed and was scheduled to be tried again
    crashes: int = 0  # how often its worker died or vanished: interruptions by others than the worker itself

    @property
    def ended(self) -> bool:
        return self.status in FINAL


class Event(NamedTuple):
    """Something that happened to a run. Events are never changed."""

    run_id: str
    seq: int  # from 1, in the order in which they happened
    kind: str  # CHANGED, ERROR, or another word of the pipeline's own: «run.step.done»
    at: datetime
    trace_id: str
    payload: dict[str, Any]


class Note(NamedTuple):
    """Something that is to be put on record together with a transition."""

    kind: str  # of its event
    payload: Mapping[str, Any]  # the actor is added


class StaleRun(RunError):
    """Somebody else has moved the run since it was read: read it again. For a worker: it lost the run, and stops."""


class UnknownRun(RunError):
    """There is no such run."""


def is_run_id(text: str) -> bool:
    """Whether `text` is the id of a run, there or not, and so can be part of a key."""
    return text.startswith("run-") and len(text) == 20 and _HEX.issuperset(text[4:])


def run_id_of(idempotency_key: str) -> str:
    """The id of the run that has this key: the same in every store, so that creating it twice makes one."""
    return f"run-{sha256(idempotency_key.encode()).hexdigest()[:16]}"


def new_run(
    task_id: str,
    idempotency_key: str,
    attempt: int,
    *,
    at: datetime,
    actor: str,
    pipeline: str = "",
    trace_id: str | None = None,
) -> tuple[Run, Event]:
    """A queued run, and the event of its creation. `attempt` is the task's next. Raises RunError."""
    for field, value in (("task_id", task_id), ("idempotency_key", idempotency_key), ("actor", actor)):
        validation.name(field, value)
    if attempt < 1:
        raise RunError(f"attempts are counted from 1; found {attempt}")
    run = Run(run_id_of(idempotency_key), task_id, attempt, idempotency_key, START, at, at, pipeline=pipeline)
    return run, _changed(run, None, 1, actor, None, trace_id)


def moved(
    run: Run,
    trigger: Trigger,
    seq: int,
    *,
    at: datetime,
    actor: str,
    attempt: int | None = None,
    worker: str | None = None,
    next_retry_at: datetime | None = None,
    error: Mapping[str, Any] | None = None,
    error_code: str | None = None,
    notes: Sequence[Note] = (),
    trace_id: str | None = None,
) -> tuple[Run, list[Event]]:
    """The run after `trigger`, and its events, numbered from `seq`.

    `attempt` (of RETRY_DUE) is the task's next; a resume goes on with the attempt that was cut off. `worker` (of what
    begins or resumes work) is who has it now. `next_retry_at` belongs to RETRYABLE_ERROR, and to nothing else. `error`
    is a standard error record; its code is `error_code` unless that is given. `notes` become events that come before
    the transition's. Raises IllegalTransition, RunError.
    """
    status = after(run.status, trigger)
    if (next_retry_at is not None) != (status is RunStatus.RETRY_SCHEDULED):
        raise RunError(f"next_retry_at is for {RunStatus.RETRY_SCHEDULED} alone, and needed there; this is {status}")
    code = error_code or (str(error["error_code"]) if error else None)
    working = status is RunStatus.RUNNING
    next_run = run._replace(
        status=status,
        version=run.version + 1,
        updated_at=at,
        attempt=attempt if attempt is not None and trigger is Trigger.RETRY_DUE else run.attempt,
        next_retry_at=next_retry_at.astimezone(UTC) if next_retry_at else None,
        error_code=None if status is RunStatus.SUCCEEDED else code or run.error_code,
        worker=worker if working else None,
        heartbeat_at=at if working else None,
        resumes=run.resumes + (trigger is Trigger.RECOVERY_RESUME),
        retries=run.retries + (trigger is Trigger.RETRYABLE_ERROR),
        crashes=run.crashes + (trigger is Trigger.PROCESS_RESTART and actor != BY_WORKER),
    )
    trace_id = trace_id or new_trace_id(run.run_id)
    events = [
        noted(run.run_id, seq + number, note, at=at, actor=actor, trace_id=trace_id)
        for number, note in enumerate(notes)
    ]
    events.append(_changed(next_run, run.status, seq + len(events), actor, code, trace_id))
    if error:
        events.append(Event(run.run_id, seq + len(events), ERROR, at, trace_id, dict(error)))
    return next_run, events


def noted(run_id: str, seq: int, note: Note, *, at: datetime, actor: str, trace_id: str | None = None) -> Event:
    """The event of `note`, which changes no state."""
    return Event(run_id, seq, note.kind, at, trace_id or new_trace_id(run_id), {**note.payload, "actor": actor})


def new_trace_id(run_id: str) -> str:
    """Of an event that nobody gave one (seed 002, section 3)."""
    return f"trace-run-{run_id}-{uuid4()}"


def _changed(
    run: Run, previous: RunStatus | None, seq: int, actor: str, error_code: str | None, trace_id: str | None
) -> Event:
    payload = {
        "run_id": run.run_id,
        "task_id": run.task_id,
        "previous_status": previous.value if previous else None,
        "status": run.status.value,
        "attempt": run.attempt,
        "idempotency_key": run.idempotency_key,
        "next_retry_at": stamp(run.next_retry_at) if run.next_retry_at else None,
        "error_code": error_code,
        "actor": actor,
    }
    return Event(run.run_id, seq, CHANGED, run.updated_at, trace_id or new_trace_id(run.run_id), payload)
