"""The runs of a ledger in SQLite or PostgreSQL: the history of each run, the tables, and their kept counts.

The rows are streamed from one statement, by a server-side cursor in PostgreSQL, so memory does not grow with their
number. They are read in one transaction, which sees the database at one moment.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from retake.checking.database_tables import DAMAGED, OLD, VERSION, count_again, count_faults, table_faults
from retake.checking.examination import CheckFinding, Examination, found
from retake.checking.run_book import RunBook
from retake.checking.run_rules import (
    COUNTERS,
    COUNTS_WRONG,
    EVENTS_MISSING,
    HISTORY_ILLEGAL,
    UNREADABLE_RUN,
    derived,
    facts_of,
    history_faults,
    slim,
    task_faults,
)
from retake.checking.view import CheckView
from retake.errors import StateError, StorageError, redact
from retake.foreign_text import one_line, plain
from retake.runs.database import Database, driver_errors, open_database
from retake.runs.ledger import LEDGER_SETTING
from retake.runs.run import CHANGED, Event, Run, run_id_of
from retake.runs.run_document import EVENT_FIELDS, RUN_FIELDS, count_from
from retake.runs.schema import bring_up_to_date, ledger_schema, version
from retake.runs.states import RunStatus

FETCH_SIZE = 500
"""Number of rows fetched at a time."""

_RUN = Run._fields
_COLUMNS = ", ".join(f"r.{'run_status' if it == 'status' else it}" for it in _RUN)
_EVENTS = f"""
    SELECT {_COLUMNS}, r.last_seq, e.seq, e.kind, e.at, e.trace_id, CAST(e.payload AS TEXT)
    FROM task_runs r LEFT JOIN events e ON e.run_id = r.run_id"""  # noqa: S608  # constants
_ALL = f"{_EVENTS} ORDER BY r.run_id, e.seq"
_OF_RUN = f"{_EVENTS} WHERE r.run_id = :name ORDER BY e.seq"
_OF_TASK = f"{_EVENTS} WHERE r.task_id = :name ORDER BY r.run_id, e.seq"
_ORPHANS = """
    SELECT e.run_id, count(*) FROM events e LEFT JOIN task_runs r ON r.run_id = e.run_id
    WHERE r.run_id IS NULL GROUP BY e.run_id ORDER BY e.run_id LIMIT 1000"""

_BEGIN = {"sqlite": "BEGIN", "postgresql": "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"}
_LOCK = {"sqlite": "", "postgresql": " FOR UPDATE"}

TASK = "task "


class Malformed(Exception):
    """The database is damaged. `args[0]` is the driver's message."""


class RowRun(NamedTuple):
    """A run, parsed from its rows."""

    run: Run
    events: list[Event]
    last_seq: int


class SqlRuns(Examination):
    """The runs of the ledger at `url`, which comes from `setting`. `mirrored` are the pipelines whose runs mirror
    documents of items. They are never busy, because each look sees the database at one moment."""

    def __init__(self, url: str, *, setting: str = LEDGER_SETTING, mirrored: Sequence[str] = ()) -> None:
        self.title = f"runs in {redact(url)}"
        self._url, self._setting, self._mirrored = url, setting, mirrored
        self._where = redact(url)  # also the subject of the tables
        self._orphans, self._counts = f"events in {self._where}", f"counts in {self._where}"
        self._book: RunBook | None = None  # during the first look
        self._current: tuple[str, list[Sequence[Any]]] | None = None  # the run being read, during the first look

    def subjects(self, view: CheckView) -> Iterator[str]:
        """Yield the tables, each run, the tasks whose runs may be inconsistent, orphaned events, and kept counts."""
        if not self._exists():
            return
        yield self._where
        if not self._readable():
            return
        self._book = book = RunBook(self._mirrored)
        try:
            yield from self._runs()
            yield from (f"{TASK}{task}" for task in book.tasks())
        except Malformed:
            return  # found by examining the tables
        finally:
            self._book = self._current = None
            book.close()
        yield self._orphans
        yield self._counts

    def _runs(self) -> Iterator[str]:
        with self._reading() as connection:
            rows = connection.execute(text(_ALL), execution_options={"yield_per": FETCH_SIZE})
            for run_id, of_run in groupby(rows, key=lambda row: row[0]):
                self._current = str(run_id), [*of_run]
                yield str(run_id)

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        try:
            if subject == self._where:
                yield from self._tables()
            elif self._current and self._current[0] == subject:
                rows, self._current = self._current[1], None
                yield from self._run(view, subject, rows)
            elif self._readable():
                yield from self._examine(view, subject)
        except Malformed as error:
            if subject == self._where:
                yield found(DAMAGED, self._where, str(error))

    def _examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        with self._reading() as connection:
            if subject == self._orphans:
                for run_id, number in connection.execute(text(_ORPHANS)):
                    what = f"{number} events of {run_id}, which is not in task_runs"
                    yield found("events-without-run", "events", plain(one_line(what)))
            elif subject == self._counts:
                yield from count_faults(connection)
            elif subject.startswith(TASK):
                yield from self._task(_rows(connection, _OF_TASK, subject.removeprefix(TASK)))
            else:
                yield from self._run(view, subject, _rows(connection, _OF_RUN, subject))

    def repair(self, view: CheckView, subject: str) -> Sequence[str]:
        with closing(open_database(self._url, read_only=False, setting=self._setting)) as database:
            if subject == self._where:
                bring_up_to_date(database)
                return [f"the tables of {self._where} were migrated to version {ledger_schema().newest}"]
            if subject == self._counts:
                with driver_errors(database):
                    return count_again(database)
            return _recount(database, subject)

    # --- one run, one task ----------------------------------------------------------------------------------------

    def _run(self, view: CheckView, run_id: str, rows: list[Sequence[Any]]) -> Iterator[CheckFinding]:
        if not rows:
            return
        view.looked_at["runs"] += 1
        try:
            it = run_of(rows)
        except (ValueError, TypeError) as error:
            yield found(UNREADABLE_RUN, run_id, plain(one_line(redact(str(error)))))
            return
        view.looked_at["events"] += len(it.events)
        if self._book:
            self._book.add(facts_of(it.run, it.events), it.run.task_id)
        if not it.events:
            yield found(EVENTS_MISSING, run_id, "there are no events of it at all")
            return
        for fault in history_faults(it.run, it.events):
            yield found(fault.code, run_id, fault.what)
        last = max(event.seq for event in it.events)
        if it.last_seq != last:
            yield found(COUNTS_WRONG, run_id, f"its last_seq is {it.last_seq}, but its last event is {last}")

    def _task(self, rows: list[Sequence[Any]]) -> Iterator[CheckFinding]:
        """Check the runs of one task against each other, unless one of them is unreadable."""
        try:
            runs = [run_of([*of_run]) for _, of_run in groupby(rows, key=lambda row: row[0])]
        except (ValueError, TypeError):
            return
        if runs:
            last = max((it.run for it in runs), key=lambda run: run.attempt)
            facts = [facts_of(it.run, it.events) for it in runs]
            for fault in task_faults(facts, mirrored=last.pipeline in self._mirrored):
                yield found(fault.code, last.run_id, f"task {last.task_id:.80}: {fault.what}")

    # --- the database ---------------------------------------------------------------------------------------------

    def _exists(self) -> bool:
        path = self._url.removeprefix("sqlite:")
        return path == self._url or Path(path).exists()

    def _readable(self) -> bool:
        """Return whether the tables exist and have the version that we know."""
        try:
            with self._database() as database:
                return version(database) == ledger_schema().newest
        except (StateError, Malformed):
            return False

    def _tables(self) -> Iterator[CheckFinding]:
        with self._database() as database:
            newest, where = ledger_schema().newest, self._where
            try:
                there = version(database)
            except StateError as error:
                yield found(VERSION, where, str(error))
                return
            if there not in (None, newest):
                yield found(OLD, where, f"its tables have version {there}, not {newest}")
            elif there:
                with driver_errors(database), database.engine.connect() as connection:
                    yield from table_faults(connection, where)

    @contextmanager
    def _database(self) -> Iterator[Database]:
        """Provide the database for reading. Raises Malformed, SettingsError, StorageError."""
        with closing(open_database(self._url, read_only=True, setting=self._setting)) as database, _malformed():
            yield database

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """Provide a connection that sees the database at one moment."""
        with self._database() as database, driver_errors(database), database.engine.connect() as connection:
            connection.exec_driver_sql(_BEGIN[database.dialect.name])
            try:
                yield connection
            finally:
                connection.rollback()


@contextmanager
def _malformed() -> Iterator[None]:
    """Raise Malformed if SQLite cannot read its file."""
    try:
        yield
    except StorageError as error:
        if type(error.__cause__) is sqlite3.DatabaseError:
            raise Malformed(redact(str(error.__cause__))) from error
        raise


def _rows(connection: Connection, query: str, name: str) -> list[Sequence[Any]]:
    return [*connection.execute(text(query), {"name": name})]


def _recount(database: Database, run_id: str) -> list[str]:
    """Count a run's events again while its row is locked. If its history breaks the rules, only `last_seq` can be
    corrected."""
    with driver_errors(database), database.engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if database.dialect.name == "sqlite" else "BEGIN")
        lock = f"SELECT run_id FROM task_runs WHERE run_id = :name{_LOCK[database.dialect.name]}"  # noqa: S608
        connection.execute(text(lock), {"name": run_id}).all()
        try:
            it = run_of(_rows(connection, _OF_RUN, run_id))
            last = max(event.seq for event in it.events)
        except (IndexError, ValueError, TypeError):  # removed, or changed by hand, since the look
            return []
        broken = {fault.code for fault in history_faults(it.run, it.events)} & {EVENTS_MISSING, HISTORY_ILLEGAL}
        if broken:
            counters: Mapping[str, int] = {name: getattr(it.run, name) for name in COUNTERS}
        else:
            counters = derived([event for event in it.events if event.kind == CHANGED]).counters
        connection.execute(
            text(
                "UPDATE task_runs SET last_seq = :last_seq, resumes = :resumes, retries = :retries, "
                "crashes = :crashes WHERE run_id = :name"
            ),
            {"name": run_id, "last_seq": last, **counters},
        )
        connection.commit()
    counted = "last_seq" if broken else "retries, crashes, resumes and last_seq"
    return [f"the {counted} of {run_id} {'was' if broken else 'were'} counted again"]


def run_of(rows: Sequence[Sequence[Any]]) -> RowRun:
    """Parse a run from its rows of the join. Raises ValueError and TypeError, which name the column."""
    first = rows[0]
    fields = {name: _value(name, value) for name, value in zip(_RUN, first, strict=False)}
    run = Run(**fields)
    if run_id_of(run.idempotency_key) != run.run_id:
        raise ValueError("its run_id does not match its idempotency_key")
    if (run.next_retry_at is not None) != (run.status is RunStatus.RETRY_SCHEDULED):
        raise ValueError(f"its next_retry_at is for {RunStatus.RETRY_SCHEDULED} alone, and needed there")
    if (run.heartbeat_at is not None) != (run.status is RunStatus.RUNNING):
        raise ValueError(f"its heartbeat_at is for {RunStatus.RUNNING} alone, and needed there")
    number = len(_RUN)
    events = (row[number + 1 :] for row in rows if row[number + 1] is not None)
    return RowRun(run, [slim(_event(run.run_id, it)) for it in events], _value("last_seq", first[number]))


def _event(run_id: str, row: Sequence[Any]) -> Event:
    seq, kind, at, trace_id, payload = row
    try:
        value = json.loads(payload)
        if not isinstance(value, dict):
            raise TypeError("not an object")  # noqa: TRY301
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"the payload of event {seq} is not a JSON object") from error
    where = f"event {seq}: "
    return Event(run_id, _value("seq", seq), _value("kind", kind, where), _value("at", at, where), str(trace_id), value)


def _value(name: str, value: Any, where: str = "") -> Any:
    if isinstance(value, datetime):  # from PostgreSQL's driver
        return value.astimezone(UTC)
    try:
        return _COLUMNS_READ[name](value)
    except ValueError as error:
        raise ValueError(f"{where}{name}: {error}") from error


_COLUMNS_READ = {
    **EVENT_FIELDS,
    **RUN_FIELDS,
    **dict.fromkeys(("attempt", "version", "last_seq", "seq"), count_from(0)),
}
"""The readers of columns. They do not check the order of numbers, which the rules do."""
