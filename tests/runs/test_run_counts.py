"""The number of runs in each state, kept by triggers: correct whoever writes, with whatever statement, and whatever
happens in between. Other programs are the bare drivers, sqlite3 and psycopg."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psycopg
import pytest
from alembic.command import downgrade
from alembic.config import Config
from ledger_shapes import wait
from test_ledger_tables import GOOD, RETRY, RUNNING, SOON
from together import at_once

from retake.clock import FakeClock
from retake.runs import schema
from retake.runs.database import open_database
from retake.runs.run import StaleRun
from retake.runs.sql_ledger import SqlLedger, open_sql_ledger
from retake.runs.states import RunStatus, Trigger

ROOT = Path(__file__).parents[2]

Execute = Callable[[str], Any]


class Place:
    """A database with other programs' connections to it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_sqlite = url.startswith("sqlite:")
        self._connections: list[Any] = []

    def connection(self) -> Any:
        """Return a connection of the bare driver; each statement commits."""
        if self.is_sqlite:
            path = self.url.removeprefix("sqlite:")
            made: Any = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
        else:
            made = psycopg.connect(self.url, autocommit=True)
        self._connections.append(made)
        return made

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = Place(
        f"sqlite:{tmp_path}/runs.db" if request.param == "sqlite" else str(request.getfixturevalue("database_url"))
    )
    yield place
    place.close()


@pytest.fixture
def ledger(place: Place, clock: FakeClock, opened: list[SqlLedger]) -> SqlLedger:
    opened.append(open_sql_ledger(place.url, clock))
    return opened[-1]


@pytest.fixture
def execute(place: Place, ledger: SqlLedger) -> Execute:
    execute: Execute = place.connection().execute
    return execute


def row(n: int, **columns: str) -> str:
    """Return the statement that inserts run number `n`."""
    good = {**GOOD, "run_id": f"'run-{n}'", "idempotency_key": f"'key-{n}'", "attempt": str(n), **columns}
    return f"INSERT INTO task_runs ({', '.join(good)}) VALUES ({', '.join(good.values())})"  # noqa: S608


def checked(ledger: SqlLedger, execute: Execute) -> dict[RunStatus, int]:
    """Return the counts, after checking that they agree with the rows, in total and for each pipeline."""
    rows = Counter((str(it[0]), RunStatus(it[1])) for it in execute("SELECT pipeline, run_status FROM task_runs"))
    for pipeline in {pipeline for pipeline, _ in rows} | {"", "a", "b"}:
        assert ledger.counts(pipeline=pipeline) == {it: rows[pipeline, it] for it in RunStatus}, pipeline
    whole = ledger.counts()
    assert whole == {it: sum(n for (_, status), n in rows.items() if status is it) for it in RunStatus}
    return whole


def test_rows_of_other_programs_count(ledger: SqlLedger, execute: Execute) -> None:
    for n, columns in enumerate(
        ({}, {"pipeline": "'a'"}, {"pipeline": "'a'", **RUNNING}, {"pipeline": "'b'", **RETRY}), 1
    ):
        execute(row(n, **columns))
        assert sum(checked(ledger, execute).values()) == n
    for change in (
        f"run_status = 'running', heartbeat_at = {SOON} WHERE run_id = 'run-1'",
        "pipeline = 'b' WHERE run_id = 'run-2'",
        "pipeline = 'c', run_status = 'cancelled' WHERE run_id = 'run-2'",
        "run_status = 'failed', next_retry_at = NULL, heartbeat_at = NULL",
        "error_code = 'x'",
        "pipeline = 'z' WHERE run_id = 'nobody'",
    ):
        execute(f"UPDATE task_runs SET {change}")  # noqa: S608  our own words
        checked(ledger, execute)
    assert ledger.counts()[RunStatus.FAILED] == 4
    execute("DELETE FROM task_runs WHERE pipeline = 'a'")
    assert sum(checked(ledger, execute).values()) == 3
    execute("DELETE FROM task_runs")
    assert sum(checked(ledger, execute).values()) == 0


def test_many_rows_in_one_statement_count(place: Place, ledger: SqlLedger, execute: Execute) -> None:
    numbers = (
        "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 20000) "
        if place.is_sqlite
        else "WITH numbers AS (SELECT n FROM generate_series(1, 20000) n) "
    )
    values = {
        **GOOD,
        "run_id": "'run-' || n",
        "idempotency_key": "'key-' || n",
        "attempt": "n",
        "pipeline": "'p' || n % 9",
    }
    rows = f"{numbers} SELECT {', '.join(values.values())} FROM numbers"  # noqa: S608  our own words
    execute(f"INSERT INTO task_runs ({', '.join(values)}) {rows}")
    assert checked(ledger, execute)[RunStatus.QUEUED] == 20_000
    execute("UPDATE task_runs SET run_status = 'cancelled', pipeline = 'a' WHERE attempt % 3 = 0")
    execute("DELETE FROM task_runs WHERE attempt % 5 = 0")
    assert checked(ledger, execute)[RunStatus.CANCELLED] == 5_333


def test_what_is_rolled_back_or_refused_does_not_count(ledger: SqlLedger, execute: Execute) -> None:
    execute(row(1))
    execute("BEGIN")
    execute(row(2, pipeline="'a'"))
    execute("SAVEPOINT here")
    execute("DELETE FROM task_runs")
    execute("ROLLBACK TO here")
    execute("UPDATE task_runs SET run_status = 'cancelled'")
    execute("ROLLBACK")
    assert checked(ledger, execute)[RunStatus.QUEUED] == 1
    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
        execute(row(1, pipeline="'a'"))
    execute(row(1, pipeline="'a'") + " ON CONFLICT DO NOTHING")
    execute(row(1) + " ON CONFLICT (run_id) DO UPDATE SET run_status = 'failed', pipeline = 'b'")
    assert checked(ledger, execute)[RunStatus.FAILED] == 1


@pytest.mark.parametrize("recursive", ["OFF", "ON"])
def test_rows_that_sqlite_replaces_do_not_count(tmp_path: Path, opened: list[SqlLedger], recursive: str) -> None:
    opened.append(open_sql_ledger(f"sqlite:{tmp_path}/runs.db", FakeClock()))
    connection = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
    execute: Execute = connection.execute
    execute(f"PRAGMA recursive_triggers = {recursive}")
    for n, pipeline in enumerate("aabbc", 1):
        execute(row(n, pipeline=f"'{pipeline}'"))
    for words in ("REPLACE", "IGNORE", "ABORT"):
        for n, columns in (
            (1, {}),
            (9, {"idempotency_key": "'key-2'"}),
            (8, {"attempt": "3", "idempotency_key": "'key-4'"}),
        ):
            try:
                execute(row(n, **columns, run_status="'failed'").replace("INSERT", f"INSERT OR {words}"))
            except sqlite3.IntegrityError:
                assert words == "ABORT"
            checked(opened[0], execute)
    assert checked(opened[0], execute)[RunStatus.FAILED] == 3
    execute("UPDATE OR REPLACE task_runs SET attempt = 1, run_status = 'cancelled' WHERE run_id = 'run-5'")
    execute("UPDATE OR IGNORE task_runs SET attempt = 2")
    execute("UPDATE OR REPLACE task_runs SET idempotency_key = 'the same'")
    assert sum(checked(opened[0], execute).values()) == 1
    connection.close()


def test_runs_of_the_ledger_count_whatever_happens_to_them(
    ledger: SqlLedger, clock: FakeClock, execute: Execute
) -> None:
    order = random.Random(7)
    for n in range(60):
        wait(ledger, clock, f"task-{n}", order.choice([*RunStatus]), pipeline=order.choice("ab"))
        ledger.claim("w")
    assert sum(checked(ledger, execute).values()) == 60


def test_several_writers_count_once_each(place: Place, opened: list[SqlLedger]) -> None:
    """Four clients move the same runs while two programs write; none waits for another endlessly."""
    opened.extend(open_sql_ledger(place.url, FakeClock()) for _ in range(4))
    runs = [opened[0].create_for_task("t", f"k{n}", actor="cron", pipeline="ab"[n % 2]) for n in range(40)]

    def cancel(ledger: SqlLedger, seed: int) -> None:
        for run in random.Random(seed).sample(runs, len(runs)):
            try:
                ledger.move(run, Trigger.CANCEL_COMMAND, actor="operator")
            except StaleRun:
                continue

    def write(first: int) -> None:
        connection = place.connection()
        for n in range(first, first + 60, 2):
            connection.execute("BEGIN")
            connection.execute(row(n, task_id="'other'"))
            connection.execute(row(n + 1, task_id="'other'", pipeline="'b'", **RETRY))
            connection.execute("COMMIT" if n % 4 else "ROLLBACK")

    at_once([*(lambda it=it: cancel(opened[it], it) for it in range(4)), lambda: write(101), lambda: write(501)])
    counts = checked(opened[0], place.connection().execute)
    assert counts[RunStatus.CANCELLED] == 40
    assert sum(counts.values()) == 40 + 2 * 60


def test_a_process_that_is_killed_in_a_transaction_leaves_no_count(
    place: Place, ledger: SqlLedger, clock: FakeClock, execute: Execute
) -> None:
    wait(ledger, clock, "one", RunStatus.QUEUED)
    script = f"""
import sys
if {place.is_sqlite}:
    import sqlite3
    connection = sqlite3.connect({place.url.removeprefix("sqlite:")!r}, isolation_level=None)
else:
    import psycopg
    connection = psycopg.connect({place.url!r}, autocommit=True)
connection.execute("BEGIN")
connection.execute({row(2)!r})
connection.execute("UPDATE task_runs SET run_status = 'cancelled'")
print("now", flush=True)
sys.stdin.read()
"""  # noqa: S608  our own words
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout
    assert process.stdin
    assert process.stdout.readline() == b"now\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    wait(ledger, clock, "another", RunStatus.RUNNING)
    counts = checked(ledger, execute)
    assert (counts[RunStatus.QUEUED], counts[RunStatus.RUNNING]) == (1, 1)


# --- PostgreSQL ----------------------------------------------------------------------------------------------------


@pytest.fixture
def server(database_url: str, opened: list[SqlLedger]) -> Iterator[Place]:
    opened.append(open_sql_ledger(database_url, FakeClock()))
    place = Place(database_url)
    yield place
    place.close()


def test_an_open_transaction_holds_up_no_other_writer(server: Place, opened: list[SqlLedger]) -> None:
    one, other = server.connection(), server.connection()
    other.execute("SET lock_timeout = '5s'")
    one.execute("BEGIN")
    one.execute(row(1))
    other.execute(row(2))
    other.execute("BEGIN")
    other.execute(row(3, **RUNNING))
    one.execute(row(4, **RUNNING))
    other.execute("UPDATE task_runs SET run_status = 'failed' WHERE run_id = 'run-2'")
    assert sum(opened[0].counts().values()) == 1
    one.execute("COMMIT")
    other.execute("COMMIT")
    assert checked(opened[0], one.execute)[RunStatus.RUNNING] == 2


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_that_began_before_another_ended_is_not_refused(
    server: Place, opened: list[SqlLedger], level: str
) -> None:
    one, other = server.connection(), server.connection()
    one.execute(f"BEGIN ISOLATION LEVEL {level}")
    one.execute("SELECT 1 FROM pg_class LIMIT 1")
    other.execute(row(1))
    one.execute(row(2))
    one.execute("COMMIT")
    assert checked(opened[0], one.execute)[RunStatus.QUEUED] == 2


def test_a_program_without_rights_on_the_counts_may_write_and_elsewhere_too(
    server: Place, opened: list[SqlLedger]
) -> None:
    owner, guest = server.connection(), server.connection()
    owner.execute("DROP ROLE IF EXISTS counting_guest")
    owner.execute("CREATE ROLE counting_guest")
    owner.execute("GRANT ALL ON task_runs TO counting_guest")
    guest.execute("SET ROLE counting_guest")
    guest.execute("SET search_path = pg_temp")
    guest.execute("CREATE TEMP TABLE run_counts (scope text)")
    guest.execute(row(1).replace("task_runs", "public.task_runs"))
    assert checked(opened[0], owner.execute)[RunStatus.QUEUED] == 1
    owner.execute("TRUNCATE task_runs CASCADE")
    assert sum(checked(opened[0], owner.execute).values()) == 0
    guest.close()
    owner.execute("DROP OWNED BY counting_guest")
    owner.execute("DROP ROLE counting_guest")


# --- older databases -----------------------------------------------------------------------------------------------


def older(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create the tables of the previous version."""
    with monkeypatch.context() as patch:
        patch.setattr(schema, "REVISIONS", schema.REVISIONS[:2])
        database = open_database(url, read_only=False)
        schema.bring_up_to_date(database)
        database.close()


def test_an_older_database_is_counted_with_what_is_written_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch, opened: list[SqlLedger]
) -> None:
    older(place.url, monkeypatch)
    connection, stop = place.connection(), Event()
    for n, (status, pipeline) in enumerate(((it, of) for it in ("queued", "failed") for of in "aab"), 1):
        connection.execute(row(n, run_status=f"'{status}'", pipeline=f"'{pipeline}'"))

    written: list[int] = []

    def write() -> None:
        other = place.connection()
        for number in range(100, 2_000):
            other.execute("BEGIN IMMEDIATE" if place.is_sqlite else "BEGIN")
            other.execute(row(number, pipeline="'b'"))
            other.execute("COMMIT")
            written.append(number)
            if stop.is_set():
                return

    thread = Thread(target=write)
    thread.start()
    while len(written) < 3:
        stop.wait(0.01)
    opened.append(open_sql_ledger(place.url, FakeClock()))
    stop.set()
    thread.join()
    assert sum(checked(opened[0], connection.execute).values()) == 6 + len(written)


def test_who_may_read_runs_may_read_their_counts_after_the_migration(
    database_url: str, monkeypatch: pytest.MonkeyPatch, opened: list[SqlLedger]
) -> None:
    older(database_url, monkeypatch)
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute("DROP ROLE IF EXISTS counting_reader")
        owner.execute("CREATE ROLE counting_reader")
        owner.execute("GRANT SELECT ON task_runs TO counting_reader")
        opened.append(open_sql_ledger(database_url, FakeClock()))
        owner.execute("SET ROLE counting_reader")
        assert owner.execute("SELECT count(*) FROM run_counts").fetchall() == [(0,)]
        owner.execute("RESET ROLE")
        owner.execute("DROP OWNED BY counting_reader")
        owner.execute("DROP ROLE counting_reader")


def test_the_migration_can_be_undone_and_made_again(place: Place, opened: list[SqlLedger]) -> None:
    opened.append(open_sql_ledger(place.url, FakeClock()))
    connection = place.connection()
    connection.execute(row(1))
    database = open_database(place.url, read_only=False)
    with database.engine.begin() as inside:
        config = Config()
        config.set_main_option("script_location", str(schema.MIGRATIONS))
        found = schema.ledger_schema()
        config.attributes |= {"connection": inside, "version_table": found.version_table, "metadata": found.metadata}
        downgrade(config, "0002")
    connection.execute(row(2))
    schema.bring_up_to_date(database)
    database.close()
    connection.execute(row(3))
    assert checked(opened[0], connection.execute)[RunStatus.QUEUED] == 3
