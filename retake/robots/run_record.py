"""The work of a robot as runs on a ledger: pipeline "robot/ID", one run per piece of work.

A failed attempt is an event `run.error` with the standard record, a result is `run.step.done` with the robot's id as
the step. The ledger is for observation only: if it is unreachable, the robot works on, and a warning is logged.

While the work is done, its run has heartbeats. If the process dies, they stop, and the next robot with this id marks
the run as interrupted. The same work resumes it; if nobody does that work, it is given up.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from logging import getLogger
from uuid import uuid4
from weakref import WeakKeyDictionary

from retake.attempts import steady
from retake.clock import Clock, is_ahead, stamp
from retake.errors import OutOfThreads, RetakeError, RunError, Stopped, naming_thread_shortage
from retake.robots.action_sink import Record
from retake.runs import Ledger
from retake.runs.recovery import PATIENCE_S, Recovery, give_up, take_over
from retake.runs.run import ERROR, STEP_DONE, Note, Run, StaleRun
from retake.runs.run_handle import HEARTBEAT_S, RunHandle
from retake.runs.states import RunStatus, Trigger
from retake.runs.validation import mended, mended_record

PIPELINE = "robot/"
ACTOR = "robot"

_MAX_TASK_ID = 200  # characters
_MAX_LEFT = 1000  # maximum number of interrupted runs examined in one sweep

_log = getLogger(__name__)


class _LeftRuns:
    """The interrupted runs of a robot, by task, as of the last sweep."""

    def __init__(self, clock: Clock) -> None:
        self.now = steady(clock)
        self.swept_at: datetime | None = None
        self.runs: dict[str, Run] = {}

    @property
    def is_old(self) -> bool:
        return self.swept_at is None or (self.now() - self.swept_at).total_seconds() >= PATIENCE_S


_left_by_ledger = WeakKeyDictionary[Ledger, dict[str, _LeftRuns]]()
"""The left runs of each robot, by ledger. A program may make a robot for each piece of work, and a sweep costs as much
as recording one."""


def _left_on(ledger: Ledger | None, robot_id: str, clock: Clock) -> _LeftRuns:
    by_robot = {} if ledger is None else _left_by_ledger.setdefault(ledger, {})
    return by_robot.setdefault(robot_id, _LeftRuns(clock))


class RobotRuns:
    """The runs of the robot `robot_id`, and those that its dead processes have left. Without a `ledger` there are none.

    `owner` names the worker ("host:pid"). An interrupted run is given up after `resumable_s` seconds.
    """

    def __init__(self, ledger: Ledger | None, robot_id: str, clock: Clock, *, owner: str, resumable_s: float) -> None:
        self.ledger, self.robot_id, self.clock, self.owner = ledger, robot_id, clock, owner
        self._resumable_s = resumable_s
        self._pipeline = f"{PIPELINE}{robot_id}"
        self._recovery = ledger and Recovery(ledger, clock, pipeline=self._pipeline)
        self._left = _left_on(ledger, robot_id, clock)

    def begin(self, correlation_id: str) -> "RobotRun":
        """Return the run of a piece of work that begins: the one that a dead process has left, or a new one.

        Raises ValueError for an id that is not text, but never RetakeError.
        """
        if not isinstance(correlation_id, str):  # if deferred work had such an id, all of it would be unreadable
            raise ValueError(f"correlation_id: {correlation_id!r} is not text")  # noqa: TRY004  as for other arguments
        return RobotRun(self, f"{self.robot_id}/{correlation_id}")

    def begun(self, ledger: Ledger, task_id: str) -> Run:
        """Return the run that `begin` uses. Raises StateError, StorageError, LeaseHeld."""
        self._sweep(ledger)
        whole = len(task_id) < _MAX_TASK_ID  # otherwise other work with the same beginning is the same task
        task_id = task_id[:_MAX_TASK_ID]
        if whole and (left := self._left.runs.pop(task_id, None)):
            with suppress(RunError):  # somebody else has resumed, cancelled or removed it
                run = take_over(ledger, left, self.clock, worker=self.owner, actor=ACTOR)
                if not run.ended:
                    return run
        key = f"{task_id}#{uuid4().hex}"
        return ledger.create_for_task(task_id, key, actor=ACTOR, pipeline=self._pipeline, worker=self.owner)

    def _sweep(self, ledger: Ledger) -> None:
        """Find the runs that dead processes have left, at most once in PATIENCE_S; give up those left for too long."""
        if not self._recovery or not self._left.is_old:
            return
        self._left.swept_at = self._left.now()
        try:
            self._recovery.sweep()
            interrupted = ledger.runs(status=[RunStatus.INTERRUPTED], pipeline=self._pipeline, limit=_MAX_LEFT)
            self._left.runs = {run.task_id: run for run in reversed(interrupted) if not self._given_up(ledger, run)}
        except RetakeError as error:
            _log.warning("%s: the runs that dead processes have left are not recovered: %s", self.robot_id, error)

    def _given_up(self, ledger: Ledger, run: Run) -> bool:
        now, until = self.clock.now(), run.updated_at + timedelta(seconds=self._resumable_s)
        if is_ahead(until, now, longest_s=self._resumable_s):
            return False
        why = f"{run.run_id} (task {run.task_id}) was interrupted at {stamp(run.updated_at)}, and nobody resumed it"
        with suppress(RunError):  # somebody else was faster
            give_up(ledger, run, now, why=why)
        return True


class RobotRun:
    """The run of one piece of work among the `runs` of a robot. No method raises RetakeError."""

    def __init__(self, runs: RobotRuns, task_id: str) -> None:
        self._runs, self._robot_id = runs, runs.robot_id
        self._run: Run | None = None
        self._change(lambda ledger: runs.begun(ledger, task_id))

    def tried(self, record: Record) -> None:
        """Record a failed attempt that is retried."""
        self._add(Note(ERROR, mended_record(record)))

    def done(self) -> None:
        """Record the result."""
        result = Note(STEP_DONE, mended({"step": self._robot_id, "text": "done"}))
        self._end(Trigger.COMPLETED, notes=[result])

    def failed(self, record: Record) -> None:
        """Record the final failure."""
        self._end(Trigger.NON_RETRYABLE_ERROR, error=mended_record(record))

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Send heartbeats while the `with` block runs, and end the run if it raises: as cancelled if the work was
        stopped, else as failed."""
        try:
            with ExitStack() as held:
                self._keep_alive(held)
                yield
        except Stopped:
            self._end(Trigger.CANCEL_COMMAND)
            raise
        except BaseException:
            self._end(Trigger.NON_RETRYABLE_ERROR)
            raise

    def _keep_alive(self, held: ExitStack) -> None:
        """Send heartbeats until `held` is closed."""
        if self._runs.ledger is None or self._run is None or self._run.ended:
            return
        handle = RunHandle(self._runs.ledger, self._run, self._runs.clock, heartbeat_s=HEARTBEAT_S)
        try:
            with naming_thread_shortage():
                held.enter_context(handle.kept_alive())
        except OutOfThreads as error:
            _log.warning("%s: its run has no heartbeats, and may be taken for dead: %s", self._robot_id, error)

    def _add(self, note: Note) -> None:
        def add(ledger: Ledger) -> Run | None:
            if self._run:
                ledger.note(self._run, note.kind, note.payload, actor=ACTOR)
            return self._run

        self._change(add)

    def _end(self, trigger: Trigger, *, error: Record | None = None, notes: Sequence[Note] = ()) -> None:
        def end(ledger: Ledger) -> Run | None:
            if self._run is None or self._run.ended:
                return self._run
            try:
                return ledger.move(self._run, trigger, actor=ACTOR, error=error, notes=notes)
            except StaleRun:
                run = ledger.get(self._run.run_id)
                if run.status is not RunStatus.INTERRUPTED:
                    raise
            # The ledger was unreachable, or this process suspended, for so long that it was presumed dead.
            run = ledger.move(run, Trigger.RECOVERY_RESUME, actor=ACTOR, worker=self._runs.owner)
            return ledger.move(run, trigger, actor=ACTOR, error=error, notes=notes)

        self._change(end)

    def _change(self, change: Callable[[Ledger], Run | None]) -> None:
        if self._runs.ledger is None:
            return
        try:
            self._run = change(self._runs.ledger)
        except RetakeError as error:
            _log.warning("%s: its work is not recorded on the ledger: %s", self._robot_id, error)
