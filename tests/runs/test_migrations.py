"""How a database gets the newest tables: from nothing, from an older version, by several processes at once; and that
the migrations create what retake/runs/tables.py declares."""

import ast
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from ledger_shapes import in_state
from sqlalchemy import Connection
from together import at_once

from retake.clock import FakeClock
from retake.errors import StateError
from retake.images import table as images
from retake.music import tables as music
from retake.runs import schema
from retake.runs.database import Database, open_database
from retake.runs.run import Run, run_id_of
from retake.runs.sql_ledger import SqlLedger, open_sql_ledger
from retake.runs.states import RunStatus
from retake.runs.tables import metadata

ROOT = Path(__file__).parents[2]

SECOND = '''"""A migration of a version to come."""

import sqlalchemy as sa
from alembic import op

revision = "9002"
down_revision = "{head}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("task_runs", sa.Column("colour", sa.Text, server_default="blue"))
'''

Url = Callable[[], str]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/runs.db"
    return str(request.getfixturevalue("database_url"))


@pytest.fixture
def reach() -> Iterator[Callable[[str], Database]]:
    reached: list[Database] = []

    def reach(url: str) -> Database:
        reached.append(open_database(url, read_only=False))
        return reached[-1]

    yield reach
    for database in reached:
        database.close()


Reach = Callable[[str], Database]


def test_the_migrations_make_what_the_tables_say(url: str, clock: FakeClock, reach: Reach) -> None:
    open_sql_ledger(url, clock).close()
    with reach(url).engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "version_table": schema.VERSION_TABLE}
        )
        assert compare_metadata(context, metadata) == []


def test_the_very_text_of_the_schema_is_the_same(url: str, clock: FakeClock, reach: Reach) -> None:
    """The text contains the rules of tables and indexes, which Alembic does not compare."""
    open_sql_ledger(url, clock).close()
    database = reach(url)
    with database.engine.connect() as connection:
        migrated = rules(connection)
        for table in ("events", "task_runs", "run_counts", schema.VERSION_TABLE):
            connection.exec_driver_sql(f"DROP TABLE {table}")
        metadata.create_all(connection)
        assert rules(connection) == migrated
    assert len(migrated) > 20


def rules(connection: Connection) -> set[str]:
    """Return every table, constraint, index and trigger in the database's own words, with columns in any order. SQLite
    writes a column that was added later on the line of the previous one."""
    if connection.dialect.name == "sqlite":
        found = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        made = [sql for (sql,) in found if schema.VERSION_TABLE not in sql]
        return {line.strip(" \t") for sql in made for line in re.split(r"\n|,(?![^(]*\))", sql)}
    found = connection.exec_driver_sql("""
        SELECT conname || ': ' || pg_get_constraintdef(oid) FROM pg_constraint
        WHERE conrelid IN ('task_runs'::regclass, 'events'::regclass, 'run_counts'::regclass)
        UNION ALL SELECT indexdef FROM pg_indexes WHERE tablename IN ('task_runs', 'events', 'run_counts')
        UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
        UNION ALL SELECT pg_get_functiondef('count_task_runs'::regproc)
        UNION ALL SELECT concat_ws(' ', table_name, column_name, data_type, is_nullable, column_default)
        FROM information_schema.columns WHERE table_name IN ('task_runs', 'events', 'run_counts')""")
    return {rule for (rule,) in found}


@pytest.mark.parametrize("known", [schema.ledger_schema(), music.SCHEMA, images.SCHEMA])
def test_the_versions_known_are_the_files_that_are_there(known: schema.TableSchema) -> None:
    revisions = [script.revision for script in ScriptDirectory(str(known.migrations)).walk_revisions()]
    assert tuple(reversed(revisions)) == known.revisions


def test_what_is_installed_has_the_migrations_with_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shipped = project["tool"]["setuptools"]["package-data"]["retake"]
    files = [path for path in (ROOT / "retake").rglob("*") if path.suffix in (".py", ".sql")]
    loose = [path for path in files if not (path.parent / "__init__.py").exists()]
    assert loose
    for path in loose:
        assert any(fnmatch(str(path.relative_to(ROOT / "retake")), pattern) for pattern in shipped), path


# --- from one version to the next ----------------------------------------------------------------------------------


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Install a future version, which has one more migration."""

    def install() -> None:
        folder = tmp_path / "migrations of a version to come"
        shutil.copytree(schema.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "versions/9002_colour.py").write_text(SECOND.format(head=schema.REVISIONS[-1]))
        monkeypatch.setattr(schema, "MIGRATIONS", folder)
        monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, "9002"))

    return install


def filled(url: str, clock: FakeClock) -> Run:
    ledger = open_sql_ledger(url, clock)
    run = in_state(ledger, RunStatus.RETRY_SCHEDULED)
    ledger.close()
    return run


def colours(url: str) -> list[str]:
    if url.startswith("sqlite:"):
        connection = sqlite3.connect(url.removeprefix("sqlite:"))
        found = connection.execute("SELECT colour FROM task_runs").fetchall()
        connection.close()
    else:
        with psycopg.connect(url) as server:
            found = server.execute("SELECT colour FROM task_runs").fetchall()
    return [colour for (colour,) in found]


def test_an_older_database_is_brought_up_to_date_and_keeps_its_rows(
    url: str, clock: FakeClock, newer: Callable[[], None], opened: list[SqlLedger]
) -> None:
    run = filled(url, clock)
    newer()
    opened.append(open_sql_ledger(url, clock))
    assert colours(url) == ["blue"]
    assert opened[0].get(run.run_id) == run
    assert len(opened[0].events(run.run_id)) == 3
    clock.sleep(60)
    assert opened[0].claim("w") is not None


def test_what_was_counted_by_events_is_counted_on_the_run(
    url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, opened: list[SqlLedger], reach: Reach
) -> None:
    """From version 0001 to 0002. An actor that PostgreSQL cannot read does not stop it."""
    with monkeypatch.context() as older:
        older.setattr(schema, "REVISIONS", ("0001",))
        schema.bring_up_to_date(reach(url))
    rows: list[tuple[str, str, str]] = [
        *(("retry_scheduled", "running", "worker"), ("running", "retry_scheduled", "worker")) * 3,
        *(("interrupted", "running", "worker"), ("interrupted", "running", "recovery")),
        *(("interrupted", "running", "a\0b"), ("running", "interrupted", "worker")),
    ]
    at = "2026-01-01T00:00:00.000000Z"
    with reach(url).engine.begin() as connection:
        for name in ("a", "b"):
            row = (run_id_of(name), "t", ord(name), name, "queued", at, at, 9, "", None, None, None, None, 2, 9)
            insert(connection, "task_runs", *row)
        for seq, (status, previous, actor) in enumerate(rows, 1):
            payload = json.dumps({"status": status, "previous_status": previous, "actor": actor})
            event = (run_id_of("a"), seq, "run.status.changed", at, "tr", payload)
            insert(connection, "events", *event)
        note = (run_id_of("b"), 1, "run.note", at, "tr", '{"status": "interrupted"}')
        insert(connection, "events", *note)
    opened.append(open_sql_ledger(url, clock))
    counted = {it.idempotency_key: (it.retries, it.crashes, it.resumes) for it in opened[0].runs()}
    assert counted == {"a": (3, 2, 2), "b": (0, 0, 2)}


def insert(connection: Connection, table: str, *values: object) -> None:
    row = ", ".join("NULL" if it is None else repr(it).replace("\\\\", "\\") for it in values)
    connection.exec_driver_sql(f"INSERT INTO {table} VALUES ({row})")  # noqa: S608  our own words


def test_several_who_open_it_at_once_change_it_once(
    url: str, clock: FakeClock, newer: Callable[[], None], opened: list[SqlLedger]
) -> None:
    at_once([lambda: opened.append(open_sql_ledger(url, clock))] * 4)  # from nothing
    run = in_state(opened[0], RunStatus.QUEUED)
    newer()
    at_once([lambda: opened.append(open_sql_ledger(url, clock))] * 4)  # from the previous version
    assert [ledger.get(run.run_id) for ledger in opened] == [run] * 8
    assert colours(url) == ["blue"]


def test_processes_that_open_it_at_once_do_not_collide(url: str, clock: FakeClock, opened: list[SqlLedger]) -> None:
    script = (
        "import sys; from retake.clock import SystemClock; from retake.runs.sql_ledger import open_sql_ledger\n"
        "ledger = open_sql_ledger(sys.argv[1], SystemClock())\n"
        "print(ledger.create_for_task('t', sys.argv[2], actor='cron').attempt)"
    )
    command = [sys.executable, "-W", "error", "-c", script, url]
    started = [subprocess.Popen([*command, f"key {n}"], stdout=subprocess.PIPE, text=True, cwd=ROOT) for n in range(4)]
    attempts = [int(process.communicate(timeout=120)[0]) for process in started]
    assert sorted(attempts) == [1, 2, 3, 4]
    opened.append(open_sql_ledger(url, clock))
    assert len(opened[0].of_task("t")) == 4


def test_a_database_of_a_newer_version_is_refused_and_left_alone(
    url: str, clock: FakeClock, newer: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context():
        known = schema.REVISIONS
        newer()
        filled(url, clock)
    monkeypatch.setattr(schema, "REVISIONS", known)
    for read_only in (False, True):
        with pytest.raises(StateError, match=r"tables are of version 9002.*a newer Retake created them"):
            open_sql_ledger(url, clock, read_only=read_only)
    assert colours(url) == ["blue"]


def test_whoever_only_reads_changes_no_tables(url: str, clock: FakeClock, newer: Callable[[], None]) -> None:
    filled(url, clock)
    newer()
    with pytest.raises(StateError, match=r"version 0003, older than 9002: the next tick .*, `check --repair` at once"):
        open_sql_ledger(url, clock, read_only=True)


def test_a_migration_that_fails_leaves_everything_as_it_was(
    url: str, clock: FakeClock, newer: Callable[[], None], opened: list[SqlLedger]
) -> None:
    run = filled(url, clock)
    newer()
    known = schema.REVISIONS
    path = next(schema.MIGRATIONS.glob("versions/9002*"))
    good = path.read_text()
    path.write_text(good + '    raise ZeroDivisionError("half way")\n')
    with pytest.raises(ZeroDivisionError):
        open_sql_ledger(url, clock)
    schema.REVISIONS = known[:-1]
    opened.append(open_sql_ledger(url, clock))
    assert opened[0].get(run.run_id) == run
    schema.REVISIONS = known
    path.write_text(good)
    opened.append(open_sql_ledger(url, clock))
    assert opened[1].get(run.run_id) == run
    assert colours(url) == ["blue"]


def test_what_is_up_to_date_is_opened_without_alembic(url: str, clock: FakeClock) -> None:
    filled(url, clock)
    script = (
        "import sys; from retake.clock import SystemClock; from retake.runs.sql_ledger import open_sql_ledger\n"
        "open_sql_ledger(sys.argv[1], SystemClock()).counts()\n"
        "assert 'sqlalchemy' in sys.modules and 'alembic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, url], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("known", "types"),
    [(schema.ledger_schema(), {"UtcDateTime"}), (music.SCHEMA, {"UtcDateTime"}), (images.SCHEMA, set())],
)
def test_a_migration_imports_no_rule_that_may_change(known: schema.TableSchema, types: set[str]) -> None:
    """It says what the tables were then; from the project it may import only column types."""
    for path in known.migrations.glob("versions/*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        ours = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "retake" in (node.module or "")]
        assert {alias.name for node in ours for alias in node.names} <= types
