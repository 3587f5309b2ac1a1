"""Runs in SQLite and PostgreSQL: planted damage, healthy ledgers, repairs beside writers, and the cost."""

import json
import sqlite3
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from damage import Site, trouble
from sqlalchemy import event
from story_world import World

from retake.bucket.memory import MemoryBucket
from retake.checking import Check, CheckReport, Scope, sql_runs
from retake.checking.sql_runs import SqlRuns
from retake.checking.view import CheckView, LiveListing
from retake.clock import FakeClock
from retake.errors import redact
from retake.exit_codes import ExitCode
from retake.runs import Ledger, schema
from retake.runs.database import Database, open_database
from retake.runs.run import Run, run_id_of
from retake.runs.sql_ledger import open_sql_ledger
from retake.runs.states import Trigger

FIRST, SECOND, WAITING = (run_id_of(it) for it in ("t#1", "t#2", "w#1"))
NOBODY = "run-0123456789abcdef"


class SqlSite(NamedTuple):
    """A ledger with some runs, and a way to write to its tables directly."""

    url: str
    execute: Callable[..., Any]

    def check(self, *, repair: bool = False) -> CheckReport:
        """Check the ledger alone, as the otherwise empty bucket is reported, too."""
        scope = Scope(MemoryBucket(), FakeClock())
        report = Check([SqlRuns(self.url, mirrored=["story"])], scope).run(repair=repair)
        return report._replace(findings=[it for it in report.findings if it.code != "nothing-here"])


def fill(ledger: Ledger, clock: FakeClock) -> None:
    """Create two ended runs of a task, the second with a retry and an interruption, and one that waits."""
    for number in (1, 2):
        run = claimed(ledger, ledger.create_for_task("t", f"t#{number}", actor="cron", pipeline="story"))
        if number == 2:
            run = claimed(ledger, failed(ledger, run, clock))
            run = claimed(ledger, ledger.move(run, Trigger.PROCESS_RESTART, actor="recovery"))
        ledger.note(run, "remark", {"text": "half of it is done"}, actor="cron")
        ledger.move(run, Trigger.COMPLETED, actor="cron")
    failed(ledger, claimed(ledger, ledger.create_for_task("w", "w#1", actor="robot", pipeline="robot/r")), clock)


def claimed(ledger: Ledger, run: Run) -> Run:
    found = ledger.claim("w", pipeline=run.pipeline)
    assert found
    return found


def failed(ledger: Ledger, run: Run, clock: FakeClock) -> Run:
    clock.sleep(60)
    due = clock.now() + timedelta(seconds=0)
    return ledger.move(run, Trigger.RETRYABLE_ERROR, actor="cron", next_retry_at=due, error_code="ERR_TEMPORARY_X")


def filled(url: str) -> str:
    clock = FakeClock()
    with closing(open_sql_ledger(url, clock)) as ledger:
        fill(ledger, clock)
    return url


@pytest.fixture
def lite(tmp_path: Path) -> SqlSite:
    path = tmp_path / "runs.sqlite3"

    def execute(statement: str, *values: Any) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute(statement, values)

    return SqlSite(filled(f"sqlite:{path}"), execute)


@pytest.fixture
def big(database_url: str) -> SqlSite:
    import psycopg

    def execute(statement: str, *values: Any) -> None:
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute("SET session_replication_role = replica")  # foreign keys are not checked
            connection.execute(statement.replace("?", "%s"), values)

    return SqlSite(filled(database_url), execute)


# --- damage -----------------------------------------------------------------------------------------------------------


class RowDamage(NamedTuple):
    """A row of the table: the damage, and the finding it leads to."""

    name: str
    plant: Callable[[SqlSite], object]
    code: str
    where: str = ""
    repaired: bool = False
    also: tuple[str, ...] = ()
    only: str = ""

    def __str__(self) -> str:
        return self.name


def sql(statement: str, *values: Any) -> Callable[[SqlSite], object]:
    return lambda site: site.execute(statement, *values)


def run(column: str, value: Any, run_id: str = WAITING) -> Callable[[SqlSite], object]:
    return sql(f"UPDATE task_runs SET {column} = ? WHERE run_id = ?", value, run_id)  # noqa: S608


def transition(**fields: Any) -> Callable[[SqlSite], object]:
    """Change the claim of the waiting run."""
    payload = {
        "run_id": WAITING,
        "task_id": "w",
        "previous_status": "queued",
        "status": "running",
        "attempt": 1,
        "idempotency_key": "w#1",
        "next_retry_at": None,
        "error_code": None,
        "actor": "worker",
        **fields,
    }
    return sql("UPDATE events SET payload = ? WHERE run_id = ? AND seq = 2", json.dumps(payload), WAITING)


def spoilt(site: SqlSite) -> None:
    """Overwrite all of the file but its first page."""
    path = Path(site.url.removeprefix("sqlite:"))
    site.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))


DROP = "ALTER TABLE task_runs DROP CONSTRAINT ck_task_runs_crashes"
ORPHAN = "INSERT INTO events SELECT ?, seq, kind, at, trace_id, payload FROM events WHERE run_id = ? AND seq = 1"

UNCOUNTED = ("kept-counts-wrong",)
"""On PostgreSQL the damage bypasses the triggers, so it is not counted either."""

ROWS = [
    RowDamage(
        "no known status", run("run_status", "x"), "run-unreadable", WAITING, only="sqlite", also=("database-damaged",)
    ),
    RowDamage("another's key", run("idempotency_key", "x"), "run-unreadable", WAITING),
    RowDamage("no time", run("updated_at", "soon"), "run-unreadable", WAITING, only="sqlite"),
    RowDamage("no JSON", sql("UPDATE events SET payload = '[]' WHERE run_id = ?", WAITING), "run-unreadable", WAITING),
    RowDamage(
        "an event is gone",
        sql("DELETE FROM events WHERE run_id = ? AND seq = 2", WAITING),
        "run-events-missing",
        WAITING,
    ),
    RowDamage("no events", sql("DELETE FROM events WHERE run_id = ?", WAITING), "run-events-missing", WAITING),
    RowDamage("a transition that is none", transition(status="cancelled"), "run-history-illegal", WAITING),
    RowDamage("a transition of another", transition(task_id="x"), "run-history-illegal", WAITING),
    RowDamage("an attempt that is none", transition(attempt="1"), "run-history-illegal", WAITING),
    RowDamage("a retry where none is due", transition(next_retry_at="2026-01-01T00:00:00Z"), "run-history-illegal"),
    RowDamage("another end", run("run_status", "failed", FIRST), "run-differs", FIRST, also=UNCOUNTED),
    RowDamage("another version", run("version", 9), "run-differs", WAITING),
    RowDamage("retries", run("retries", 7), "run-counts-wrong", WAITING, repaired=True),
    RowDamage("crashes", run("crashes", 7, SECOND), "run-counts-wrong", SECOND, repaired=True),
    RowDamage("last_seq", run("last_seq", 2), "run-counts-wrong", WAITING, repaired=True),
    RowDamage("events of nobody", sql(ORPHAN, NOBODY, FIRST), "events-without-run", "events"),
    RowDamage(
        "a run is gone",
        sql("DELETE FROM task_runs WHERE run_id = ?", FIRST),
        "events-without-run",
        also=("attempts-wrong", "run-numbers-wrong", *UNCOUNTED),
    ),
    RowDamage(
        "a task's attempt",
        run("task_id", "u", FIRST),
        "run-history-illegal",
        also=("attempts-wrong", "run-numbers-wrong"),
    ),
    RowDamage("an index is gone", sql("DROP INDEX ix_task_runs_due"), "database-constraint-missing", "task_runs"),
    RowDamage("a constraint is gone", sql(DROP), "database-constraint-missing", "task_runs", only="postgresql"),
    RowDamage("tables of a newer one", sql("UPDATE retake_schema SET version_num = '9999'"), "database-version"),
    RowDamage("a file that is damaged", spoilt, "database-damaged", only="sqlite"),
]


def assert_sql_found(row: RowDamage, site: SqlSite) -> None:
    assert site.check().findings == []
    row.plant(site)
    report = site.check()
    assert report.complete, report.findings
    those = [it for it in report.findings if it.code == row.code and row.where in it.where]
    assert those, report.findings
    assert {it.code for it in trouble(report)} <= {row.code, *row.also}, report.findings
    repaired = site.check(repair=True)
    mended = {it.code for it in repaired.findings if it.repaired}
    assert mended - set(UNCOUNTED) == ({row.code} if row.repaired else set())
    left = site.check().findings
    assert (left == []) == row.repaired, left


@pytest.mark.parametrize("row", [it for it in ROWS if it.only != "postgresql"], ids=str)
def test_damage_is_found_in_sqlite(row: RowDamage, lite: SqlSite) -> None:
    assert_sql_found(row, lite)


@pytest.mark.parametrize("row", [it for it in ROWS if it.only != "sqlite"], ids=str)
def test_damage_is_found_in_postgresql(row: RowDamage, big: SqlSite) -> None:
    assert_sql_found(row, big)


@pytest.mark.parametrize("claim", [{"status": "cancelled"}, {"previous_status": "succeeded"}])
def test_a_repair_takes_no_counts_from_a_history_that_breaks_the_rules(lite: SqlSite, claim: dict[str, str]) -> None:
    transition(**claim)(lite)
    run("last_seq", 2)(lite)
    report = lite.check(repair=True)
    assert report.done == [f"the last_seq of {WAITING} was counted again"]
    assert [it.code for it in lite.check().findings] == ["run-history-illegal"]


@pytest.mark.parametrize("meanwhile", ["gone", "unreadable", "without events"])
def test_a_repair_of_a_run_that_was_changed_meanwhile_does_nothing(lite: SqlSite, meanwhile: str) -> None:
    statements = {
        "gone": "DELETE FROM task_runs WHERE run_id = ?",
        "unreadable": "UPDATE task_runs SET updated_at = 'soon' WHERE run_id = ?",
        "without events": "DELETE FROM events WHERE run_id = ?",
    }
    lite.execute(statements[meanwhile], WAITING)
    scope = Scope(MemoryBucket(), FakeClock())
    assert SqlRuns(lite.url).repair(CheckView(scope, LiveListing(scope.bucket)), WAITING) == []


# --- counts that triggers keep ----------------------------------------------------------------------------------------

COUNTS = """
    CREATE TABLE IF NOT EXISTS run_counts (scope TEXT, pipeline TEXT, run_status TEXT, slot INTEGER, runs INTEGER);
    DELETE FROM run_counts;
    INSERT INTO run_counts SELECT 'all', '', run_status, 0, count(*) FROM task_runs GROUP BY run_status;
    INSERT INTO run_counts SELECT 'pipeline', pipeline, run_status, 0, 2 + count(*) FROM task_runs
        GROUP BY pipeline, run_status;
    INSERT INTO run_counts SELECT scope, pipeline, run_status, 1, -2 FROM run_counts WHERE scope = 'pipeline';
    CREATE TRIGGER IF NOT EXISTS task_runs_added AFTER INSERT ON task_runs BEGIN SELECT 1; END;
    CREATE TRIGGER IF NOT EXISTS task_runs_moved AFTER UPDATE ON task_runs BEGIN SELECT 1; END;
    CREATE TRIGGER IF NOT EXISTS task_runs_gone AFTER DELETE ON task_runs BEGIN SELECT 1; END;
"""
"""As in the newest tables: the number is the sum over the slots."""


def test_kept_counts_are_compared_and_made_again(lite: SqlSite) -> None:
    with closing(sqlite3.connect(lite.url.removeprefix("sqlite:"))) as connection:
        connection.executescript(COUNTS)
    assert lite.check().findings == []
    lite.execute("UPDATE run_counts SET runs = 5 WHERE run_status = 'succeeded' AND scope = 'all'")
    report = lite.check()
    assert [(it.code, it.where) for it in report.findings] == [("kept-counts-wrong", "run_counts")]
    assert "5 runs" in report.findings[0].what
    assert lite.check(repair=True).done == ["run_counts was counted again"]
    assert lite.check().findings == []
    lite.execute("DROP TRIGGER task_runs_moved")
    assert [it.code for it in lite.check().findings] == ["database-constraint-missing"]


# --- healthy ledgers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lite", "big"])
def test_a_healthy_ledger_has_no_finding(name: str, request: pytest.FixtureRequest) -> None:
    site: SqlSite = request.getfixturevalue(name)
    report = site.check()
    assert (report.findings, report.complete) == ([], True)
    assert (report.looked_at["runs"], report.looked_at["events"]) == (3, 15)


@pytest.mark.parametrize("name", ["lite", "big"])
def test_tables_of_an_older_version_are_noted_and_a_repair_migrates_them(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = f"sqlite:{tmp_path}/old" if name == "lite" else request.getfixturevalue("database_url")
    with monkeypatch.context() as older, closing(open_database(place, read_only=False)) as database:
        older.setattr(schema, "REVISIONS", ("0001",))
        schema.bring_up_to_date(database)
    site = SqlSite(place, print)
    report = site.check()
    assert [(it.code, it.where) for it in report.findings] == [("database-old", redact(place))]
    assert (trouble(report), report.exit_code) == ([], ExitCode.OK)
    [done] = site.check(repair=True).done
    assert done == f"the tables of {redact(place)} were migrated to version {schema.REVISIONS[-1]}"
    assert site.check().findings == []


def test_a_ledger_that_does_not_exist_yet_has_no_finding(tmp_path: Path) -> None:
    assert SqlSite(f"sqlite:{tmp_path}/none", print).check().findings == []
    assert not (tmp_path / "none").exists()


def test_a_server_that_is_away_is_not_looked_at() -> None:
    report = SqlSite("postgresql://ann:secret@127.0.0.1:9/x", print).check()
    assert report.exit_code == ExitCode.TRY_LATER
    assert {it.code for it in report.findings} == {"unreadable"}
    assert "secret" not in str(report)


def test_a_file_that_is_something_else_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"something else" * 1000)
    assert [it.code for it in SqlSite(f"sqlite:{tmp_path}/x", print).check().findings] == ["database-damaged"]


def test_a_story_with_its_ledger_in_a_database_is_whole_after_each_tick(tmp_path: Path) -> None:
    world = World()
    world.settings = world.settings._replace(storage=world.settings.storage._replace(ledger=f"sqlite:{tmp_path}/runs"))
    while len(world.ended) < 1:
        world.tick()
        report = Site(world).check()
        assert [it for it in trouble(report) if it.where.startswith(("run", "sqlite"))] == []
    assert report.looked_at["runs"] == 1


# --- the cost ---------------------------------------------------------------------------------------------------------


def copied(site: SqlSite, first: int, last: int) -> None:
    """Copy the first run and its events as other tasks."""
    with closing(sqlite3.connect(site.url.removeprefix("sqlite:"))) as connection:
        found = connection.execute("SELECT * FROM task_runs WHERE run_id = ?", (FIRST,))
        names = [column[0] for column in found.description]
        whole = dict(zip(names, found.fetchone(), strict=True))
        events = connection.execute("SELECT * FROM events WHERE run_id = ?", (FIRST,)).fetchall()
        insert = f"INSERT INTO task_runs VALUES ({', '.join('?' * len(names))})"  # noqa: S608
        for n in range(first, last):
            own = {"run_id": run_id_of(f"c{n}#1"), "task_id": f"c{n}", "idempotency_key": f"c{n}#1"}
            connection.execute(insert, [*(whole | own).values()])
            for _, seq, kind, at, trace, payload in events:
                text = json.dumps(json.loads(payload) | (own if kind.endswith("changed") else {}))
                row = (own["run_id"], seq, kind, at, trace, text)
                connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", row)
        connection.commit()


def test_memory_does_not_grow_with_the_rows(lite: SqlSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_runs, "FETCH_SIZE", 50)
    peaks = []
    for first, last in ((0, 200), (200, 1400)):
        copied(lite, first, last)
        tries = []
        for _ in range(2):  # the lower count: whatever else is loaded or cached belongs to no row
            tracemalloc.start()
            report = lite.check()
            tries.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            assert (report.findings, report.looked_at["runs"]) == ([], 3 + last)
        peaks.append(min(tries))
    assert peaks[1] < peaks[0] + 500_000, peaks


def test_the_rows_are_read_by_few_statements(lite: SqlSite, monkeypatch: pytest.MonkeyPatch) -> None:
    copied(lite, 0, 500)
    executed: list[str] = []
    opened: list[Database] = []

    def watched(url: str, *, read_only: bool, setting: str) -> Database:
        database = open_database(url, read_only=read_only, setting=setting)
        opened.append(database)
        event.listen(database.engine, "before_cursor_execute", lambda *given: executed.append(given[2]))
        return database

    monkeypatch.setattr(sql_runs, "open_database", watched)
    assert lite.check().looked_at["runs"] == 503
    assert len(executed) < 20, executed
    assert len(opened) < 10


def test_the_ledger_is_not_opened_for_each_channel(lite: SqlSite, monkeypatch: pytest.MonkeyPatch) -> None:
    world, opened = World(), list[str]()

    def watched(url: str, *, read_only: bool, setting: str) -> Database:
        opened.append(url)
        return open_database(url, read_only=read_only, setting=setting)

    for module in (sql_runs, schema):
        monkeypatch.setattr(module, "open_database", watched)
    numbers = []
    for channels in (("en",), ("en", "de", "ru")):
        storage = world.settings.storage._replace(ledger=lite.url)
        settings = world.settings._replace(channels=channels, storage=storage)
        opened.clear()
        assert Site(world, settings=settings).check().looked_at["runs"] == 3
        numbers.append(len(opened))
    assert numbers[0] == numbers[1]
