"""The history of a ledger in SQLite or PostgreSQL (see `retake.runs.history`).

A run's mark is made of its number of events, the times of day at which it was created and last changed, and its
identity. The times distinguish two runs with equal ids after a backup was restored and the same day has passed again.
The identity makes a segment's fingerprint change if one run leaves it and another with the same times enters it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, Text, and_, bindparam, case, func, literal_column, select

from retake.runs.database import Database
from retake.runs.history import HISTORY_KINDS, Fingerprint, RunRecord, up_to_the_end
from retake.runs.run import CHANGED, Event
from retake.runs.statements import EVENT, batches, last_runs, of_these_runs, prepared
from retake.runs.states import OPEN
from retake.runs.tables import events, task_runs

BATCH_SIZE = 200
"""Number of runs read with one statement."""

MAX_UNFINISHED = 50_000
"""Maximum number of unfinished runs reported. If there are more, the most recently changed are."""

_RUN = tuple(task_runs.c[name] for name in ("run_id", "pipeline", "run_status", "created_at", "updated_at"))
_OF_RUN = len(_RUN) + 1

_DAY = {"sqlite": "substr({}, 1, 10)", "postgresql": "to_char({}, 'YYYY-MM-DD')"}
_DIGITS = {
    "sqlite": "CAST(replace(substr({0}, 12, 8), ':', '') AS BIGINT) + CAST(substr({0}, 21, 6) AS BIGINT)",
    "postgresql": "CAST(to_char({0}, 'HH24MISS') AS BIGINT) + CAST(to_char({0}, 'US') AS BIGINT)",
}
"""The day, and the time of day as a number, by database. Connections to PostgreSQL are in UTC."""

_IDENTITY = {"sqlite": "task_runs.rowid * 7919", "postgresql": "hashtext(task_runs.run_id)"}
"""A number that is nearly unique to a run. If it changes (VACUUM, a newer server), runs are merely read again."""


class SqlHistory:
    """The history of the ledger in `database`. A segment holds the runs whose last transition was on one day (UTC)."""

    unreadable = ()

    def __init__(self, database: Database) -> None:
        self._database = database
        queries = _segments, _marks, _unfinished, _read
        self._segments, self._marks, self._unfinished, self._read = (
            prepared(query, database.dialect) for query in queries
        )
        self.close = database.close
        """Close the connections. Happens at the latest when the history is garbage collected."""

    def segments(self) -> Mapping[str, Fingerprint]:
        with self._database.cursor() as cursor:
            rows = self._segments.run(cursor, {})
        return {day: Fingerprint(runs, int(marks)) for day, runs, marks in rows if _is_day(day)}

    def marks(self, segment: str) -> Mapping[str, int]:
        first = datetime.fromisoformat(segment).replace(tzinfo=UTC)
        with self._database.cursor() as cursor:
            return dict(row[:2] for row in self._marks.run(cursor, {"first": first, "next": first + timedelta(days=1)}))

    def unfinished(self) -> Collection[str]:
        with self._database.cursor() as cursor:
            return [run_id for run_id, _ in self._unfinished.run(cursor, {"number": MAX_UNFINISHED})]

    def read(self, segment: str, run_ids: Iterable[str]) -> Iterator[RunRecord]:
        for asked in batches(run_ids, BATCH_SIZE):
            with self._database.cursor() as cursor:
                rows = self._read.run(cursor, asked, self._database.unreadable)
            for run, found in groupby(rows, key=lambda row: row[:_OF_RUN]):
                mark, run_id, pipeline, status, created_at, updated_at = run
                events = (Event(*row[_OF_RUN:]) for row in found if row[_OF_RUN] is not None)
                told, present = up_to_the_end(events, status), updated_at.strftime("%Y-%m-%d")
                yield RunRecord(run_id, int(mark), present, pipeline, status, created_at, updated_at, told)


def _is_day(text: object) -> bool:
    """Return whether `text` is a day: in SQLite a time may be any text."""
    try:
        datetime.fromisoformat(str(text))
    except ValueError:
        return False
    return True


def _mark(dialect: str) -> ColumnElement[int]:
    began, changed = (_DIGITS[dialect].format(f"task_runs.{name}") for name in ("created_at", "updated_at"))
    return literal_column(f"(task_runs.last_seq * 1000003 + {began} + {changed} + {_IDENTITY[dialect]})", BigInteger)


def _segments(dialect: str) -> Select[Any]:
    day = literal_column(_DAY[dialect].format("task_runs.updated_at"), Text)
    columns: list[ColumnElement[Any]] = [day, func.count(), func.sum(_mark(dialect))]
    return select(*columns).select_from(task_runs).group_by(literal_column("1"))


def _marks(dialect: str) -> Select[Any]:
    of_day = and_(task_runs.c.updated_at >= bindparam("first"), task_runs.c.updated_at < bindparam("next"))
    return select(task_runs.c.run_id, _mark(dialect)).where(of_day)


def _unfinished(dialect: str) -> Select[Any]:
    return last_runs((task_runs.c.run_id, task_runs.c.updated_at), frozenset(OPEN), ())


def _read(dialect: str) -> Select[Any]:
    """Return the query for the runs run_0 to run_199 and their events, both as of the same moment."""
    kinds = events.c.kind.in_([literal_column(f"'{kind}'") for kind in HISTORY_KINDS])
    both = task_runs.outerjoin(events, and_(events.c.run_id == task_runs.c.run_id, kinds))
    query = select(_mark(dialect), *_RUN, *EVENT[:-1], _payload()).select_from(both)
    return query.where(of_these_runs(BATCH_SIZE)).order_by(task_runs.c.run_id, events.c.seq)


def _payload() -> ColumnElement[Any]:
    """Return the payload column, without the payloads of transitions: only their position is needed."""
    return case((events.c.kind != literal_column(f"'{CHANGED}'"), events.c.payload))
