"""A ledger in a dict, as short as the contract allows, so that its correctness is obvious. Stores are compared with
it."""

from datetime import datetime
from threading import RLock

from retake.clock import CLOCKS_DIFFER, Clock
from retake.runs import Ledger
from retake.runs.run import (
    Event,
    Note,
    Run,
    RunRequest,
    StaleRun,
    Transition,
    UnknownRun,
    begun_run,
    moved,
    noted,
    run_id_of,
)
from retake.runs.states import RunStatus, Trigger


class ModelStore:
    """The state shared by the clients of one model."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.runs: dict[str, Run] = {}
        self.events: dict[str, list[Event]] = {}


class ModelLedger(Ledger):
    def __init__(self, store: ModelStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def _create(self, request: RunRequest) -> Run:
        with self._store.lock:
            run, events = begun_run(request, self._next_attempt(request.task_id), at=self._clock.now())
            if run.run_id not in self._store.runs:
                self._store.runs[run.run_id] = run
                self._store.events[run.run_id] = events
            return self._store.runs[run.run_id]

    def _get(self, run_id: str) -> Run:
        if run_id not in self._store.runs:
            raise UnknownRun(f"there is no run {run_id}")
        return self._store.runs[run_id]

    def _find(self, key: str) -> Run | None:
        return self._store.runs.get(run_id_of(key))

    def _of_task(self, task_id: str) -> list[Run]:
        return sorted((run for run in self._every() if run.task_id == task_id), key=lambda run: run.attempt)

    def _move(self, run: Run, transition: Transition) -> Run:
        with self._store.lock:
            self._check(run)
            attempt = self._next_attempt(run.task_id)
            events = self._store.events[run.run_id]
            after, new = moved(
                self._get(run.run_id), transition, len(events) + 1, at=self._clock.now(), attempt=attempt
            )
            self._store.runs[run.run_id] = after
            events += new
            return after

    def _note(self, run: Run, note: Note, *, actor: str, trace_id: str | None) -> Event:
        with self._store.lock:
            seq = len(self._events(run.run_id)) + 1
            event = noted(run.run_id, seq, note, at=self._clock.now(), actor=actor, trace_id=trace_id)
            self._store.events[run.run_id].append(event)
            return event

    def _claim(self, worker: str, *, actor: str, pipeline: str | None) -> Run | None:
        with self._store.lock:
            now, runs = self._clock.now(), [run for run in self._every() if pipeline in (None, run.pipeline)]
            interrupted = sorted((it.updated_at, it.run_id) for it in runs if it.status is RunStatus.INTERRUPTED)
            scheduled = ((it.next_retry_at, it.run_id) for it in runs if it.next_retry_at)
            due = sorted(it for it in scheduled if it[0] <= now)
            far = now + CLOCKS_DIFFER
            ahead = ((it.updated_at, it.run_id) for it in runs if it.next_retry_at and it.updated_at > far)
            due += sorted(it for it in ahead if it not in due)
            queued = sorted((it.updated_at, it.run_id) for it in runs if it.status is RunStatus.QUEUED)
            for waiting, trigger in (
                (interrupted, Trigger.RECOVERY_RESUME),
                (due, Trigger.RETRY_DUE),
                (queued, Trigger.WORKER_CLAIM),
            ):
                if waiting:
                    return self._move(self._get(waiting[0][1]), Transition(trigger, actor, worker))
            return None

    def _heartbeat(self, run: Run) -> Run:
        with self._store.lock:
            self._check(run)
            if self._get(run.run_id).status is not RunStatus.RUNNING:
                raise StaleRun(f"nobody has {run.run_id}")
            self._store.runs[run.run_id] = alive = self._get(run.run_id)._replace(heartbeat_at=self._clock.now())
            return alive

    def _silent(self, since: datetime) -> list[Run]:
        running = [run for run in self._every() if run.status is RunStatus.RUNNING]
        found = sorted((run.heartbeat_at, run.run_id) for run in running if run.heartbeat_at)
        return [self._get(run_id) for heard, run_id in found if heard < since]

    def _runs(self, statuses: frozenset[RunStatus], pipeline: str | None, limit: int) -> list[Run]:
        found = [run for run in self._every() if run.status in statuses and pipeline in (None, run.pipeline)]
        return sorted(found, key=lambda run: (run.updated_at, run.run_id), reverse=True)[:limit]

    def _counts(self, pipeline: str | None) -> dict[RunStatus, int]:
        states = [run.status for run in self._every() if pipeline in (None, run.pipeline)]
        return {status: states.count(status) for status in RunStatus}

    def _events(self, run_id: str) -> list[Event]:
        self._get(run_id)
        return list(self._store.events[run_id])

    def _every(self) -> list[Run]:
        return list(self._store.runs.values())

    def _next_attempt(self, task_id: str) -> int:
        return 1 + max((run.attempt for run in self._every() if run.task_id == task_id), default=0)

    def _check(self, run: Run) -> None:
        if self._get(run.run_id).version != run.version:
            raise StaleRun(f"{run.run_id} has moved on")
