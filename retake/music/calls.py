"""The paid calls of music pipelines: the journal and the budget of `retake.paid.guard`, as rows of `paid_calls`.

A call is recorded in the same transaction that checks that its attempt may still pay and that the daily cap has room.
"""

from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import Any

from sqlalchemy import func, insert, select, true, update

from retake.bucket import Room
from retake.clock import exact_stamp
from retake.errors import CapReached, OutcomeUnknown, Refused, VendorError
from retake.music.attempts import JobAttempt, locked, shown_reason
from retake.music.database import Cursor, MusicDatabase
from retake.music.rows import PaidCall, as_object
from retake.music.store import as_text
from retake.music.tables import paid_calls
from retake.paid.guard import Intent

CALL = tuple(paid_calls.c)
MAX_CLOCK_ERROR = timedelta(days=7)
"""How far another machine's clock may be ahead of ours for its calls to count against today's cap."""

_CAP_LOCK = 0x52656D75
"""PostgreSQL's advisory lock for adding up the day's spending and recording a call."""


class NoRoom:
    """The room of a journal in a database: no space is reserved, since an answer is a few hundred bytes in a row."""

    def write(self, data: bytes, expect: object) -> str:
        raise NotImplementedError

    def release(self) -> None:
        """Do nothing."""


class CallBook:
    """The record of paid calls, and the check of the daily cap."""

    def __init__(self, database: MusicDatabase, *, daily_cap_usd: float | None = None) -> None:
        self.database, self._cap = database, daily_cap_usd

    def latest(self, attempt: JobAttempt) -> PaidCall | None:
        """Return the last call of the attempt's step and take, or None."""
        return next(iter(self._of_take(attempt)), None)

    def answered(self, attempt: JobAttempt) -> PaidCall | None:
        """Return the last call of the attempt's step and take that has an answer on record, or None.

        A later call may lack one: a worker that was suspended during its call records the answer when it resumes.
        """
        return next(iter(self._of_take(attempt, "accepted")), None)

    def lost(self, attempt: JobAttempt) -> list[PaidCall]:
        """Return the calls of unknown outcome of the attempt's step and take, last one first."""
        return self._of_take(attempt, "lost")

    def _of_take(self, attempt: JobAttempt, outcome: str | None = None) -> list[PaidCall]:
        query = select(*CALL).where(
            paid_calls.c.pipeline_id == attempt.pipeline.id,
            paid_calls.c.step == attempt.step.value,
            paid_calls.c.take == attempt.pipeline.take,
            true() if outcome is None else paid_calls.c.outcome == outcome,
        )
        with self.database.reading() as cursor:
            return [PaidCall(*row) for row in cursor.rows(query.order_by(paid_calls.c.id.desc()))]

    def of_pipeline(self, pipeline_id: int) -> list[PaidCall]:
        """Return all calls of a pipeline, in order."""
        query = select(*CALL).where(paid_calls.c.pipeline_id == pipeline_id).order_by(paid_calls.c.id)
        with self.database.reading() as cursor:
            return [PaidCall(*row) for row in cursor.rows(query)]

    def begin(self, attempt: JobAttempt, intent: Intent) -> PaidCall:
        """Record that a call is about to be made. Raises CapReached, StaleRun: the call must then not be made."""
        now = self.database.clock.now()
        with self.database.transaction() as cursor:
            cursor.lock(_CAP_LOCK)
            row = locked(cursor, attempt)
            day = now.date().isoformat()
            self._check_cap(cursor, now.date(), intent.price_usd)
            values = {
                "pipeline_id": row.id,
                "step": attempt.step.value,
                "take": row.take,
                "job_id": attempt.job.id,
                "facts": as_text(dict(intent.facts)),
                "price_usd": intent.price_usd,
                "day": day,
                "requested_at": now,
            }
            found = cursor.row(insert(paid_calls).values(values).returning(*CALL))
        assert found, "an INSERT returns its row"
        return PaidCall(*found)

    def settle(self, call: PaidCall, outcome: str, error: VendorError | None = None, answer: Any = None) -> None:
        """Record the outcome of a call. It is a fact, no matter who holds the run by now.

        "lost" and "held" are not facts and replace nothing: the worker that made the call may have recorded its
        outcome.
        """
        values = {
            "outcome": outcome,
            "answer": None if answer is None else as_text(answer),
            "error": None if error is None else shown_reason(str(error)),
            "error_code": None if error is None else str(error.code),
            "settled_at": self.database.clock.now(),
        }
        unchanged = paid_calls.c.outcome == call.outcome if outcome in ("lost", "held") else true()
        with self.database.transaction() as cursor:
            cursor.change(update(paid_calls).where(paid_calls.c.id == call.id, unchanged).values(values))

    def _check_cap(self, cursor: Cursor, day: date, usd: float) -> None:
        if self._cap is None:
            return
        spent, latest = _spent(cursor, day)
        if round(spent + usd, 6) > self._cap:
            when = f"on {day}" if latest <= day.isoformat() else f"from {day} to {latest}"
            raise CapReached(
                f"MUSIC.daily_cap_usd: {spent:.3f} of {self._cap:.3f} USD are spent {when}, {usd:.3f} more are asked "
                "for; it waits for the next day (UTC)"
            )


class MusicJournal:
    """The `retake.paid.guard.Journal` of one attempt. `find` looks up the pending call at the vendor by its facts."""

    def __init__(
        self,
        book: CallBook,
        attempt: JobAttempt,
        find: Callable[[Mapping[str, Any]], Any | None] = lambda facts: None,
    ) -> None:
        self._book, self._attempt, self._find = book, attempt, find
        call = book.latest(attempt)
        self._call = call if call and call.outcome in ("pending", "held") else None

    def set_aside(self) -> Room:
        return NoRoom()

    def begin(self, intent: Intent) -> None:
        self._call = self._book.begin(self._attempt, intent)

    @property
    def pending(self) -> str | None:
        return self._call.step if self._call else None

    def accepted(self, answer: Any, room: Room | None = None) -> None:
        self._settle("accepted", answer=answer)

    def refused(self, error: Refused) -> None:
        self._settle("refused", error)

    def wasted(self, error: VendorError) -> None:
        self._settle("wasted", error)

    def lost(self, error: OutcomeUnknown) -> None:
        self._settle("lost", error)

    def held(self, error: OutcomeUnknown) -> None:
        self._settle("held", error)

    def find(self) -> Any | None:
        assert self._call, "a call is pending"
        return self._find(facts_of(self._call))

    def disproved(self) -> Refused | None:
        return None

    def _settle(self, outcome: str, error: VendorError | None = None, answer: Any = None) -> None:
        assert self._call, "a call is pending"
        self._book.settle(self._call, outcome, error, answer)


def facts_of(call: PaidCall) -> dict[str, Any]:
    """Return the facts by which the vendor can find the call."""
    return {"step": "imagine", "requested_at_utc": exact_stamp(call.requested_at), **(as_object(call.facts) or {})}


def counted_days(day: date) -> tuple[str, str]:
    """Return the first and the last day ("2026-11-22", UTC) whose calls count against the cap on `day`.

    The calls of the following days count, too: the clock was set back, or another machine's clock is ahead. Calls
    recorded by a clock even further ahead must not count for months.
    """
    last = day + MAX_CLOCK_ERROR if day < date.max - MAX_CLOCK_ERROR else date.max
    return day.isoformat(), last.isoformat()


def _spent(cursor: Cursor, day: date) -> tuple[float, str]:
    """Return the spending in US dollars that counts against the cap on `day`, and the latest day of it, or ""."""
    counted = paid_calls.c.day.between(*counted_days(day)) & (paid_calls.c.outcome != "refused")
    row = cursor.row(
        select(func.coalesce(func.sum(paid_calls.c.price_usd), 0.0), func.max(paid_calls.c.day)).where(counted)
    )
    return (round(float(row[0]), 6), row[1] or "") if row else (0.0, "")
