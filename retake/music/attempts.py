"""Attempts at a step: begun by a worker, and ended together with the row that they belong to, in one transaction.

The row names the attempt that may write to it (`current_job`), a fencing token: a worker that was suspended, or whose
run was given to another one, finds a later attempt there, and nothing that it does is saved.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import func, insert, select, update

from retake.clock import Clock
from retake.errors import redact
from retake.foreign_text import one_line
from retake.music import messages, states
from retake.music.database import Cursor
from retake.music.rows import Job, PipelineRow, pipeline_of_task
from retake.music.states import MusicStep
from retake.music.store import JOB, PipelineStore, end_jobs, read_pipeline
from retake.music.tables import pipeline_jobs
from retake.runs.run import Run, StaleRun
from retake.runs.states import RunStatus
from retake.runs.tables import task_runs

CAP_REACHED = "ERR_BUSINESS_CAP_REACHED"
"""The error code of an attempt held back by the daily cap."""

MAX_REASON_LENGTH = 1000
"""Maximum number of characters of an error in a row."""


class JobAttempt(NamedTuple):
    """An attempt at a step, in progress."""

    pipeline: PipelineRow  # as it was when the attempt began
    job: Job
    run: Run

    @property
    def step(self) -> MusicStep:
        return MusicStep(self.job.step)


class AttemptStore:
    """The attempts of pipelines, for workers.

    Every method may raise StorageError. Those that take an attempt may raise StaleRun: another attempt has taken its
    place, the pipeline was cancelled, or the run was given to another worker.
    """

    def __init__(self, store: PipelineStore) -> None:
        self._store = store

    @property
    def clock(self) -> Clock:
        return self._store.clock

    def begin(self, run: Run) -> JobAttempt | None:
        """Begin an attempt of a run that the caller has claimed, or return None if the row has moved on.

        An attempt still recorded as running has lost its worker: it is marked as interrupted, and the new one continues
        it under the same number. One that was put off is begun again.
        """
        pipeline_id, number = pipeline_of_task(run.task_id), _number_of(run)
        if pipeline_id is None or number is None:
            return None
        with self._store.database.transaction() as cursor:
            row = read_pipeline(cursor, pipeline_id, for_update=True)
            if row.step is None or row.state != states.running(row.step) or row.run_number != number:
                return None
            _check_held(cursor, run)
            end_jobs(cursor, row.id, "interrupted", self.clock.now())
            job = self._put_off(cursor, row) or self._insert(cursor, row)
            return JobAttempt(self._store.set(cursor, row, {"current_job": job.id}), job, run)

    def present(self, attempt: JobAttempt) -> PipelineRow:
        """Return the row as it is now."""
        with self._store.database.reading() as cursor:
            row = read_pipeline(cursor, attempt.pipeline.id)
        return _checked(row, attempt)

    def save(self, attempt: JobAttempt, values: Mapping[str, Any]) -> PipelineRow:
        """Set columns of the row."""
        with self._store.database.transaction() as cursor:
            return self._store.set(cursor, locked(cursor, attempt), values)

    def save_session(self, attempt: JobAttempt, session: str) -> PipelineRow:
        """Record an upload session before its first byte is sent.

        Raises StaleRun if the row already has a session or a video.
        """
        with self._store.database.transaction() as cursor:
            row = locked(cursor, attempt)
            if row.upload_session is not None or row.youtube_video_id is not None:
                raise StaleRun(f"{row.task_id}: another upload has been started; this one sends nothing")
            return self._store.set(cursor, row, {"upload_session": session, "last_chunk_begun": False})

    def succeed(self, attempt: JobAttempt, values: Mapping[str, Any]) -> PipelineRow:
        """Save the result of the step, which then waits for a person's approval; the last step's result is
        published."""
        last = attempt.step is MusicStep.PUBLISH
        state = states.PUBLISHED if last else states.pending(attempt.step)
        return self._end(attempt, "succeeded", lambda row: {**values, "state": state, "failed_reason": None})

    def fail(self, attempt: JobAttempt, error: str, code: str, *, again: bool) -> PipelineRow:
        """Save that the attempt failed and, unless `again`, that the pipeline failed. An uploaded video counts as
        published."""
        error = shown_reason(error)
        return self._end(
            attempt, "failed", lambda row: {} if again else _given_up(row, attempt.step, error), error, code
        )

    def await_person(self, attempt: JobAttempt, error: str, code: str) -> PipelineRow:
        """Save that a person has to decide on a call of unknown outcome."""
        error = shown_reason(error)
        values = {"state": states.AWAITING_MANUAL, "failed_reason": f"{attempt.step}: {error}"}
        return self._end(attempt, "failed", lambda row: values, error, code)

    def interrupt(self, attempt: JobAttempt, error: str | None = None, code: str | None = None) -> PipelineRow:
        """Save that the attempt ended without a result and will be continued under the same number."""
        return self._end(attempt, "interrupted", lambda row: {}, error, code)

    def strand(self, row: PipelineRow, error: str, code: str) -> None:
        """Fail a pipeline whose run has failed without it, because its workers kept dying."""
        with self._store.database.transaction() as cursor:
            now = read_pipeline(cursor, row.id, for_update=True)
            if not now.is_at(row):
                return
            ended = {"error": shown_reason(error), "error_code": code}
            if not end_jobs(cursor, row.id, "failed", self.clock.now(), **ended):  # each worker died before it began
                self._insert(cursor, now, {**ended, "status": "failed", "finished_at": self.clock.now()})
            values = _given_up(now, row.step, shown_reason(error))
            saved = self._store.set(cursor, now, {**values, "current_job": 0})
            self._add_message(cursor, saved, now.current_job or 0)

    def _put_off(self, cursor: Cursor, row: PipelineRow) -> Job | None:
        """Return the current attempt, running again, if it was put off, or None.

        The cap or a mode may hold a step back for days. A row for each check would hide the attempts.
        """
        again = {"status": "running", "started_at": self.clock.now(), "finished_at": None, "error": None}
        interrupted = (pipeline_jobs.c.id == row.current_job) & (pipeline_jobs.c.status == "interrupted")
        put_off = interrupted & (pipeline_jobs.c.run_number == row.run_number) & pipeline_jobs.c.error_code.is_not(None)
        found = cursor.row(update(pipeline_jobs).where(put_off).values({**again, "error_code": None}).returning(*JOB))
        return Job(*found) if found else None

    def _insert(self, cursor: Cursor, row: PipelineRow, values: Mapping[str, Any] | None = None) -> Job:
        """Insert the next attempt of the running step; `values` override those of an attempt that has already ended."""
        begun = {
            "pipeline_id": row.id,
            "step": row.step,
            "attempt": _failed(cursor, row) + 1,
            "feedback": row.note,
            "started_at": self.clock.now(),
            "run_number": row.run_number,
        }
        found = cursor.row(insert(pipeline_jobs).values({**begun, **(values or {})}).returning(*JOB))
        assert found, "an INSERT returns its row"
        return Job(*found)

    def _end(
        self,
        attempt: JobAttempt,
        status: str,
        values: Callable[[PipelineRow], Mapping[str, Any]],
        error: str | None = None,
        code: str | None = None,
    ) -> PipelineRow:
        with self._store.database.transaction() as cursor:
            row = locked(cursor, attempt)
            ended = {"status": status, "finished_at": self.clock.now(), "error": error, "error_code": code}
            cursor.change(update(pipeline_jobs).where(pipeline_jobs.c.id == attempt.job.id).values(ended))
            saved = self._store.set(cursor, row, values(row))
            if saved.state != row.state:
                self._add_message(cursor, saved, attempt.job.id)
            return saved

    def _add_message(self, cursor: Cursor, row: PipelineRow, job_id: int) -> None:
        if self._store.telling:
            pending = row.step is not None and row.state == states.pending(row.step)
            messages.record(cursor, row, messages.PENDING if pending else row.state, job_id, self.clock.now())


def locked(cursor: Cursor, attempt: JobAttempt) -> PipelineRow:
    """Return the row, locked for update. Raises StaleRun if the attempt may not write to it."""
    return _checked(read_pipeline(cursor, attempt.pipeline.id, for_update=True), attempt)


def shown_reason(error: str) -> str:
    """Return an error in the form for rows and people: on one line, without secrets, of bounded length."""
    return one_line(redact(error))[:MAX_REASON_LENGTH]


def _given_up(row: PipelineRow, step: MusicStep | None, error: str) -> dict[str, Any]:
    """Return the columns of a pipeline whose step has failed for good."""
    if step is MusicStep.PUBLISH and row.youtube_video_id:  # only its thumbnail is missing
        return {"state": states.PUBLISHED, "warning": error}
    return {"state": states.FAILED, "failed_reason": f"{step}: {error}"}


def _checked(row: PipelineRow, attempt: JobAttempt) -> PipelineRow:
    if row.current_job != attempt.job.id or row.state != states.running(attempt.step):
        raise StaleRun(f"{row.task_id}: attempt {attempt.job.id} is over; the pipeline is {row.state}")
    return row


def _check_held(cursor: Cursor, run: Run) -> None:
    """Raise StaleRun if the run has been given to another worker since it was claimed."""
    held = (task_runs.c.run_id == run.run_id) & (task_runs.c.version == run.version)
    row = cursor.row(select(task_runs.c.run_status).where(held))
    if row is None or row[0] is not RunStatus.RUNNING:
        raise StaleRun(f"{run.run_id} was given to another worker")


def _failed(cursor: Cursor, row: PipelineRow) -> int:
    """Return how many attempts of the current run have failed."""
    of_run = (pipeline_jobs.c.pipeline_id == row.id) & (pipeline_jobs.c.run_number == row.run_number)
    found = cursor.row(select(func.count()).where(of_run & (pipeline_jobs.c.status == "failed")))
    return int(found[0]) if found else 0


def _number_of(run: Run) -> int | None:
    number = run.idempotency_key.rpartition("/")[2]
    return int(number) if number.isascii() and number.isdecimal() else None
