"""Pipelines in the database, and their changes by people and outside programs, each in one transaction.

A step is started by writing the row first and then creating the run on the ledger. After a crash between the two, the
service's upkeep creates the run (`retake.music.upkeep`) with the same idempotency key.
"""

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime
from logging import getLogger
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, bindparam, func, not_, or_, select, update

from retake.clock import Clock
from retake.errors import RetakeError, StorageError
from retake.exit_codes import ExitCode
from retake.music import states
from retake.music.database import Cursor, MusicDatabase
from retake.music.rows import Job, PipelineRow
from retake.music.states import MusicStep
from retake.music.tables import MAX_ID, pipeline_jobs, pipelines
from retake.runs.run import StaleRun
from retake.runs.states import IllegalTransition, Trigger

PIPELINE = tuple(pipelines.c)
JOB = tuple(pipeline_jobs.c)
ACTOR = "operator"
NAME = "music"
"""The pipeline's name on the ledger."""

MAX_LISTED = 1000

_log = getLogger(__name__)


class UnknownPipeline(RetakeError):
    """The pipeline does not exist."""

    exit_code = ExitCode.BAD_STATE


class NewPipeline(NamedTuple):
    """The input of a new pipeline."""

    track_title: str
    audio: str
    style: str | None = None
    idempotency_key: str | None = None


class PipelineAction(NamedTuple):
    """An action of a person on a pipeline."""

    change: "Callable[[Cursor, PipelineRow], Mapping[str, Any]]"
    """Return the columns to set. Checks everything before it writes anything. Raises Refusal."""

    after: Callable[[MusicDatabase, PipelineRow], None] = lambda database, row: None
    """What follows once the change is saved."""


class Started(NamedTuple):
    """A pipeline whose step was started, or that already existed."""

    pipeline: PipelineRow
    new: bool = True


class PipelineStore:
    """Pipelines and their attempts. Every method may raise StorageError.

    With `telling`, messages to people are recorded together with the change that they announce.
    """

    def __init__(self, database: MusicDatabase, *, telling: bool = False) -> None:
        self.database, self.telling = database, telling

    @property
    def clock(self) -> Clock:
        return self.database.clock

    # --- queries ------------------------------------------------------------------------------------------------

    def get(self, pipeline_id: int) -> PipelineRow:
        """Return the pipeline. Raises UnknownPipeline."""
        with self.database.reading() as cursor:
            return read_pipeline(cursor, pipeline_id)

    def jobs(self, pipeline_id: int) -> list[Job]:
        """Return its attempts, in order."""
        with self.database.reading() as cursor:
            found = cursor.rows(_JOBS, {"of_pipeline": _bounded(pipeline_id)}, name="jobs")
        return [Job(*row) for row in found]

    def listing(self, state: Collection[str] = (), *, limit: int = 50) -> list[PipelineRow]:
        """Return pipelines, newest first: those in one of the states, or all except the published and cancelled.

        Rows that cannot be read are left out.
        """
        wanted = _any_of(state) if state else not_(_any_of(states.ENDED))
        query = select(*PIPELINE).where(wanted).order_by(pipelines.c.id.desc()).limit(max(0, min(limit, MAX_LISTED)))
        with self.database.reading() as cursor:
            return [PipelineRow(*row) for row in cursor.readable(query)]

    def counts(self) -> dict[str, int]:
        """Return the number of pipelines in each state that occurs."""
        with self.database.reading() as cursor:
            return counts_of(cursor)

    # --- changes ------------------------------------------------------------------------------------------------

    def create(self, new: NewPipeline) -> Started:
        """Create a pipeline and start its cover, or return the one with the same idempotency key."""
        with self.database.transaction() as cursor:
            same_key = select(*PIPELINE).where(pipelines.c.idempotency_key == new.idempotency_key)
            if new.idempotency_key is not None and (known := cursor.row(same_key)):
                return Started(PipelineRow(*known), new=False)
            now = self.clock.now()
            first = {"state": states.running(MusicStep.COVER), "run_number": 1, "take": 1}
            values = {**new._asdict(), **first, "created_at": now, "updated_at": now}
            row = cursor.add(pipelines, values, *PIPELINE)
            if row is None:  # another process was faster, and has just committed
                known = cursor.row(same_key)
                assert known, "only this key can conflict"
                return Started(PipelineRow(*known), new=False)
            started = PipelineRow(*row)
        self._follow(begin_run, started)
        return Started(started)

    def act(self, pipeline_id: int, action: PipelineAction) -> PipelineRow:
        """Carry out an action and return the pipeline. Raises UnknownPipeline, Refusal."""
        changed = self.change(pipeline_id, action.change)
        self._follow(action.after, changed)
        return changed

    def _follow(self, after: Callable[[MusicDatabase, PipelineRow], None], row: PipelineRow) -> None:
        """Do what follows a saved change, or leave it to upkeep. An error is only logged: the caller would otherwise
        repeat the change."""
        try:
            after(self.database, row)
        except StorageError as error:
            _log.warning("%s is %s, but its run could not be updated yet: %s", row.task_id, row.state, error)

    def abandon(self, row: PipelineRow) -> None:
        """Cancel a pipeline whose current run was cancelled on the ledger, unless it has moved on."""

        def change(cursor: Cursor, now: PipelineRow) -> Mapping[str, Any]:
            if not now.is_at(row):
                return {}
            end_jobs(cursor, row.id, "cancelled", self.clock.now())
            return {"state": states.CANCELLED, "current_job": 0}

        self.change(row.id, change)

    def start_over(self, row: PipelineRow) -> None:
        """Give a running step a new run, since its current one has ended, unless it has moved on."""

        def change(cursor: Cursor, now: PipelineRow) -> Mapping[str, Any]:
            return {"run_number": now.run_number + 1} if now.is_at(row) else {}

        begin_run(self.database, self.change(row.id, change), "recovery")

    def change(self, pipeline_id: int, change: Callable[[Cursor, PipelineRow], Mapping[str, Any]]) -> PipelineRow:
        """Set the columns that `change(cursor, row)` returns, and return the row. An exception in `change` rolls
        everything back."""
        with self.database.transaction() as cursor:
            row = read_pipeline(cursor, pipeline_id, for_update=True)
            return self.set(cursor, row, change(cursor, row))

    def set(self, cursor: Cursor, row: PipelineRow, values: Mapping[str, Any]) -> PipelineRow:
        """Set columns of a row that this transaction has read `for_update`, and return the row."""
        changed = {**values, "updated_at": self.clock.now()}
        saved = cursor.row(update(pipelines).where(pipelines.c.id == row.id).values(changed).returning(*PIPELINE))
        assert saved, "the row is locked"
        return PipelineRow(*saved)


_JOBS = select(*JOB).where(pipeline_jobs.c.pipeline_id == bindparam("of_pipeline")).order_by(pipeline_jobs.c.id)
_COUNTS = select(pipelines.c.state, func.count()).group_by(pipelines.c.state)
_ONE = select(*PIPELINE).where(pipelines.c.id == bindparam("of_pipeline"))


def counts_of(cursor: Cursor) -> dict[str, int]:
    """Return the number of pipelines in each state that occurs."""
    return {str(state): int(number) for state, number in cursor.readable(_COUNTS, name="counts")}


def _any_of(wanted: Collection[str]) -> ColumnElement[bool]:
    return or_(*(pipelines.c.state == state for state in sorted(wanted)))


def read_pipeline(cursor: Cursor, pipeline_id: int, *, for_update: bool = False) -> PipelineRow:
    """Return the pipeline, locked if `for_update`. Raises UnknownPipeline."""
    query = _ONE.with_for_update() if for_update else _ONE
    row = cursor.row(query, {"of_pipeline": _bounded(pipeline_id)}, name="lock" if for_update else "get")
    if row is None:
        raise UnknownPipeline(f"there is no pipeline {pipeline_id}"[:80])
    return PipelineRow(*row)


def end_jobs(
    cursor: Cursor,
    pipeline_id: int,
    status: str,
    now: datetime,
    error: str | None = None,
    error_code: str | None = None,
) -> int:
    """End a pipeline's attempts recorded as running, and return their number."""
    open_jobs = (pipeline_jobs.c.pipeline_id == pipeline_id) & (pipeline_jobs.c.status == "running")
    values = {"status": status, "finished_at": now, "error": error, "error_code": error_code}
    return cursor.change(update(pipeline_jobs).where(open_jobs).values(values))


def begin_run(database: MusicDatabase, row: PipelineRow, actor: str = ACTOR) -> None:
    """Create the run of the running step, unless it exists."""
    database.ledger.create_for_task(row.task_id, row.run_key, actor=actor, pipeline=NAME)


def cancel_run(database: MusicDatabase, row: PipelineRow) -> None:
    """Cancel the current run of a cancelled pipeline, unless it has ended."""
    run = database.ledger.find(row.run_key)
    if run and not run.ended and run.pipeline == NAME:
        with suppress(StaleRun, IllegalTransition):  # it has moved on in the meantime, and will end
            database.ledger.move(run, Trigger.CANCEL_COMMAND, actor=ACTOR)


def as_text(value: Any) -> str:
    """Return a value as text for a JSON column."""
    return json.dumps(value, ensure_ascii=False)


def _bounded(pipeline_id: int) -> int:
    return pipeline_id if 0 <= pipeline_id <= MAX_ID else -1
