"""What operators and alerts look at: all pipelines in a few bounded queries, each using an index."""

from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, bindparam, func, or_, select

from retake.clock import exact_stamp
from retake.music import states
from retake.music.attempts import CAP_REACHED
from retake.music.database import Cursor
from retake.music.rows import PaidCall, task_of
from retake.music.states import STEPS, MusicStep
from retake.music.store import counts_of
from retake.music.tables import messages, paid_calls, pipeline_jobs, pipelines
from retake.operations.attempts import StepAttempt
from retake.operations.port import Present

MAX_ROWS = 1000
"""Maximum number of rows of a query, newest first."""

PAYING = (MusicStep.COVER, MusicStep.META, MusicStep.REVIEW)
"""The steps that make paid calls."""


class Trouble(NamedTuple):
    """A pipeline that waits, and the attempt since which it waits."""

    pipeline_id: int
    title: str
    step: str  # "" if it is not on record
    occurrence: str
    at: datetime
    error: str
    code: str | None

    @property
    def item_id(self) -> str:
        """Its name for operators: "music-7"."""
        return task_of(self.pipeline_id)


class Survey(NamedTuple):
    """The state of all pipelines."""

    counts: dict[str, int]  # by state
    failed: tuple[Trouble, ...] = ()  # newest first, like the ones below
    awaiting: tuple[Trouble, ...] = ()  # wait for a person's decision
    lost: tuple[Trouble, ...] = ()  # repeat a call of unknown outcome
    capped: tuple[Trouble, ...] = ()  # wait for the next day, because of the daily cap

    def number(self, *wanted: str) -> int:
        """Return the number of pipelines in these states."""
        return sum(self.counts.get(state, 0) for state in wanted)

    @property
    def running(self) -> int:
        """The number of pipelines that are being worked on, or wait for a worker."""
        return self.number(*map(states.running, STEPS))

    @property
    def pending(self) -> int:
        """The number of pipelines that wait for a person's approval."""
        return self.number(*map(states.pending, STEPS))


def survey(cursor: Cursor) -> Survey:
    """Return the state of all pipelines. Raises StorageError."""
    counts = counts_of(cursor)

    def at(state: str) -> tuple[Trouble, ...]:
        if not counts.get(state):
            return ()
        return tuple(_trouble(row) for row in cursor.readable(_ENDED, {"in_state": state}, name="survey ended"))

    running = any(counts.get(states.running(step)) for step in PAYING)
    return Survey(
        counts,
        at(states.FAILED),
        at(states.AWAITING_MANUAL),
        _of_calls(cursor, _LOST, "survey lost") if running else (),
        _of_calls(cursor, _CAPPED, "survey capped") if running else (),
    )


def under_way(cursor: Cursor, most: dict[MusicStep, int]) -> list[Present]:
    """Return the pipelines that are worked on, each with its current attempt. `most` is the maximum number of attempts
    of each step."""
    found = []
    for task, state, attempt in cursor.readable(_UNDER_WAY, name="survey under way"):
        if step := states.step_of(state):
            found.append(Present(task_of(task), StepAttempt(step.value, attempt or 1, most[step])))
    return found


def calls_since(cursor: Cursor, day: str) -> list[tuple[PaidCall, str, int]]:
    """Return the calls that count on `day` or later, each with its pipeline's state and the number of the attempt that
    paid."""
    rows = cursor.readable(_CALLS, {"first_day": day}, name="survey calls")
    found = [(PaidCall(*row[:-2]), row[-2], row[-1] or 1) for row in rows]
    return sorted(found, key=lambda it: it[0].id)


def calls_of(cursor: Cursor, pipeline_id: int) -> list[tuple[PaidCall, int]]:
    """Return the paid calls of a pipeline, each with the number of the attempt that paid."""
    rows = cursor.rows(_CALLS_OF, {"of_pipeline": pipeline_id}, name="survey calls of")
    return [(PaidCall(*row[:-1]), row[-1] or 1) for row in rows]


class TelegramMessage(NamedTuple):
    """A message that was sent, or waits to be sent."""

    id: int
    event: str
    text: str
    created_at: datetime
    sent_at: datetime | None
    message_id: int | None
    error: str | None

    def shown(self) -> dict[str, Any]:
        """Return the message as JSON data."""
        sent = exact_stamp(self.sent_at) if self.sent_at else None
        return {**self._asdict(), "created_at": exact_stamp(self.created_at), "sent_at": sent}


def messages_of(cursor: Cursor, pipeline_id: int) -> list[TelegramMessage]:
    """Return the messages about a pipeline in order, the first `MAX_ROWS` of them."""
    rows = cursor.rows(_MESSAGES, {"of_pipeline": pipeline_id}, name="survey messages")
    return [TelegramMessage(*row) for row in rows]


# --- queries ----------------------------------------------------------------------------------------------------------

_FAILED = pipeline_jobs.alias("failed_jobs")
_LAST = (
    select(func.max(_FAILED.c.id))
    .where(_FAILED.c.pipeline_id == pipelines.c.id, _FAILED.c.status == "failed")
    .correlate(pipelines)
    .scalar_subquery()
)
_ENDED = (
    select(
        pipelines.c.id, pipelines.c.track_title, pipelines.c.failed_reason, pipelines.c.updated_at,
        pipeline_jobs.c.id, pipeline_jobs.c.step, pipeline_jobs.c.error, pipeline_jobs.c.error_code,
    )
    .select_from(pipelines.outerjoin(pipeline_jobs, pipeline_jobs.c.id == _LAST))
    .where(pipelines.c.state == bindparam("in_state"))
    .order_by(pipelines.c.updated_at.desc(), pipelines.c.id.desc())
    .limit(MAX_ROWS)
)  # fmt: skip

_AT_WORK = or_(*(pipelines.c.state == states.running(step) for step in STEPS))
_AT_PAYING = or_(*(pipelines.c.state == states.running(step) for step in PAYING))
_PRESENT_JOB = pipelines.outerjoin(  # none until a worker has begun: `current_job` is then of an earlier run
    pipeline_jobs,
    (pipeline_jobs.c.id == pipelines.c.current_job) & (pipeline_jobs.c.run_number == pipelines.c.run_number),
)

_UNDER_WAY = (
    select(pipelines.c.id, pipelines.c.state, pipeline_jobs.c.attempt)
    .select_from(_PRESENT_JOB)
    .where(_AT_WORK)
    .order_by(pipelines.c.id.desc())
    .limit(MAX_ROWS)
)

_LOST = (
    select(
        pipelines.c.id, pipelines.c.track_title, paid_calls.c.step, paid_calls.c.id, paid_calls.c.requested_at,
        paid_calls.c.error, paid_calls.c.error_code,
    )
    .join(paid_calls, (paid_calls.c.pipeline_id == pipelines.c.id) & (paid_calls.c.take == pipelines.c.take))
    .where(_AT_PAYING, paid_calls.c.outcome == "lost", pipelines.c.state == paid_calls.c.step + "_running")
    .order_by(paid_calls.c.id.desc())
    .limit(MAX_ROWS)
)  # fmt: skip

_CAPPED = (
    select(
        pipelines.c.id, pipelines.c.track_title, pipeline_jobs.c.step, pipeline_jobs.c.id, pipeline_jobs.c.finished_at,
        pipeline_jobs.c.error, pipeline_jobs.c.error_code,
    )
    .select_from(_PRESENT_JOB)
    .where(_AT_PAYING, pipeline_jobs.c.status == "interrupted", pipeline_jobs.c.error_code == CAP_REACHED)
    .order_by(pipeline_jobs.c.id.desc())
    .limit(MAX_ROWS)
)  # fmt: skip

_BILLED = paid_calls.outerjoin(pipeline_jobs, pipeline_jobs.c.id == paid_calls.c.job_id)
_CALLS = (
    select(*paid_calls.c, pipelines.c.state, pipeline_jobs.c.attempt)
    .select_from(_BILLED.join(pipelines, pipelines.c.id == paid_calls.c.pipeline_id))
    .where(paid_calls.c.day >= bindparam("first_day"), paid_calls.c.outcome != "refused")
)  # unordered: to order by id, SQLite would read every call
_CALLS_OF = (
    select(*paid_calls.c, pipeline_jobs.c.attempt)
    .select_from(_BILLED)
    .where(paid_calls.c.pipeline_id == bindparam("of_pipeline"), paid_calls.c.outcome != "refused")
    .order_by(paid_calls.c.id)
)

_MESSAGES = (
    select(*(messages.c[name] for name in TelegramMessage._fields))
    .where(messages.c.pipeline_id == bindparam("of_pipeline"))
    .order_by(messages.c.id)
    .limit(MAX_ROWS)
)


def _trouble(row: tuple[object, ...]) -> Trouble:
    pipeline_id, title, reason, changed, job, step, error, code = row
    named, _, words = str(reason or "").partition(": ")
    step = named if named in STEPS else step  # the reason takes precedence: people read it
    assert isinstance(pipeline_id, int)
    assert isinstance(changed, datetime)
    text = words if named in STEPS else str(reason or error or "")
    occurrence = f"{task_of(pipeline_id)} {job or ''}".strip()
    return Trouble(pipeline_id, str(title), str(step or ""), occurrence, changed, text, str(code) if code else None)


def _of_calls(cursor: Cursor, query: Select[tuple[object, ...]], name: str) -> tuple[Trouble, ...]:
    return tuple(
        Trouble(pipeline_id, title, step, f"{task_of(pipeline_id)} {number}", at, error or "", code)
        for pipeline_id, title, step, number, at, error, code in cursor.readable(query, name=name)
    )
