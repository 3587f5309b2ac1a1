"""The front that all stores of runs share: it checks what it is given, and asks the store only for what can be there.

A store derives from `CheckedLedger` and implements the methods that begin with an underscore. What they are given has
passed `retake.runs.validation`. See `retake.runs.Ledger` for what each method promises.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from retake.runs import validation
from retake.runs.run import Event, Note, Run, UnknownRun, is_run_id
from retake.runs.states import RunStatus, Trigger

MOST_LISTED = 2**31 - 1
"""No list of runs is longer: what a LIMIT may be in every database."""


class CheckedLedger(ABC):
    """A ledger that refuses what no store can keep, with `validation.InvalidField`, before it touches the store.

    To look for what no store can keep is no error: it is not there.
    """

    # --- changes ------------------------------------------------------------------------------------------------

    def create_for_task(
        self, task_id: str, idempotency_key: str, *, actor: str, pipeline: str = "", trace_id: str | None = None
    ) -> Run:
        return self._create(
            validation.name("task_id", task_id),
            validation.name("idempotency_key", idempotency_key),
            actor=validation.name("actor", actor),
            pipeline=validation.column("pipeline", pipeline),
            trace_id=validation.optional_name("trace_id", trace_id or None),
        )

    def move(
        self,
        run: Run,
        trigger: Trigger,
        *,
        actor: str,
        worker: str | None = None,
        next_retry_at: datetime | None = None,
        error: Mapping[str, Any] | None = None,
        error_code: str | None = None,
        notes: Sequence[Note] = (),
        trace_id: str | None = None,
    ) -> Run:
        what = {
            "actor": validation.name("actor", actor),
            "worker": validation.optional_name("worker", worker),
            "next_retry_at": validation.moment("next_retry_at", next_retry_at) if next_retry_at is not None else None,
            "error": validation.record(error, needs_code=not error_code) if error else None,
            "error_code": validation.optional_name("error_code", error_code or None),
            "notes": [Note(kind, payload) for kind, payload in validation.notes(notes)],
            "trace_id": validation.optional_name("trace_id", trace_id or None),
        }
        return self._move(_known(run), trigger, what)

    def note(
        self, run: Run, kind: str, payload: Mapping[str, Any], *, actor: str, trace_id: str | None = None
    ) -> Event:
        return self._note(
            _known(run),
            Note(validation.name("kind", kind), validation.payload("payload", payload)),
            actor=validation.name("actor", actor),
            trace_id=validation.optional_name("trace_id", trace_id or None),
        )

    def claim(self, worker: str, *, actor: str = "worker", pipeline: str | None = None) -> Run | None:
        worker, actor = validation.name("worker", worker), validation.name("actor", actor)
        return self._claim(worker, actor=actor, pipeline=pipeline) if _may_have_runs(pipeline) else None

    def heartbeat(self, run: Run) -> Run:
        return self._heartbeat(_known(run))

    beat = heartbeat  # its former name

    # --- questions ----------------------------------------------------------------------------------------------

    def get(self, run_id: str) -> Run:
        return self._get(_known_id(run_id))

    def find(self, idempotency_key: str) -> Run | None:
        return self._find(idempotency_key) if validation.is_column(idempotency_key) else None

    def of_task(self, task_id: str) -> list[Run]:
        return self._of_task(task_id) if validation.is_column(task_id) else []

    def silent(self, since: datetime) -> list[Run]:
        return self._silent(validation.moment("since", since))

    def runs(self, *, status: Collection[RunStatus] = (), pipeline: str | None = None, limit: int = 50) -> list[Run]:
        if limit <= 0 or not _may_have_runs(pipeline):
            return []
        return self._runs(frozenset(status or RunStatus), pipeline, min(limit, MOST_LISTED))

    def counts(self, *, pipeline: str | None = None) -> dict[RunStatus, int]:
        found = self._counts(pipeline) if _may_have_runs(pipeline) else {}
        return {status: found.get(status, 0) for status in RunStatus}

    def events(self, run_id: str) -> list[Event]:
        return self._events(_known_id(run_id))

    # --- what a store implements --------------------------------------------------------------------------------

    @abstractmethod
    def _create(self, task_id: str, key: str, *, actor: str, pipeline: str, trace_id: str | None) -> Run: ...

    @abstractmethod
    def _move(self, run: Run, trigger: Trigger, what: Mapping[str, Any]) -> Run:
        """`what` are the keyword arguments of `retake.runs.run.moved` but `at` and `attempt`."""

    @abstractmethod
    def _note(self, run: Run, note: Note, *, actor: str, trace_id: str | None) -> Event: ...

    @abstractmethod
    def _claim(self, worker: str, *, actor: str, pipeline: str | None) -> Run | None: ...

    @abstractmethod
    def _heartbeat(self, run: Run) -> Run: ...

    @abstractmethod
    def _get(self, run_id: str) -> Run: ...

    @abstractmethod
    def _find(self, key: str) -> Run | None: ...

    @abstractmethod
    def _of_task(self, task_id: str) -> list[Run]: ...

    @abstractmethod
    def _silent(self, since: datetime) -> list[Run]: ...

    @abstractmethod
    def _runs(self, statuses: frozenset[RunStatus], pipeline: str | None, limit: int) -> list[Run]: ...

    @abstractmethod
    def _counts(self, pipeline: str | None) -> Mapping[RunStatus, int]: ...

    @abstractmethod
    def _events(self, run_id: str) -> list[Event]: ...


def _known_id(run_id: str) -> str:
    if not is_run_id(run_id):
        raise UnknownRun(f"there is no run {ascii(run_id)[1:-1]:.100}")
    return run_id


def _known(run: Run) -> Run:
    _known_id(run.run_id)
    validation.name("task_id", run.task_id)
    return run


def _may_have_runs(pipeline: str | None) -> bool:
    return pipeline is None or validation.is_column(pipeline)
