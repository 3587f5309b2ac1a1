"""Upkeep of rows and runs, which a crash between the two writes of a change may leave inconsistent.

the row                   its run                what happens
───────────────────────   ────────────────────   ─────────────────────────────────────────────
a step runs               is missing             it is created, with the key that it would have had
a step runs               failed, given up       the pipeline fails, with the run's error
a step runs               was cancelled          the pipeline is cancelled
a step runs               succeeded              it is started again: its result was not saved
was cancelled             waits                  it is cancelled
"""

from collections.abc import Iterator
from logging import getLogger

from sqlalchemy import Text, cast, or_, select

from retake.errors import Code, ErrorRecord, RetakeError, StorageError
from retake.music import states
from retake.music.attempts import AttemptStore
from retake.music.database import Cursor
from retake.music.rows import PipelineRow, pipeline_of_task
from retake.music.store import NAME, PIPELINE, PipelineStore, begin_run, cancel_run
from retake.music.tables import MAX_ID, pipelines
from retake.runs.recovery import ACTOR, Recovery
from retake.runs.run import ERROR, Run
from retake.runs.statements import Row
from retake.runs.states import FINAL, TAKEN_UP, RunStatus
from retake.runs.tables import task_runs

_log = getLogger(__name__)

_KEY = "music/" + cast(pipelines.c.id, Text) + "/" + cast(pipelines.c.run_number, Text)
_OF_ROW = task_runs.c.idempotency_key == _KEY
_WITHOUT_RUN = (
    select(*PIPELINE, task_runs.c.run_id)
    .select_from(pipelines.outerjoin(task_runs, _OF_ROW))
    .where(or_(*(pipelines.c.state == states.running(step) for step in states.STEPS)))
    .where(or_(task_runs.c.run_id.is_(None), *(task_runs.c.run_status == status for status in sorted(FINAL))))
)
_WAITING = (
    select(task_runs.c.task_id, task_runs.c.idempotency_key, task_runs.c.run_id)
    .where(task_runs.c.pipeline == NAME)
    .where(or_(*(task_runs.c.run_status == status for status in sorted(TAKEN_UP))))
)
_PAGE = 200


class Upkeep:
    """Brings rows and runs back in line. Several processes may do so at the same time."""

    def __init__(self, store: PipelineStore, recovery: Recovery) -> None:
        self._store, self._recovery = store, recovery
        self._attempts = AttemptStore(store)

    def look(self) -> int:
        """Repair what a crash has left, and return the number of pipelines repaired. Raises StorageError."""
        self._recovery.sweep()
        database = self._store.database
        with database.reading() as cursor:
            found = [*cursor.readable(_WITHOUT_RUN, name="without-run")]
            found += _cancelled(cursor)
        return sum(self._repair(PipelineRow(*row), run_id) for *row, run_id in found)

    def _repair(self, pipeline: PipelineRow, run_id: str | None) -> bool:
        """Return whether the repair succeeded; a pipeline that cannot be repaired does not hold up the others."""
        ledger = self._store.database.ledger
        try:
            if run_id is None:
                begin_run(self._store.database, pipeline, ACTOR)
            else:
                self._bring_in_line(pipeline, ledger.get(run_id))
        except StorageError:
            raise
        except RetakeError as error:
            _log.warning("%s cannot be repaired: %s", pipeline.task_id, error)
            return False
        return True

    def _bring_in_line(self, row: PipelineRow, run: Run) -> None:
        _log.warning("%s is %s, and its run %s is %s: repairing it", row.task_id, row.state, run.run_id, run.status)
        if row.state == states.CANCELLED:
            cancel_run(self._store.database, row)
        elif run.status is RunStatus.FAILED:
            error = self._error_of(run)
            self._attempts.strand(row, error.message or "its workers died of it", error.code or str(Code.SCRIPT_DIED))
        elif run.status is RunStatus.CANCELLED:
            self._store.abandon(row)
        else:
            self._store.start_over(row)

    def _error_of(self, run: Run) -> ErrorRecord:
        errors = [event.payload for event in self._store.database.ledger.events(run.run_id) if event.kind == ERROR]
        return ErrorRecord(errors[-1] if errors else None)


def _cancelled(cursor: Cursor) -> Iterator[Row]:
    """Yield the cancelled pipelines whose current run waits, each with that run's id.

    The query begins with the runs: few of them wait, while cancelled pipelines stay for ever.
    """
    runs = cursor.readable(_WAITING, name="waiting")
    waiting = {key: run_id for _, key, run_id in runs}
    of = sorted({it for task_id, *_ in runs if (it := pipeline_of_task(task_id)) is not None and it <= MAX_ID})
    for at in range(0, len(of), _PAGE):
        wanted = or_(*(pipelines.c.id == it for it in of[at : at + _PAGE]))
        for row in cursor.readable(select(*PIPELINE).where(wanted, pipelines.c.state == states.CANCELLED)):
            if run_id := waiting.get(PipelineRow(*row).run_key):
                yield (*row, run_id)
