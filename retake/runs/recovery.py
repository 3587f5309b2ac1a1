"""Recovery of runs whose worker died: docs/protocol.md, section "Recovery of runs".

A long-lived worker sends heartbeats. When they stop, `Recovery.sweep` marks its run as interrupted, and the next worker
to claim a run resumes it. Work under a lease need not wait for that: the new holder of the lease knows that the former
one is gone, and `take_over` does both in one step.

A run that kills its workers is resumed `MAX_RESUMES` times and then given up.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from logging import getLogger
from typing import Any, NamedTuple

from retake.attempts import steady
from retake.clock import Clock, stamp
from retake.errors import Code, CodedError, StateError, error_record, escalate, retry_in
from retake.runs import Ledger
from retake.runs.run import Run, StaleRun, UnknownRun, new_trace_id
from retake.runs.states import RunStatus, Trigger

ACTOR = "recovery"

MAX_RESUMES = 3
"""How often a run is resumed after a crash. So it can kill at most one worker more than this."""

PATIENCE_S = 60.0
"""Seconds that a run may go without a heartbeat: several times `retake.runs.run_handle.HEARTBEAT_S`."""

_FAR_FUTURE = timedelta(days=36_525)
"""Added to the current time: later than any heartbeat."""

_STEP = timedelta(seconds=1)
"""A clock that gains more than this on a steady one was set forward."""

_log = getLogger(__name__)


class Swept(NamedTuple):
    """The result of a sweep."""

    interrupted: list[Run]  # now wait for a worker
    given_up: list[Run]  # failed, since they were resumed too often


class Recovery:
    """Recovers the runs of one pipeline, or of all. Several may run at the same time.

    `patience_s` is how many seconds a run may go without a heartbeat. It must exceed the differences between the clocks
    of the machines, since a heartbeat is dated by its worker's clock. Only for pipelines whose workers send heartbeats:
    a pipeline of ticks is silent between ticks.

    >>> from retake.clock import SystemClock
    >>> from retake.runs import open_ledger
    >>> Recovery(open_ledger("sqlite:posters.db"), SystemClock()).sweep()
    Swept(interrupted=[], given_up=[])
    """

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        *,
        patience_s: float = PATIENCE_S,
        max_resumes: int = MAX_RESUMES,
        pipeline: str | None = None,
    ) -> None:
        self._ledger, self._clock = ledger, clock
        self.patience_s = patience_s
        self._max_resumes, self._pipeline = max_resumes, pipeline
        self._ahead: dict[str, tuple[datetime, datetime]] = {}  # heartbeats in the future, and when first seen
        self._steady = steady(clock)
        self._gained = clock.now() - self._steady()
        self._set_at: datetime | None = None  # when the clock was last set forward, in steady time

    def sweep(self) -> Swept:
        """Mark silent runs as interrupted, and give up those that were resumed too often. Raises StorageError.

        A run that cannot be read is logged and left as it is.
        """
        interrupted = list(self._interrupt())
        given_up = list(self._give_up())
        gone = {run.run_id for run in given_up}
        return Swept([run for run in interrupted if run.run_id not in gone], given_up)

    def _interrupt(self) -> Iterator[Run]:
        now = self._clock.now()
        for run in [] if self._was_set(now) else self._silent(now):
            if self._pipeline in (None, run.pipeline):
                with _passing_over(run):
                    if self._ledger.get(run.run_id).heartbeat_at == run.heartbeat_at:  # otherwise its worker is alive
                        yield interrupt(self._ledger, run, self._clock.now())

    def _was_set(self, now: datetime) -> bool:
        """Return whether the clock was set forward less than `patience_s` ago.

        The heartbeats of living workers seem old then. One that is taken for dead may be in the middle of a paid call,
        which would be made again.
        """
        present = self._steady()
        if now - present - self._gained > _STEP:
            self._set_at = present
        self._gained = now - present
        return self._set_at is not None and present - self._set_at < timedelta(seconds=self.patience_s)

    def _silent(self, now: datetime) -> list[Run]:
        """Return the runs whose last heartbeat is older than `patience_s`.

        A heartbeat later than `now` comes from a worker whose clock is ahead, and which may be alive. Its run is silent
        once that heartbeat has stayed the same for `patience_s`.
        """
        running = [(run, run.heartbeat_at or run.updated_at) for run in self._ledger.silent(now + _FAR_FUTURE)]
        ahead = {}
        for run, heard in running:
            if heard > now:
                seen, since = self._ahead.get(run.run_id, (heard, now))
                ahead[run.run_id] = heard, since if seen == heard and since <= now else now
        self._ahead = ahead
        silent_since = now - timedelta(seconds=self.patience_s)
        return [run for run, heard in running if ahead.get(run.run_id, (heard, heard))[1] < silent_since]

    def _give_up(self) -> Iterator[Run]:
        """Give up interrupted runs that were resumed too often, including those marked by a recovery that died."""
        for run in self._ledger.runs(status=[RunStatus.INTERRUPTED], pipeline=self._pipeline, limit=1_000_000):
            if exhausted(run, self._max_resumes):
                with _passing_over(run):
                    yield give_up(self._ledger, run, self._clock.now())


@contextmanager
def _passing_over(run: Run) -> Iterator[None]:
    """Let a sweep continue with the other runs if this one has changed or was damaged since it was listed."""
    try:
        yield
    except (StaleRun, UnknownRun):  # it has ended, or another recovery was faster
        pass
    except StateError as error:
        _log.warning("%s is not recovered: %s", run.run_id, error)


def take_over(ledger: Ledger, run: Run, clock: Clock, *, worker: str, actor: str = ACTOR) -> Run:
    """Resume a run that the former holder of the lease left running or interrupted. Only for the current holder.

    Return the run, resumed by `worker`, or failed if it was resumed too often. Raises StaleRun, IllegalTransition,
    StorageError.
    """
    now, trace_id = clock.now(), new_trace_id(run.run_id)
    if run.status is RunStatus.RUNNING:
        run = interrupt(ledger, run, now, actor=actor, trace_id=trace_id)
    if exhausted(run, MAX_RESUMES):
        return give_up(ledger, run, now, actor=actor, trace_id=trace_id)
    return ledger.move(run, Trigger.RECOVERY_RESUME, actor=actor, worker=worker, trace_id=trace_id)


def interrupt(ledger: Ledger, run: Run, now: datetime, *, actor: str = ACTOR, trace_id: str | None = None) -> Run:
    """Mark a running run as interrupted, with an error record about its worker's silence, and return it."""
    seen = run.heartbeat_at or run.updated_at
    silent_s = max(0, round((now - seen).total_seconds()))
    who = run.worker or "somebody"
    text = f"{who} had {run.run_id} (task {run.task_id}), and was last heard of at {stamp(seen)}, {silent_s} s ago"
    _log.warning("%s: it is marked as interrupted, and continues when a worker takes it up", text)
    record = _record(run, text, now, {"since": stamp(run.updated_at), "last_heard_of": stamp(seen)}, retry_in(0))
    return ledger.move(run, Trigger.PROCESS_RESTART, actor=actor, error=record, trace_id=trace_id)


def give_up(
    ledger: Ledger, run: Run, now: datetime, *, actor: str = ACTOR, trace_id: str | None = None, why: str = ""
) -> Run:
    """Mark an interrupted run as failed, and return it. `why` defaults to its having been resumed too often."""
    text = why or why_given_up(run)
    _log.error("%s", text)
    record = _record(run, text, now, {"resumes": run.resumes}, escalate("operator", GIVEN_UP_ADVICE))
    return ledger.move(run, Trigger.RECOVERY_ABORT, actor=actor, error=record, trace_id=trace_id)


def exhausted(run: Run, max_resumes: int) -> bool:
    """Return whether the run has crashed more than `max_resumes` times. A worker that was asked to stop has not
    crashed."""
    return run.crashes > max_resumes


GIVEN_UP_ADVICE = "find out what ends its workers, then let the task be done again"


def why_given_up(run: Run) -> str:
    """Return why the run is given up."""
    return f"{run.run_id} (task {run.task_id}) was resumed {run.resumes} times, and its workers died of it or vanished"


def _record(run: Run, text: str, now: datetime, context: dict[str, Any], action: dict[str, Any]) -> dict[str, Any]:
    return error_record(
        CodedError(Code.SCRIPT_DIED, text),
        now=now,
        robot_id=ACTOR,
        correlation_id=run.run_id,
        retry_count=run.attempt - 1,
        input_data={"task_id": run.task_id, "attempt": run.attempt},
        system_context={"worker": run.worker, **context},
        recovery_actions=[action],
    )
