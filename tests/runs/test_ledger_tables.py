"""What the database itself refuses, whoever writes to it; and that every query uses an index."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from ledger_shapes import in_state
from postgres import empty
from sqlalchemy import Dialect

from retake.clock import FakeClock
from retake.runs.database import Database, open_database
from retake.runs.run import Run
from retake.runs.sql_ledger import SqlLedger, open_sql_ledger
from retake.runs.statements import Prepared, Queries, Updates
from retake.runs.states import RunStatus

GOOD = {
    "run_id": "'run-1'", "task_id": "'task'", "attempt": "1", "idempotency_key": "'key'", "run_status": "'queued'",
    "created_at": "'2026-01-01T00:00:00.000000Z'", "updated_at": "'2026-01-01T00:00:00.000000Z'", "version": "1",
    "pipeline": "''", "next_retry_at": "NULL", "error_code": "NULL", "worker": "NULL", "heartbeat_at": "NULL",
    "resumes": "0", "last_seq": "1", "retries": "0", "crashes": "0",
}  # fmt: skip
SOON = "'2026-01-01T00:01:00.000000Z'"
RETRY = {"run_status": "'retry_scheduled'", "next_retry_at": SOON}
RUNNING = {"run_status": "'running'", "heartbeat_at": SOON}

BROKEN: dict[str, dict[str, str]] = {
    "no id": {"run_id": "NULL"},
    "no task": {"task_id": "NULL"},
    "an empty task": {"task_id": "''"},
    "attempt 0": {"attempt": "0"},
    "a negative attempt": {"attempt": "-1"},
    "no attempt": {"attempt": "NULL"},
    "an attempt that is a word": {"attempt": "'first'"},
    "no key": {"idempotency_key": "NULL"},
    "an empty key": {"idempotency_key": "''"},
    "a state that there is not": {"run_status": "'paused'"},
    "no state": {"run_status": "NULL"},
    "scheduled, and no time for it": {"run_status": "'retry_scheduled'"},
    **{
        f"{status}, and a time for a retry": {"run_status": f"'{status}'", "next_retry_at": SOON}
        | ({"heartbeat_at": SOON} if status is RunStatus.RUNNING else {})
        for status in RunStatus
        if status is not RunStatus.RETRY_SCHEDULED
    },
    "running without a sign of life": {"run_status": "'running'"},
    "a sign of life of nobody": {"heartbeat_at": SOON},
    "version 0": {"version": "0"},
    "fewer resumes than none": {"resumes": "-1"},
    "fewer retries than none": {"retries": "-1"},
    "crashes that are a word": {"crashes": "'many'"},
    "no event": {"last_seq": "0"},
}

Execute = Callable[[str], Any]


class TablesContract:
    @pytest.fixture
    def execute(self) -> Iterator[Execute]:
        """Return a function that executes and commits a statement with the bare driver."""
        raise NotImplementedError

    @pytest.mark.parametrize("columns", [{}, RETRY, RUNNING])
    def test_a_row_that_is_right_is_taken(self, execute: Execute, columns: dict[str, str]) -> None:
        insert(execute, columns)

    @pytest.mark.parametrize("columns", BROKEN.values(), ids=list(BROKEN))
    def test_a_broken_row_is_refused(self, execute: Execute, columns: dict[str, str]) -> None:
        with refused():
            insert(execute, columns)

    @pytest.mark.parametrize(
        ("same", "column"),
        [
            ("run_id", "run_id"),
            ("idempotency_key", "idempotency_key"),
            ("task_id, attempt", "attempt"),
        ],
    )
    def test_what_is_unique_is_there_once(self, execute: Execute, same: str, column: str) -> None:
        others = {"run_id": "'run-2'", "task_id": "'task'", "attempt": "2", "idempotency_key": "'key-2'"}
        insert(execute, {})
        with refused(of=column):
            insert(execute, {**others, **{it: GOOD[it] for it in same.split(", ")}})
        insert(execute, others)

    def test_an_event_needs_its_run_and_a_number_of_its_own(self, execute: Execute) -> None:
        insert(execute, {})
        event = "INSERT INTO events VALUES ({}, {}, {}, '2026-01-01T00:00:00.000000Z', 'tr', '{{}}')"
        execute(event.format("'run-1'", 1, "'run.note'"))
        for broken in (("'run-1'", 1, "'twice'"), ("'run-1'", 0, "'k'"), ("'run-1'", 2, "''"), ("'no-run'", 1, "'k'")):
            with refused():
                execute(event.format(*broken))
        with refused():
            execute("DELETE FROM task_runs")


def insert(execute: Execute, columns: dict[str, str]) -> None:
    row = {**GOOD, **columns}
    execute(f"INSERT INTO task_runs ({', '.join(row)}) VALUES ({', '.join(row.values())})")  # noqa: S608


def refused(of: str | None = None) -> Any:
    return pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError, psycopg.DataError), match=of)


class TestSqliteTables(TablesContract):
    @pytest.fixture
    def execute(self, tmp_path: Path, clock: FakeClock) -> Iterator[Execute]:
        open_sql_ledger(f"sqlite:{tmp_path}/runs.db", clock).close()
        connection = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
        connection.execute("PRAGMA foreign_keys = ON")
        yield connection.execute
        connection.close()


class TestPostgresTables(TablesContract):
    @pytest.fixture
    def execute(self, shared_database: str, clock: FakeClock) -> Iterator[Execute]:
        open_sql_ledger(shared_database, clock).close()
        empty(shared_database)
        with psycopg.connect(shared_database, autocommit=True) as connection:
            yield connection.execute

    def test_the_constraint_of_the_seed_has_its_name(self, execute: Execute) -> None:
        insert(execute, {})
        with refused(of="uq_task_runs_idempotency_key"):
            insert(execute, {"run_id": "'run-2'", "attempt": "2"})


# --- indexes -------------------------------------------------------------------------------------------------------


def asked(clock: FakeClock, run: Run) -> dict[str, Any]:
    """Return a value for each parameter of any statement."""
    return {
        "of_run": run.run_id,
        "of_version": 1,
        "key": "k",
        "task": "t",
        "since": clock.now(),
        "now": clock.now(),
        "ahead": clock.now(),
        "number": 50,
        "pipeline": "story",
        "heartbeat_at": clock.now(),
        "new_events": 1,
        **run._asdict(),
        "run_status": run.status,
    }


def every(dialect: Dialect) -> dict[str, Prepared]:
    """Return each statement that a ledger may execute, by name."""
    queries, updates = Queries(dialect), Updates(dialect)
    names = ("get", "find", "of_task", "events", "next_attempt", "known_or_next", "silent", "counts", "pipeline_counts")
    found = {name: getattr(queries, name) for name in names}
    found |= {name: getattr(updates, name) for name in ("claim", "pipeline_claim", "heartbeat")}
    found |= {name: getattr(updates, name)._change for name in ("move", "note")}
    for of_pipeline in (False, True):
        for status in (frozenset(RunStatus), frozenset({RunStatus.FAILED})):
            found[f"listing {len(status)} {of_pipeline}"] = queries.listing(status, of_pipeline=of_pipeline)
    return found


def explain(database: Database, keyword: str, clock: FakeClock, run: Run) -> dict[str, str]:
    plans = {}
    for name, prepared in every(database.dialect).items():
        with database.cursor() as cursor:
            explained = Prepared.__new__(Prepared)
            explained.__dict__.update(prepared.__dict__, sql=f"{keyword} {prepared.sql}", _out=[None])
            cursor.execute(explained.sql, explained.given(asked(clock, run)))
            plans[name] = "\n".join(str(row[-1]) for row in cursor.fetchall())
    return plans


def test_sqlite_scans_no_table(tmp_path: Path, clock: FakeClock, opened: list[SqlLedger]) -> None:
    url = f"sqlite:{tmp_path}/runs.db"
    opened.append(open_sql_ledger(url, clock))
    run = in_state(opened[0], RunStatus.QUEUED)
    database = open_database(url, read_only=False)
    plans = explain(database, "EXPLAIN QUERY PLAN", clock, run)
    database.close()
    for name, plan in plans.items():
        scans = [line for line in plan.splitlines() if line.startswith("SCAN")]
        assert [line for line in scans if "task_runs" in line or "run_counts" in line] == [], (name, plan)
        assert "SCAN events" not in plan
        assert "counts" not in name or "task_runs" not in plan
        if not name.startswith("listing"):  # those sort what they found for each state, 50 at most
            assert "TEMP B-TREE" not in plan, (name, plan)


def test_postgres_scans_no_table(database_url: str, clock: FakeClock, opened: list[SqlLedger]) -> None:
    opened.append(open_sql_ledger(database_url, clock))
    run = in_state(opened[0], RunStatus.QUEUED)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("""
            INSERT INTO task_runs SELECT 'run-' || md5(n::text), 'task ' || n / 2, 1 + n % 2, 'key ' || n,
            (ARRAY['queued', 'succeeded', 'failed', 'cancelled', 'interrupted', 'running', 'retry_scheduled'])
            [1 + n % 7], now() - n * interval '1 second', now() - n * interval '1 second', 2,
            'story/' || n % 300,
            CASE n % 7 WHEN 6 THEN now() + n * interval '1 second' END, NULL, NULL,
            CASE n % 7 WHEN 5 THEN now() END, 0, 1 FROM generate_series(2, 20000) n""")
        connection.execute(
            "INSERT INTO events SELECT run_id, 1, 'k', now(), 'tr', '{}' FROM task_runs WHERE version = 2"
        )
        connection.execute("VACUUM ANALYZE")
    reached = open_database(database_url, read_only=False)
    plans = explain(reached, "EXPLAIN", clock, run)
    reached.close()
    for name, plan in plans.items():
        assert "Seq Scan" not in plan, (name, plan)
        assert "counts" not in name or "task_runs" not in plan
        assert "Sort" not in plan or name.startswith("listing"), (name, plan)
