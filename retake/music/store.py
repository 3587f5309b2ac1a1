"""Pipelines in the database, and what people and programs outside do with them, each in one transaction.

Whoever starts a step writes the row first and creates the run on the ledger after it; where a crash comes between the
two, the service's upkeep creates the run (`retake.music.upkeep`), with the same idempotency key.
"""

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlalchemy import ColumnElement, bindparam, func, insert, not_, or_, select, update

from retake.clock import Clock
from retake.errors import RetakeError
from retake.exit_codes import ExitCode
from retake.music import states
from retake.music.database import Cursor, MusicDatabase
from retake.music.rows import Job, Pipeline
from retake.music.states import Standing, Step
from retake.music.tables import LARGEST_ID, pipeline_jobs, pipelines
from retake.operations.port import Refusal
from retake.runs.run import StaleRun
from retake.runs.states import IllegalTransition, Trigger

PIPELINE = tuple(pipelines.c)
JOB = tuple(pipeline_jobs.c)
ACTOR = "operator"
NAME = "music"
"""The pipeline's name on the ledger."""

MOST_LISTED = 1000


class UnknownPipeline(RetakeError):
    """There is no such pipeline."""

    exit_code = ExitCode.BAD_STATE


class NewPipeline(NamedTuple):
    """What a pipeline begins with."""

    track_title: str
    audio: str
    style: str | None = None
    idempotency_key: str | None = None


class Started(NamedTuple):
    """A pipeline whose step has been started, or that was there already."""

    pipeline: Pipeline
    new: bool = True


class PipelineStore:
    """Pipelines and their attempts. Every method may raise StorageError.

    `uploads_per_day` limits how many uploads begin in a day of YouTube's, None is no limit. With `telling`, what people
    are to be told is recorded with the change that it is about.
    """

    def __init__(self, database: MusicDatabase, *, uploads_per_day: int | None = None, telling: bool = False) -> None:
        self.database, self._uploads_per_day = database, uploads_per_day
        self.telling = telling

    @property
    def clock(self) -> Clock:
        return self.database.clock

    # --- queries ------------------------------------------------------------------------------------------------

    def get(self, pipeline_id: int) -> Pipeline:
        """Return the pipeline. Raises UnknownPipeline."""
        with self.database.reading() as cursor:
            return read_pipeline(cursor, pipeline_id)

    def jobs(self, pipeline_id: int) -> list[Job]:
        """Return its attempts, in order."""
        with self.database.reading() as cursor:
            found = cursor.rows(_JOBS, {"of_pipeline": _bounded(pipeline_id)}, name="jobs")
        return [Job(*row) for row in found]

    def listing(self, state: Collection[str] = (), *, limit: int = 50) -> list[Pipeline]:
        """Return the newest pipelines first: those in one of the states, or all but the published and cancelled."""
        wanted = _any_of(state) if state else not_(_any_of(states.ENDED))
        query = select(*PIPELINE).where(wanted).order_by(pipelines.c.id.desc()).limit(max(0, min(limit, MOST_LISTED)))
        with self.database.reading() as cursor:
            return [Pipeline(*row) for row in cursor.rows(query)]

    def counts(self) -> dict[str, int]:
        """Return how many pipelines are in each state that occurs."""
        with self.database.reading() as cursor:
            return dict(cursor.rows(_COUNTS, name="counts"))

    # --- changes ------------------------------------------------------------------------------------------------

    def create(self, new: NewPipeline) -> Started:
        """Create a pipeline, whose cover is begun; or return the one with the same idempotency key."""
        with self.database.transaction() as cursor:
            if new.idempotency_key is not None:
                known = cursor.row(select(*PIPELINE).where(pipelines.c.idempotency_key == new.idempotency_key))
                if known:
                    return Started(Pipeline(*known), new=False)
            now = self.clock.now()
            first = {"state": states.running(Step.COVER), "run_number": 1, "take": 1}
            values = {**new._asdict(), **first, "created_at": now, "updated_at": now}
            row = cursor.row(insert(pipelines).values(values).returning(*PIPELINE))
            assert row, "an INSERT returns its row"
            started = Pipeline(*row)
        self._begin_run(started)
        return Started(started)

    def approve(self, pipeline_id: int, step: str | None = None, *, job: int | None = None) -> Pipeline:
        """Begin the step after the pending one. `job` is the attempt whose result was looked at; another is refused.

        This and the other actions raise UnknownPipeline, and Refusal: nothing is changed then.
        """
        return self._start(pipeline_id, lambda now: states.approved(now, step), job=job)

    def feedback(self, pipeline_id: int, note: str, step: str | None = None, *, job: int | None = None) -> Pipeline:
        """Do the pending step again, with a person's note."""
        return self._start(pipeline_id, lambda now: states.sent_back(now, step), job=job, note=note)

    def publish(self, pipeline_id: int) -> Pipeline:
        """Begin to publish what has been reviewed."""
        return self._start(pipeline_id, states.publishable)

    def retry(self, pipeline_id: int) -> Pipeline:
        """Do the failed step again, with everything before it kept."""
        return self._start(pipeline_id, states.retried, same_take=True)

    def again(self, pipeline_id: int) -> Pipeline:
        """Do the step anew that waits for a person's decision: whatever became of the last call, it is made again."""
        return self._start(pipeline_id, states.resolvable, upload_session=None, last_chunk_begun=False)

    def resolve(self, pipeline_id: int, video_id: str) -> Pipeline:
        """Take it that the upload that nobody could tell of has made this video."""

        def change(cursor: Cursor, row: Pipeline) -> Mapping[str, Any]:
            if states.resolvable(row.standing()) is not Step.PUBLISH:
                raise Refusal(f"no upload waits for a decision; say again instead (state={row.state})")
            return {"state": states.PUBLISHED, "youtube_video_id": video_id, "failed_reason": None}

        return self.change(pipeline_id, change)  # nobody is told: a person has just said so

    def cancel(self, pipeline_id: int, *, job: int | None = None) -> Pipeline:
        """Cancel it; no paid call begins afterwards."""

        def change(cursor: Cursor, row: Pipeline) -> Mapping[str, Any]:
            _check_job(row, job)
            states.cancellable(row.standing())
            end_jobs(cursor, row.id, "cancelled", self.clock.now())
            return {"state": states.CANCELLED, "current_job": 0}

        cancelled = self.change(pipeline_id, change)
        cancel_run(self.database, cancelled)
        return cancelled

    def abandon(self, row: Pipeline) -> None:
        """Cancel a pipeline whose present run was cancelled on the ledger; nothing if it has moved on."""

        def change(cursor: Cursor, now: Pipeline) -> Mapping[str, Any]:
            if (now.state, now.run_number) != (row.state, row.run_number):
                return {}
            end_jobs(cursor, row.id, "cancelled", self.clock.now())
            return {"state": states.CANCELLED, "current_job": 0}

        self.change(row.id, change)

    def start_over(self, row: Pipeline) -> None:
        """Give a step that runs by its row another run: its present one has ended. Nothing if it has moved on."""

        def change(cursor: Cursor, now: Pipeline) -> Mapping[str, Any]:
            moved_on = (now.state, now.run_number) != (row.state, row.run_number)
            return {} if moved_on else {"run_number": now.run_number + 1}

        begin_run(self.database, self.change(row.id, change), "recovery")

    def change(self, pipeline_id: int, change: Callable[[Cursor, Pipeline], Mapping[str, Any]]) -> Pipeline:
        """Set what `change(cursor, row)` returns, and return the row. What `change` raises undoes everything."""
        with self.database.transaction() as cursor:
            row = read_pipeline(cursor, pipeline_id, for_update=True)
            return self.set(cursor, row, change(cursor, row))

    def set(self, cursor: Cursor, row: Pipeline, values: Mapping[str, Any]) -> Pipeline:
        """Set columns of a row that the transaction has read `for_update`, and return the row."""
        changed = {**values, "updated_at": self.clock.now()}
        saved = cursor.row(update(pipelines).where(pipelines.c.id == row.id).values(changed).returning(*PIPELINE))
        assert saved, "the row is locked"
        return Pipeline(*saved)

    # --- shared -------------------------------------------------------------------------------------------------

    def _start(
        self,
        pipeline_id: int,
        rule: Callable[[Standing], Step],
        *,
        job: int | None = None,
        note: str | None = None,
        same_take: bool = False,
        **values: Any,
    ) -> Pipeline:
        """Start the step that the rule allows: the row, and then its run."""

        def change(cursor: Cursor, row: Pipeline) -> Mapping[str, Any]:
            _check_job(row, job)
            step = rule(row.standing(last_failed_step(cursor, row.id)))
            if step is Step.PUBLISH:
                self._check_uploads(cursor)
            return {
                "state": states.running(step),
                "run_number": row.run_number + 1,
                "take": row.take + (not same_take),
                "note": row.note if same_take else note,
                "failed_reason": None,
                **values,
            }

        started = self.change(pipeline_id, change)
        self._begin_run(started)
        return started

    def _begin_run(self, row: Pipeline) -> None:
        begin_run(self.database, row, ACTOR)

    def _check_uploads(self, cursor: Cursor) -> None:
        if self._uploads_per_day is None:
            return
        begun = cursor.row(_UPLOADS, {"since": pacific_midnight(self.clock.now())}, name="uploads")
        if begun and begun[0] >= self._uploads_per_day:
            raise Refusal(
                f"{begun[0]} uploads were begun today (Pacific time), and MUSIC.uploads_per_day is "
                f"{self._uploads_per_day}: publish it tomorrow"
            )


_JOBS = select(*JOB).where(pipeline_jobs.c.pipeline_id == bindparam("of_pipeline")).order_by(pipeline_jobs.c.id)
_COUNTS = select(pipelines.c.state, func.count()).group_by(pipelines.c.state)
_ONE = select(*PIPELINE).where(pipelines.c.id == bindparam("of_pipeline"))
_UPLOADS = select(func.count()).where(
    pipeline_jobs.c.step == Step.PUBLISH.value,
    pipeline_jobs.c.status != "interrupted",
    pipeline_jobs.c.started_at >= bindparam("since", type_=pipeline_jobs.c.started_at.type),
)


def _any_of(wanted: Collection[str]) -> ColumnElement[bool]:
    return or_(*(pipelines.c.state == state for state in sorted(wanted)))


def read_pipeline(cursor: Cursor, pipeline_id: int, *, for_update: bool = False) -> Pipeline:
    """Return the pipeline, which nobody else changes meanwhile with `for_update`. Raises UnknownPipeline."""
    query = _ONE.with_for_update() if for_update else _ONE
    row = cursor.row(query, {"of_pipeline": _bounded(pipeline_id)}, name="lock" if for_update else "get")
    if row is None:
        raise UnknownPipeline(f"there is no pipeline {pipeline_id}"[:80])
    return Pipeline(*row)


def last_failed_step(cursor: Cursor, pipeline_id: int) -> str | None:
    """Return the step of the last failed attempt, or None."""
    failed = (pipeline_jobs.c.pipeline_id == pipeline_id) & (pipeline_jobs.c.status == "failed")
    row = cursor.row(select(pipeline_jobs.c.step).where(failed).order_by(pipeline_jobs.c.id.desc()).limit(1))
    return row[0] if row else None


def end_jobs(
    cursor: Cursor, pipeline_id: int, status: str, now: datetime, error: str | None = None, code: str | None = None
) -> None:
    """End the attempts of a pipeline that are on record as running."""
    open_jobs = (pipeline_jobs.c.pipeline_id == pipeline_id) & (pipeline_jobs.c.status == "running")
    values = {"status": status, "finished_at": now, "error": error, "error_code": code}
    cursor.change(update(pipeline_jobs).where(open_jobs).values(values))


def begin_run(database: MusicDatabase, row: Pipeline, actor: str) -> None:
    """Create the run of the step that is running, unless it is there."""
    database.ledger.create_for_task(row.task_id, row.run_key, actor=actor, pipeline=NAME)


def cancel_run(database: MusicDatabase, row: Pipeline) -> None:
    """Cancel the present run of a pipeline that was cancelled, if it has not ended."""
    run = database.ledger.find(row.run_key)
    if run and not run.ended and run.pipeline == NAME:
        with suppress(StaleRun, IllegalTransition):  # it has moved meanwhile, and ends by itself
            database.ledger.move(run, Trigger.CANCEL_COMMAND, actor=ACTOR)


def pacific_midnight(now: datetime) -> datetime:
    """Return when the present day of YouTube's quota began."""
    try:
        pacific = now.astimezone(ZoneInfo("America/Los_Angeles"))
    except ZoneInfoNotFoundError:  # a machine without a database of time zones: an hour off in summer
        pacific = now - timedelta(hours=8)
        return pacific.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(hours=8)
    return pacific.replace(hour=0, minute=0, second=0, microsecond=0).astimezone(UTC)


def as_text(value: Any) -> str:
    """Return a value for a JSON column."""
    return json.dumps(value, ensure_ascii=False)


def _check_job(row: Pipeline, job: int | None) -> None:
    if job is not None and job != row.current_job:
        raise Refusal(f"that is about an earlier result; look at the latest one (state={row.state})")


def _bounded(pipeline_id: int) -> int:
    return pipeline_id if 0 <= pipeline_id <= LARGEST_ID else -1
