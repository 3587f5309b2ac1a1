"""A run and its events, and the pure rules by which a run changes.

A ledger (see retake.runs) stores what these functions return, all of it or nothing.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from os import urandom
from typing import Any, NamedTuple

from retake.clock import stamp
from retake.errors import RunError
from retake.runs import validation
from retake.runs.states import FINAL, START, RunStatus, Trigger, after

CHANGED = "run.status.changed"
"""The event of a transition: docs/protocol.md, section "Events". Its payload has the nine fields listed there."""

ERROR = "run.error"
"""The event with the standard error record of a failure, written together with its transition."""

STEP_DONE = "run.step.done"
"""The event of a step's result: {step, task_id?, seen_at_utc, text}."""

BY_WORKER = "worker"
"""The actor when a worker changes its own run. If anyone else interrupts a run, its worker has crashed."""

_RUN_ID = re.compile("run-[0-9a-f]{16}")

_VARIANT = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}


class Run(NamedTuple):
    """One run of a task, a row of `task_runs`: docs/protocol.md, section "Fields of a run"."""

    run_id: str
    task_id: str  # what is to be done; several runs may attempt it, one after another
    attempt: int  # at the task, from 1; a retry within the run is an attempt too
    idempotency_key: str  # not empty, unique in the ledger: creating a run twice returns the existing one
    status: RunStatus
    created_at: datetime
    updated_at: datetime  # of the last transition
    version: int = 1  # grows with each transition; a worker with an older version has lost the run
    pipeline: str = ""  # "story", "story/CHANNEL", "music"
    next_retry_at: datetime | None = None  # set if and only if the run is retry_scheduled
    error_code: str | None = None  # of the last failure; a success clears it
    worker: str | None = None  # set while the run is running
    heartbeat_at: datetime | None = None  # the worker's last heartbeat; set while the run is running
    resumes: int = 0  # how often it was resumed after an interruption
    retries: int = 0  # how often it failed and was scheduled for a retry
    crashes: int = 0  # how often its worker died or vanished: interruptions that the worker did not report itself

    @property
    def ended(self) -> bool:
        return self.status in FINAL


class Event(NamedTuple):
    """Something that happened to a run. Events are never changed."""

    run_id: str
    seq: int  # from 1, in the order in which they happened
    kind: str  # CHANGED, ERROR, or one of the pipeline's own, such as "run.step.done"
    at: datetime
    trace_id: str
    payload: dict[str, Any]


class Note(NamedTuple):
    """An event to record together with a transition."""

    kind: str
    payload: Mapping[str, Any]  # the actor is added


class RunRequest(NamedTuple):
    """The parameters of a new run."""

    task_id: str
    idempotency_key: str
    actor: str
    pipeline: str = ""
    trace_id: str | None = None  # of the event of its creation; None for a new one
    worker: str | None = None  # the worker that begins at once; None if the run waits for one


class Transition(NamedTuple):
    """A change of a run's state, and what is recorded with it."""

    trigger: Trigger
    actor: str
    worker: str | None = None  # who takes the run, for a trigger that begins or resumes work
    next_retry_at: datetime | None = None  # for RETRYABLE_ERROR, and for nothing else
    error: Mapping[str, Any] | None = None  # a standard error record
    error_code: str | None = None  # overrides the one in `error`
    notes: Sequence[Note] = ()  # become events before the transition's own
    trace_id: str | None = None  # of its events; None for a new one


class StaleRun(RunError):
    """The run has changed since it was read: read it again. A worker that gets this error has lost it and must stop."""


class UnknownRun(RunError):
    """There is no such run."""


def is_run_id(text: str) -> bool:
    """Return whether `text` has the form of a run's id, and can safely be part of a key."""
    return _RUN_ID.fullmatch(text) is not None


def run_id_of(idempotency_key: str) -> str:
    """Return the id of the run with this key. It is the same in every store, so creating a run twice makes one run."""
    octets = idempotency_key.encode(errors="surrogatepass")  # a document may contain lone surrogates
    return f"run-{sha256_hex(octets)[:16]}"


def sha256_hex(octets: bytes) -> str:
    """Return the SHA-256 of `octets`, from Python's own module if possible: hashlib loads OpenSSL, which takes longer
    than everything else a tick does with runs."""
    return str(_sha256()(octets).hexdigest())


@cache
def _sha256() -> Callable[[bytes], Any]:
    """Return the constructor of the hash. Cached, since a failed import searches the whole path each time."""
    for name in ("_sha2", "_sha256"):  # since Python 3.12, and before
        with suppress(ImportError):
            return import_module(name).sha256  # type: ignore[no-any-return]
    from hashlib import sha256

    return sha256


def new_run(request: RunRequest, attempt: int, *, at: datetime) -> tuple[Run, Event]:
    """Return a queued run and its creation event. `attempt` is the task's next. Raises RunError."""
    for field in ("task_id", "idempotency_key", "actor"):
        validation.name(field, getattr(request, field))
    if attempt < 1:
        raise RunError(f"attempts are counted from 1; found {attempt}")
    task_id, key, actor, pipeline, trace_id, _worker = request
    run = Run(run_id_of(key), task_id, attempt, key, START, at, at, pipeline=pipeline)
    return run, _changed(run, None, 1, actor, None, trace_id)


def begun_run(request: RunRequest, attempt: int, *, at: datetime) -> tuple[Run, list[Event]]:
    """Return the run of `new_run` and its events, claimed by the worker of the request, if that names one."""
    run, event = new_run(request, attempt, at=at)
    if request.worker is None:
        return run, [event]
    claim = Transition(Trigger.WORKER_CLAIM, request.actor, request.worker, trace_id=request.trace_id)
    claimed, events = moved(run, claim, event.seq + 1, at=at)
    return claimed, [event, *events]


def moved(
    run: Run, transition: Transition, seq: int, *, at: datetime, attempt: int | None = None
) -> tuple[Run, list[Event]]:
    """Return the run after `transition`, and its events, numbered from `seq`.

    `attempt` is the task's next, for RETRY_DUE. A resumed run keeps the attempt that was interrupted. Raises
    IllegalTransition, RunError.
    """
    trigger, actor, worker, next_retry_at, error, error_code, notes, trace_id = transition
    status = after(run.status, trigger)
    if (next_retry_at is not None) != (status is RunStatus.RETRY_SCHEDULED):
        raise RunError(f"next_retry_at is for {RunStatus.RETRY_SCHEDULED} alone, and needed there; this is {status}")
    code = error_code or (str(error["error_code"]) if error else None)
    working = status is RunStatus.RUNNING
    next_run = Run(
        run.run_id,
        run.task_id,
        attempt if attempt is not None and trigger is Trigger.RETRY_DUE else run.attempt,
        run.idempotency_key,
        status,
        run.created_at,
        at,
        run.version + 1,
        run.pipeline,
        next_retry_at=next_retry_at.astimezone(UTC) if next_retry_at else None,
        error_code=None if status is RunStatus.SUCCEEDED else code or run.error_code,
        worker=worker if working else None,
        heartbeat_at=at if working else None,
        resumes=run.resumes + (trigger is Trigger.RECOVERY_RESUME),
        retries=run.retries + (trigger is Trigger.RETRYABLE_ERROR),
        crashes=run.crashes + (trigger is Trigger.PROCESS_RESTART and actor != BY_WORKER),
    )
    trace_id = trace_id or new_trace_id(run.run_id)
    events = []
    for number, note in enumerate(notes, seq):
        events.append(noted(run.run_id, number, note, at=at, actor=actor, trace_id=trace_id))
    events.append(_changed(next_run, run.status, seq + len(events), actor, code, trace_id))
    if error:
        events.append(Event(run.run_id, seq + len(events), ERROR, at, trace_id, dict(error)))
    return next_run, events


def noted(run_id: str, seq: int, note: Note, *, at: datetime, actor: str, trace_id: str | None = None) -> Event:
    """Return the event of `note`, which changes no state."""
    return Event(run_id, seq, note.kind, at, trace_id or new_trace_id(run_id), {**note.payload, "actor": actor})


def new_trace_id(run_id: str) -> str:
    """Return a new, unique trace id for events of the run."""
    return f"trace-run-{run_id}-{_uuid4()}"


def _uuid4() -> str:
    """Return a random UUID as text, in a third of the time of `str(uuid.uuid4())`."""
    text = urandom(16).hex()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:]}"


def _changed(
    run: Run, previous: RunStatus | None, seq: int, actor: str, error_code: str | None, trace_id: str | None
) -> Event:
    payload = {
        "run_id": run.run_id,
        "task_id": run.task_id,
        "previous_status": str(previous) if previous else None,
        "status": str(run.status),
        "attempt": run.attempt,
        "idempotency_key": run.idempotency_key,
        "next_retry_at": stamp(run.next_retry_at) if run.next_retry_at else None,
        "error_code": error_code,
        "actor": actor,
    }
    return Event(run.run_id, seq, CHANGED, run.updated_at, trace_id or new_trace_id(run.run_id), payload)
