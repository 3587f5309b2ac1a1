"""The work of a robot as runs on a ledger: pipeline "robot/ID", one run per piece of work.

A failed attempt is an event `run.error` with the standard record, a result is `run.step.done` with the robot's id as
the step. The ledger is for observation only: if it is unreachable, the robot works on, and a warning is logged.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from logging import getLogger
from uuid import uuid4

from retake.errors import CodedError, RetakeError, Stopped
from retake.robots.action_sink import Record
from retake.runs import Ledger
from retake.runs.run import ERROR, STEP_DONE, Note, Run
from retake.runs.states import Trigger
from retake.runs.validation import mended, mended_record

PIPELINE = "robot/"

_log = getLogger(__name__)


class RobotRun:
    """The run of one piece of work of the robot `robot_id`. Without a `ledger`, nothing is recorded.

    `owner` names the worker ("host:pid"). No method raises RetakeError.
    """

    def __init__(self, ledger: Ledger | None, robot_id: str, correlation_id: str, owner: str) -> None:
        self._ledger, self._robot_id, self._owner = ledger, robot_id, owner
        self._run: Run | None = None
        self._change(lambda ledger: self._begun(ledger, f"{robot_id}/{correlation_id}"[:200]))

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
        """End the run if the `with` block raises: as cancelled if the work was stopped, else as failed.

        A CodedError does not end it: its record follows in `failed`.
        """
        try:
            yield
        except CodedError:
            raise
        except Stopped:
            self._end(Trigger.CANCEL_COMMAND)
            raise
        except BaseException:
            self._end(Trigger.NON_RETRYABLE_ERROR)
            raise

    def _begun(self, ledger: Ledger, task_id: str) -> Run:
        key = f"{task_id}#{uuid4().hex}"
        run = ledger.create_for_task(task_id, key, actor="robot", pipeline=f"{PIPELINE}{self._robot_id}")
        return ledger.move(run, Trigger.WORKER_CLAIM, actor="robot", worker=self._owner)

    def _add(self, note: Note) -> None:
        def add(ledger: Ledger) -> Run | None:
            if self._run:
                ledger.note(self._run, note.kind, note.payload, actor="robot")
            return self._run

        self._change(add)

    def _end(self, trigger: Trigger, *, error: Record | None = None, notes: Sequence[Note] = ()) -> None:
        def end(ledger: Ledger) -> Run | None:
            if self._run is None or self._run.ended:
                return self._run
            return ledger.move(self._run, trigger, actor="robot", error=error, notes=notes)

        self._change(end)

    def _change(self, change: Callable[[Ledger], Run | None]) -> None:
        if self._ledger is None:
            return
        try:
            self._run = change(self._ledger)
        except RetakeError as error:
            _log.warning("%s: its work is not recorded on the ledger: %s", self._robot_id, error)
