"""What people do with pipelines: through the API, on Telegram or on the command line.

Each action is one transaction: the row, together with anything else the caller has to record. The run on the ledger
follows.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlalchemy import Update, and_, bindparam, exists, func, or_, select, update

from retake.music import states
from retake.music.database import Cursor, MusicDatabase
from retake.music.rows import PipelineRow
from retake.music.states import MusicStep, Standing
from retake.music.store import PipelineAction, PipelineStore, begin_run, cancel_run, end_jobs
from retake.music.tables import paid_calls, pipeline_jobs, pipelines
from retake.operations.port import Refusal


class PipelineActions(PipelineStore):
    """Pipelines, and the actions that people can take on them.

    `uploads_per_day` limits how many uploads begin in a day of YouTube's quota; None means no limit.
    """

    def __init__(self, database: MusicDatabase, *, uploads_per_day: int | None = None, telling: bool = False) -> None:
        super().__init__(database, telling=telling)
        self._uploads_per_day = uploads_per_day

    def approve(self, pipeline_id: int, step: str | None = None, *, job: int | None = None) -> PipelineRow:
        """Start the step after the pending one. `job` is as in `approving`.

        This and the other actions raise UnknownPipeline and Refusal; nothing is then changed.
        """
        return self.act(pipeline_id, self.approving(step, job=job))

    def feedback(self, pipeline_id: int, note: str, step: str | None = None, *, job: int | None = None) -> PipelineRow:
        """Redo the pending step with a person's note."""
        return self.act(pipeline_id, self.sending_back(note, step, job=job))

    def publish(self, pipeline_id: int, *, job: int | None = None) -> PipelineRow:
        """Start publishing after the review."""
        return self.act(pipeline_id, self._starting(states.publishable, job=job))

    def retry(self, pipeline_id: int, *, again: bool = False) -> PipelineRow:
        """Redo the failed step, keeping everything before it.

        With `again` the result of its paid call is given up, and the call is made and paid for once more: meant for a
        task that the vendor has accepted but never finishes.
        """
        return self.act(pipeline_id, self.retrying(again=again))

    def again(self, pipeline_id: int) -> PipelineRow:
        """Redo from scratch the step that waits for a decision: its call is repeated, whatever came of the last one."""
        anew = self._starting(states.resolvable, same_note=True, upload_session=None, last_chunk_begun=False)
        return self.act(pipeline_id, anew)

    def resolve(self, pipeline_id: int, video_id: str) -> PipelineRow:
        """Record that the upload of unknown outcome has made this video."""

        def change(cursor: Cursor, row: PipelineRow) -> Mapping[str, Any]:
            if states.resolvable(row.standing()) is not MusicStep.PUBLISH:
                raise Refusal(f"no upload waits for a decision; say again instead (state={row.state})")
            return {"state": states.PUBLISHED, "youtube_video_id": video_id, "failed_reason": None}

        return self.act(pipeline_id, PipelineAction(change))  # no message: a person has just decided it

    def cancel(self, pipeline_id: int) -> PipelineRow:
        """Cancel the pipeline; no paid call begins afterwards."""
        return self.act(pipeline_id, self.cancelling())

    def approving(self, step: str | None = None, *, job: int | None = None) -> PipelineAction:
        """Return the action of `approve`.

        `job` is the attempt whose result the person looked at: the action is refused if there has been another since.
        """
        return self._starting(lambda now: states.approved(now, step), job=job)

    def sending_back(self, note: str, step: str | None = None, *, job: int | None = None) -> PipelineAction:
        """Return the action of `feedback`. `job` is as in `approving`."""
        return self._starting(lambda now: states.sent_back(now, step), job=job, note=note)

    def retrying(self, *, again: bool = False) -> PipelineAction:
        """Return the action of `retry`."""
        return self._starting(lambda now: states.retried(now, again=again), same_take=not again, same_note=True)

    def cancelling(self, *, job: int | None = None) -> PipelineAction:
        """Return the action of `cancel`. `job` is as in `approving`."""

        def change(cursor: Cursor, row: PipelineRow) -> Mapping[str, Any]:
            _check_job(cursor, row, job)
            states.cancellable(row.standing())
            end_jobs(cursor, row.id, "cancelled", self.clock.now())
            return {"state": states.CANCELLED, "current_job": 0}

        return PipelineAction(change, cancel_run)

    def _starting(
        self,
        rule: Callable[[Standing], MusicStep],
        *,
        job: int | None = None,
        note: str | None = None,
        same_take: bool = False,
        same_note: bool = False,
        **values: Any,
    ) -> PipelineAction:
        """Return the action that starts the step chosen by the rule: it changes the row, then creates the run.

        `same_take` keeps the take and with it the paid calls and an upload in progress, `same_note` keeps the note.
        """

        def change(cursor: Cursor, row: PipelineRow) -> Mapping[str, Any]:
            _check_job(cursor, row, job)
            step = rule(row.standing(last_failed_step(cursor, row.id)))
            goes_on = same_take and row.upload_session is not None
            if step is MusicStep.PUBLISH and not goes_on:
                self._check_uploads(cursor, row, counted=not same_take)
            if same_note and not same_take:  # the result of the last call is given up
                cursor.change(_accepted(row, step).values(outcome="wasted"))
            return {
                "state": states.running(step),
                "run_number": row.run_number + 1,
                "take": row.take + (not same_take),
                "note": row.note if same_note else note,
                "failed_reason": None,
                **values,
            }

        return PipelineAction(change, begin_run)

    def _check_uploads(self, cursor: Cursor, row: PipelineRow, *, counted: bool) -> None:
        """Raise Refusal if the day's uploads are used up; `row` itself counts if `counted`."""
        if self._uploads_per_day is None:
            return
        cursor.lock(_UPLOADS_LOCK)
        since = pacific_midnight(self.clock.now())
        others = {"but": 0 if counted else row.id, "since": since, "until": since + _AHEAD}
        begun = sum(found[0] for query in (_BEGUN, _TO_BEGIN) for found in cursor.rows(query, others))
        if begun >= self._uploads_per_day:
            raise Refusal(
                f"{begun} uploads were begun today (Pacific time), and MUSIC.uploads_per_day is "
                f"{self._uploads_per_day}: publish it tomorrow (state={row.state})"
            )


_UPLOADS_LOCK = 0x52656D76
"""PostgreSQL's advisory lock under which the day's uploads are counted and one is begun."""

_AHEAD = timedelta(days=2)
"""From the beginning of the day. An upload that seems to have begun later than this was recorded by a wrong clock."""

_TODAY = and_(
    pipeline_jobs.c.started_at >= bindparam("since", type_=pipeline_jobs.c.started_at.type),
    pipeline_jobs.c.started_at < bindparam("until", type_=pipeline_jobs.c.started_at.type),
)
_UPLOAD = pipeline_jobs.c.step == MusicStep.PUBLISH.value
_BEGUN = select(func.count(pipeline_jobs.c.pipeline_id.distinct())).where(
    _UPLOAD, _TODAY, pipeline_jobs.c.pipeline_id != bindparam("but")
)
_TO_BEGIN = select(func.count()).where(  # those that no worker has begun yet
    pipelines.c.state == states.running(MusicStep.PUBLISH),
    pipelines.c.id != bindparam("but"),
    ~exists().where(
        pipeline_jobs.c.pipeline_id == pipelines.c.id,
        _UPLOAD,
        or_(_TODAY, pipeline_jobs.c.run_number == pipelines.c.run_number),
    ),
)


def _accepted(row: PipelineRow, step: MusicStep) -> Update:
    """Return the update of the calls of the current take that a vendor has accepted."""
    of_take = (paid_calls.c.pipeline_id == row.id) & (paid_calls.c.step == step.value) & (paid_calls.c.take == row.take)
    return update(paid_calls).where(of_take, paid_calls.c.outcome == "accepted")


_LAST_FAILED = (
    select(pipeline_jobs.c.step)
    .where(pipeline_jobs.c.pipeline_id == bindparam("of_pipeline"), pipeline_jobs.c.status == "failed")
    .order_by(pipeline_jobs.c.id.desc())
    .limit(1)
)


def last_failed_step(cursor: Cursor, pipeline_id: int) -> str | None:
    """Return the step of the last failed attempt, or None."""
    row = cursor.row(_LAST_FAILED, {"of_pipeline": pipeline_id}, name="last-failed")
    return row[0] if row else None


def pacific_midnight(now: datetime) -> datetime:
    """Return when the current day of YouTube's quota began."""
    try:
        pacific = now.astimezone(ZoneInfo("America/Los_Angeles"))
    except ZoneInfoNotFoundError:  # no time zone database: the result is an hour off in summer
        pacific = now - timedelta(hours=8)
        return pacific.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(hours=8)
    return pacific.replace(hour=0, minute=0, second=0, microsecond=0).astimezone(UTC)


def _check_job(cursor: Cursor, row: PipelineRow, job: int | None) -> None:
    if job is None:
        return
    current = row.current_job
    if current is None:  # a row of an outside program
        latest = select(func.max(pipeline_jobs.c.id)).where(pipeline_jobs.c.pipeline_id == row.id)
        current = next((found[0] for found in cursor.rows(latest)), None)
    if job != current:
        raise Refusal(f"that is about an earlier result; look at the latest one (state={row.state})")
