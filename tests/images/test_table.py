"""The rows of jobs2, on a real PostgreSQL."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from local_servers import or_skipped
from postgres import Server, new_database, running
from sqlalchemy import Connection
from together import at_once

from retake.clock import FakeClock
from retake.errors import SettingsError
from retake.exit_codes import ExitCode
from retake.images.jobs import ImageJob, TextRequest, iso
from retake.images.rows import TableAway, TableRow
from retake.images.store import key_hash
from retake.images.table import SCHEMA, JobTable
from retake.runs.database import open_database
from retake.runs.schema import bring_up_to_date, version

ASKED = TextRequest("a red fox", "blurry", ("ink", "à la carte"), 640, 832, 7, 2**53 - 1)


@pytest.fixture
def table(database_url: str, clock: FakeClock) -> Iterator[JobTable]:
    made = JobTable(database_url, clock)
    made.prepare()
    yield made
    made.close()


def new_job(user: str = "ann", asked: TextRequest = ASKED) -> ImageJob:
    return ImageJob(str(uuid4()), "pending", user_id=user, text=asked)


def column(url: str, job_id: str, name: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(f"SELECT {name} FROM jobs2 WHERE id = %s", [job_id]).fetchone()  # noqa: S608  a constant
    return row[0] if row else None


def far(clock: FakeClock) -> str:
    return iso(clock.now() + timedelta(days=1))


# --- the tables -----------------------------------------------------------------------------------------------------


def test_the_migrations_make_what_the_tables_say(database_url: str) -> None:
    database = open_database(database_url, read_only=False)
    bring_up_to_date(database, SCHEMA)
    assert version(database, SCHEMA) == SCHEMA.newest
    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "version_table": SCHEMA.version_table}
        )
        assert compare_metadata(context, SCHEMA.metadata) == []
        migrated = rules(connection)
        SCHEMA.metadata.drop_all(connection)
        SCHEMA.metadata.create_all(connection)
        assert rules(connection) == migrated
    database.close()


def rules(connection: Connection) -> list[str]:
    found = connection.exec_driver_sql("""
        SELECT conname || ': ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid::regclass::text ~ '^jobs2'
        UNION ALL SELECT indexdef FROM pg_indexes WHERE tablename ~ '^jobs2'
        UNION ALL SELECT concat_ws(' ', table_name, column_name, data_type, is_nullable, column_default)
        FROM information_schema.columns WHERE table_name ~ '^jobs2' ORDER BY 1""")
    return [rule for (rule,) in found]


def test_several_at_once_make_the_tables_once(database_url: str, clock: FakeClock) -> None:
    tables = [JobTable(database_url, clock) for _ in range(4)]
    at_once([it.prepare for it in tables])
    assert tables[0].add(new_job())
    for it in tables:
        it.close()


# --- the life of a row ----------------------------------------------------------------------------------------------


def test_a_row_says_what_was_asked(table: JobTable, database_url: str) -> None:
    job = new_job()
    assert table.add(job) == job.job_id
    assert column(database_url, job.job_id, "prompt") == "a red fox"
    assert column(database_url, job.job_id, "parameters") == {
        "negative_prompt": "blurry", "styles": ["ink", "à la carte"], "width": 640, "height": 832, "steps": 7,
        "seed": 2**53 - 1,
    }  # fmt: skip
    row = table.get(job.job_id)
    assert row
    assert (row.user_id, row.status, row.error, row.output_r2_key) == ("ann", "pending", "", "")
    assert table.get(str(uuid4())) is None


def test_pending_ready_completed(table: JobTable, clock: FakeClock) -> None:
    job_id = table.add(new_job())
    table.ready(job_id, "jobs/x/output.png", "A @ h:1")
    row = table.get(job_id)
    assert row
    assert (row.status, row.output_r2_key, row.executed_by) == ("ready", "jobs/x/output.png", "A @ h:1")
    table.completed(job_id)
    row = table.get(job_id)
    assert row
    assert (row.status, row.output_r2_key, row.executed_by) == ("completed", "jobs/x/output.png", "A @ h:1")
    table.ready(job_id, "other", "other")
    table.failed(job_id, "too late")
    assert table.get(job_id) == row


def test_failed_with_any_reason(table: JobTable) -> None:
    job_id = table.add(new_job())
    table.failed(job_id, "half \udcff, \0 nothing")
    row = table.get(job_id)
    assert row
    assert (row.status, row.error) == ("failed", "half ?,  nothing")
    table.completed(job_id)
    table.ready(job_id, "k", "b")
    assert table.get(job_id) == row


@pytest.mark.parametrize("fields", [{"prompt": "a\0b"}, {"negative_prompt": "\ud800"}, {"styles": ("ok", "\0")}])
def test_what_postgresql_cannot_keep_is_an_error_of_the_caller(table: JobTable, fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        table.add(new_job(asked=ASKED._replace(**fields)))


def test_open_rows_come_in_pages_each_once(table: JobTable, clock: FakeClock) -> None:
    ids = sorted(table.add(new_job()) for _ in range(7))
    table.failed(ids[3], "x")
    table.ready(ids[4], "k", "b")
    found: list[TableRow] = []
    after = ""
    while page := table.open_rows(far(clock), after, 2):
        found += page
        after = page[-1].job_id
    assert [it.job_id for it in found] == [*ids[:3], *ids[4:]]
    assert {it.status for it in found} == {"pending", "ready"}
    assert all(it.old for it in found)
    assert not any(it.old for it in table.open_rows(iso(clock.now())))


# --- idempotency ----------------------------------------------------------------------------------------------------


def test_one_key_one_job(table: JobTable) -> None:
    first = table.add(new_job(), "key")
    assert table.add(new_job(), "key") == first
    assert table.add(new_job("bob"), "key") != first
    assert table.add(new_job(), "other") != first
    assert table.add(new_job()) != first
    table.completed(first)
    assert table.add(new_job(), "key") == first


def test_a_key_asked_at_once_makes_one_row(table: JobTable, database_url: str) -> None:
    jobs = [new_job() for _ in range(8)]
    assert len(set(at_once([lambda it=it: table.add(it, "key") for it in jobs]))) == 1
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT count(*) FROM jobs2").fetchone() == (1,)


def test_adding_again_after_an_unknown_outcome_is_the_same(table: JobTable) -> None:
    job = new_job()
    assert [table.add(job, "key") for _ in range(3)] == [job.job_id] * 3
    assert len(table.open_rows("2000-01-01T00:00:00+00:00")) == 1


def test_a_key_counts_for_a_day(table: JobTable, clock: FakeClock, database_url: str) -> None:
    first = table.add(new_job(), "key")
    clock.sleep(86_399)
    assert table.add(new_job(), "key") == first
    table.forget_keys()
    assert table.add(new_job(), "key") == first
    clock.sleep(1)
    second = table.add(new_job(), "key")
    assert second != first
    assert table.add(new_job(), "key") == second
    clock.sleep(86_400)
    table.forget_keys()
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT count(*) FROM jobs2_keys").fetchone() == (0,)


# --- bringing in ----------------------------------------------------------------------------------------------------


def test_a_key_that_a_clock_years_ahead_has_taken_does_not_count_for_years(
    table: JobTable, clock: FakeClock, database_url: str
) -> None:
    right = clock.moment
    clock.moment = datetime.now(UTC) + timedelta(days=3650)
    first = table.add(new_job(), "key")
    assert table.add(new_job(), "key") == first
    table.add(new_job(), "another")
    clock.moment = right
    second = table.add(new_job(), "key")
    assert second != first
    assert table.add(new_job(), "key") == second
    table.forget_keys()
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT job_id::text FROM jobs2_keys").fetchall() == [(second,)]


def test_a_row_is_brought_in_as_it_was_asked(table: JobTable, clock: FakeClock) -> None:
    job = new_job()
    table.add(job, "key")
    brought: list[Any] = []
    assert table.bring_in(job.job_id, lambda it, key: not brought.append((it, key)))
    [(found, key)] = brought
    assert found == job._replace(status="", created_at=iso(clock.now()), in_table=True)
    assert key == key_hash("key")


def test_rows_of_other_programs_are_brought_in_too(table: JobTable, database_url: str) -> None:
    job_id = str(uuid4())
    with psycopg.connect(database_url) as connection:
        given = [job_id, json.dumps({"width": "wide", "styles": "none", "job_id": 3, "seed": None})]
        connection.execute("INSERT INTO jobs2 (id, user_id, prompt, parameters) VALUES (%s, 'ann', 'p', %s)", given)
    brought: list[Any] = []
    assert table.bring_in(job_id, lambda it, key: not brought.append(it))
    assert brought[0].text == TextRequest("p")
    assert brought[0].job_id == job_id


def test_one_of_several_sweepers_brings_it_in(table: JobTable) -> None:
    job_id = table.add(new_job())
    inside, go = threading.Event(), threading.Event()
    results: list[bool] = []

    def create(_job: ImageJob, _key: str) -> bool:
        inside.set()
        return go.wait(10)

    first = threading.Thread(target=lambda: results.append(table.bring_in(job_id, create)))
    first.start()
    assert inside.wait(10)
    assert not table.bring_in(job_id, lambda *_: pytest.fail("twice"))
    go.set()
    first.join()
    assert results == [True]


@pytest.mark.parametrize("end", ["completed", "failed"])
def test_a_row_that_has_ended_is_not_brought_in(table: JobTable, end: str) -> None:
    job_id = table.add(new_job())
    table.completed(job_id) if end == "completed" else table.failed(job_id, "deleted")
    assert not table.bring_in(job_id, lambda *_: pytest.fail("brought in"))


def test_clean_up_waits_for_a_row_that_is_brought_in(table: JobTable, database_url: str) -> None:
    job_id = table.add(new_job())
    order: list[str] = []

    def create(_job: ImageJob, _key: str) -> bool:
        other = threading.Thread(target=lambda: (table.failed(job_id, "deleted"), order.append("failed")))
        other.start()
        others.append(other)
        with psycopg.connect(database_url, autocommit=True) as connection:
            while not connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
                pass
        order.append("created")
        return True

    others: list[threading.Thread] = []
    assert table.bring_in(job_id, create)
    others[0].join()
    assert order == ["created", "failed"]
    row = table.get(job_id)
    assert row
    assert row.status == "failed"


def test_what_creating_raises_is_passed_on_and_the_row_is_free(table: JobTable) -> None:
    job_id = table.add(new_job())

    def create(_job: ImageJob, _key: str) -> bool:
        raise RuntimeError("Redis")

    with pytest.raises(RuntimeError, match="Redis"):
        table.bring_in(job_id, create)
    assert table.bring_in(job_id, lambda *_: True)


# --- a server that is away ------------------------------------------------------------------------------------------


@pytest.fixture
def own_server() -> Iterator[Server]:
    """Start a PostgreSQL that the test may stop."""
    with or_skipped(), running() as started:
        yield started


def test_a_server_that_was_restarted_is_found_again(own_server: Server, clock: FakeClock) -> None:
    table = JobTable(new_database(own_server.base), clock)
    table.prepare()
    job_id = table.add(new_job(), "key")
    own_server.stop()
    with pytest.raises(TableAway, match="pg_isready") as raised:
        table.add(new_job())
    assert raised.value.exit_code == ExitCode.TRY_LATER
    own_server.start()
    table.ping()
    own_server.stop()
    own_server.start()
    assert table.add(new_job(), "key") == job_id, "a lost connection is replaced"
    table.close()


def test_a_server_that_hangs_is_not_waited_for(own_server: Server, clock: FakeClock) -> None:
    table = JobTable(new_database(own_server.base), clock)
    table.prepare()
    with psycopg.connect(f"{own_server.base}postgres") as connection:
        own_pid = connection.info.backend_pid
        backends = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
        pids = [row[0] for row in connection.execute(backends)]
        postmaster = int(Path(f"/proc/{own_pid}/stat").read_text().split()[3])
    stopped = [postmaster, *(pid for pid in pids if pid != own_pid)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(2):  # on an existing connection, and on a new one
            begun = time.monotonic()
            with pytest.raises(TableAway):
                table.add(new_job())
            assert time.monotonic() - begun < 20
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    table.ping()
    table.close()


def test_a_row_that_somebody_locks_is_not_waited_for_for_long(table: JobTable, database_url: str) -> None:
    job_id = table.add(new_job())
    with psycopg.connect(database_url) as connection:
        connection.execute("SELECT 1 FROM jobs2 WHERE id = %s FOR UPDATE", [job_id])
        begun = time.monotonic()
        with pytest.raises(TableAway):
            table.failed(job_id, "x")
        assert time.monotonic() - begun < 20
    table.failed(job_id, "x")


@pytest.mark.parametrize("place", ["ann:hunter2@127.0.0.1:1/x?", "127.0.0.1:1/x?user=ann&password=hunter2&"])
def test_no_password_is_shown(clock: FakeClock, place: str) -> None:
    table = JobTable(f"postgresql://{place}connect_timeout=2", clock)
    with pytest.raises(TableAway) as raised:
        table.ping()
    assert "hunter2" not in str(raised.value)
    with pytest.raises(SettingsError) as wrong:
        JobTable("postgresql://ann:hunter2@h:port/x", clock)
    assert "hunter2" not in str(wrong.value)
