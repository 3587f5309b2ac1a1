"""An unusable database: the messages, and that nothing is half done."""

import os
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from forking import forking
from ledger_shapes import in_state, step
from postgres import FAST, new_database, server

from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock
from retake.errors import LedgerUnavailable, SettingsError, StorageError, StorageKeyRefused
from retake.runs import database as retake_database
from retake.runs import open_ledger
from retake.runs.database import in_words, open_database
from retake.runs.sql_ledger import SqlLedger, open_sql_ledger
from retake.runs.states import RunStatus, Trigger

Open = Callable[..., SqlLedger]


@pytest.fixture
def opening(clock: FakeClock, opened: list[SqlLedger]) -> Open:
    def opening(url: str, **more: Any) -> SqlLedger:
        opened.append(open_sql_ledger(url, clock, **more))
        return opened[-1]

    return opening


@contextmanager
def closed_port() -> Iterator[int]:
    """Yield a port that refuses connections; it is taken, so that nobody else can listen there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])


# --- addresses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:",
        "sqlite::memory:",
        "sqlite:a\0b",
        "postgresql://host:port/runs",
        "postgresql:runs",
        "mysql://root@host/runs",
        "postgres://me@host/runs",
        "runs.db",
        "",
    ],
)
def test_what_names_no_database_is_an_error_of_the_settings(url: str, clock: FakeClock) -> None:
    with pytest.raises(SettingsError, match=r"STORAGE\.ledger: .*; use .*(sqlite:PATH|postgresql://)"):
        open_ledger(url, MemoryBucket(MemoryStore()), clock)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@127.0.0.1:{port}/runs",
        "postgresql://me:s3cret@host:port/runs",
        "postgres://me:s3cret@h/d",
    ],
)
def test_a_password_in_the_url_is_never_repeated(url: str, clock: FakeClock) -> None:
    with closed_port() as port, pytest.raises((SettingsError, StorageError)) as caught:
        open_ledger(url.format(port=port), MemoryBucket(MemoryStore()), clock)
    assert "s3cret" not in str(caught.value)


def test_a_url_opens_the_ledger_that_it_names(tmp_path: Path, clock: FakeClock, opened: list[SqlLedger]) -> None:
    ledger = open_ledger(f"sqlite:{tmp_path}/a folder/50%? #1.db", MemoryBucket(MemoryStore()), clock)
    assert isinstance(ledger, SqlLedger)
    opened.append(ledger)
    assert in_state(ledger, RunStatus.QUEUED) == ledger.runs()[0]
    assert (tmp_path / "a folder/50%? #1.db").exists()


# --- SQLite --------------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_a_database_is_left_alone(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes\n" * 100)
    with pytest.raises(StorageError, match=r"not a database. The file is something else"):
        open_sql_ledger(f"sqlite:{path}", clock)
    assert path.read_text() == "these are my notes\n" * 100


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"its folder cannot be created \(.*Correct STORAGE\.ledger"):
        open_sql_ledger(f"sqlite:{tmp_path}/file/runs.db", clock)
    for read_only in (False, True):
        with pytest.raises(StorageError, match=r"that is a folder\. Name a file in STORAGE\.ledger"):
            open_sql_ledger(f"sqlite:{tmp_path}", clock, read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_path_that_is_no_text_of_a_file_system_is_refused(tmp_path: Path, clock: FakeClock, read_only: bool) -> None:
    with pytest.raises(SettingsError, match="names no file"):
        open_sql_ledger(f"sqlite:{tmp_path}/\ud800.db", clock, read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_path_that_is_too_long_is_not_a_bug(tmp_path: Path, clock: FakeClock, read_only: bool) -> None:
    with pytest.raises(StorageError, match=r"File name too long\. Check the path in STORAGE\.ledger"):
        open_sql_ledger(f"sqlite:{tmp_path}/{'a' * 300}.db", clock, read_only=read_only)


def test_a_path_may_have_octets_that_are_no_text(tmp_path: Path, opening: Open) -> None:
    ledger = opening(f"sqlite:{tmp_path}/\udcff.db")
    assert ledger.runs() == []
    assert [os.fsencode(path.name) for path in tmp_path.glob("*.db")] == [b"\xff.db"]


def test_a_writer_who_does_not_end_is_waited_for_and_then_named(
    tmp_path: Path, opening: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retake_database, "BUSY_S", 0.05)
    ledger = opening(f"sqlite:{tmp_path}/runs.db")
    run = in_state(ledger, RunStatus.RUNNING)
    other = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match=r"locked\. Another process"):
        step(ledger, run, Trigger.COMPLETED)
    assert ledger.get(run.run_id) == run  # readers do not wait
    other.execute("ROLLBACK")
    other.close()
    assert step(ledger, run, Trigger.COMPLETED).ended


def test_a_write_waits_for_the_one_before_it(tmp_path: Path, opening: Open) -> None:
    ledger = opening(f"sqlite:{tmp_path}/runs.db")
    run = in_state(ledger, RunStatus.RUNNING)
    other = sqlite3.connect(tmp_path / "runs.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    asked = threading.Event()

    def let_go() -> None:
        asked.wait()
        other.execute("ROLLBACK")

    thread = threading.Thread(target=let_go)
    thread.start()
    asked.set()
    assert step(ledger, run, Trigger.COMPLETED).ended
    thread.join()
    other.close()


@pytest.mark.parametrize(
    ("error", "advice"), [("disk is full", "Free some space"), ("disk I/O error", "Free some space on its disk")]
)
def test_an_error_in_the_middle_leaves_neither_transition_nor_event(
    error: str, advice: str, tmp_path: Path, opening: Open
) -> None:
    ledger = opening(f"sqlite:{tmp_path}/runs.db")
    run = in_state(ledger, RunStatus.RUNNING)
    other = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
    other.execute(f"CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, '{error}'); END")
    with pytest.raises(StorageError, match=rf"{error}\. {advice}"):
        step(ledger, run, Trigger.COMPLETED)
    assert ledger.get(run.run_id) == run
    other.execute("DROP TRIGGER full")
    other.close()
    step(ledger, run, Trigger.COMPLETED)
    assert [event.seq for event in ledger.events(run.run_id)] == [1, 2, 3]


def test_what_cannot_be_written_leaves_the_connection_usable(tmp_path: Path, opening: Open) -> None:
    ledger = opening(f"sqlite:{tmp_path}/runs.db")
    run = in_state(ledger, RunStatus.RUNNING)
    with pytest.raises(ValueError, match=r"payload\.a: is not JSON"):
        ledger.note(run, "run.note", {"a": object()}, actor="cron")
    assert ledger.note(run, "run.note", {}, actor="cron").seq == 3


# --- reading only --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/runs/runs.db"
    return str(request.getfixturevalue("database_url"))


def test_reading_where_nothing_is_finds_nothing_and_makes_nothing(url: str, tmp_path: Path, opening: Open) -> None:
    for _ in range(2):
        ledger = opening(url, read_only=True)
        assert (ledger.runs(), ledger.counts()[RunStatus.QUEUED], ledger.find("t#1")) == ([], 0, None)
        with pytest.raises(StorageError, match="open it read-only"):
            ledger.create_for_task("t", "t#1", actor="cron")
    assert list(tmp_path.iterdir()) == []


def test_whoever_reads_only_sees_everything_and_changes_nothing(url: str, opening: Open) -> None:
    run = in_state(opening(url), RunStatus.RUNNING)
    reader = opening(url, read_only=True)
    assert reader.runs() == [run]
    for change in (
        lambda: reader.create_for_task("t", "t#2", actor="operator"),
        lambda: step(reader, run, Trigger.COMPLETED),
        lambda: reader.note(run, "run.note", {}, actor="operator"),
        lambda: reader.heartbeat(run),
    ):
        with pytest.raises(StorageError, match="open it read-only"):
            change()
    assert reader.runs() == [run]
    assert len(reader.events(run.run_id)) == 2


# --- PostgreSQL ----------------------------------------------------------------------------------------------------


def test_a_missing_server_is_an_error_of_the_store(clock: FakeClock) -> None:
    refusal = r"postgresql://me@127\.0\.0\.1:\d+/runs: .*Check that the server is running"
    with closed_port() as port, pytest.raises(StorageError, match=refusal):
        open_sql_ledger(f"postgresql://me@127.0.0.1:{port}/runs", clock)


def test_an_unknown_option_is_not_an_absent_server(clock: FakeClock) -> None:
    with pytest.raises(StorageError, match=r'option "zz"\. Correct or leave out what stands after the \? in MY_LEDGER'):
        open_sql_ledger("postgresql://u@127.0.0.1:1/d?zz=1", clock, setting="MY_LEDGER")


def test_a_missing_database_is_named(postgres: str, clock: FakeClock) -> None:
    with pytest.raises(StorageError, match=r'database "nothing" does not exist. Create it \(createdb'):
        open_sql_ledger(f"{postgres}nothing", clock)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_removed_table_is_not_blamed_on_a_missing_database(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, opening: Open
) -> None:
    postgres = kind == "postgres"
    url = request.getfixturevalue("database_url") if postgres else f"sqlite:{tmp_path}/runs.db"
    ledger = opening(url)
    connection: Any = psycopg.connect(url) if postgres else sqlite3.connect(f"{tmp_path}/runs.db")
    connection.execute("DROP TABLE events")
    connection.commit()
    connection.close()
    with pytest.raises(StorageError, match=r"events.*Somebody has removed a table: restore a backup, or name an empty"):
        ledger.create_for_task("t", "t#1", actor="cron")


def test_a_connection_that_was_cut_is_an_error_once(database_url: str, opening: Open) -> None:
    ledger = opening(database_url)
    run = in_state(ledger, RunStatus.RUNNING)
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                      "AND datname = current_database()")  # fmt: skip
    with pytest.raises(StorageError):
        step(ledger, run, Trigger.COMPLETED)
    assert ledger.get(run.run_id) == run
    assert step(ledger, run, Trigger.COMPLETED).ended


@pytest.mark.parametrize(("query", "limit_ms"), [("", 60_000), ("?tcp_user_timeout=5000", 5_000)])
def test_a_host_that_vanishes_is_given_up_in_a_minute_or_when_the_url_says(
    database_url: str, query: str, limit_ms: int
) -> None:
    database = open_database(f"{database_url}{query}", read_only=True)
    with database.cursor() as cursor, socket.socket(fileno=os.dup(cursor.connection.fileno())) as connection:
        tcp = [connection.getsockopt(socket.IPPROTO_TCP, it) for it in (socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE)]
        kept_alive = connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    database.close()
    assert (tcp, bool(kept_alive)) == ([limit_ms, 30], True)


def test_a_server_that_sends_nothing_is_given_up_and_one_that_is_slow_is_not(database_url: str) -> None:
    database = open_database(database_url, read_only=False, answer_s=1)
    with pytest.raises(LedgerUnavailable, match=r"no answer for 1 s.*pg_isready"), database.transaction() as cursor:
        cursor.execute("SELECT pg_sleep(60)")
    with database.cursor() as cursor:
        cursor.execute("SELECT repeat('x', 20000), pg_sleep(0.3) FROM generate_series(1, 5)")
        assert len(cursor.fetchall()) == 5
    database.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_processes_that_are_forked_share_a_ledger_and_no_connection(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, opening: Open
) -> None:
    program = """
from retake.runs import open_ledger

ledger = open_ledger(sys.argv[1])
for number in range(30):
    ledger.create_for_task(f"t{number}", f"t{number}#1", actor="cron")

def claim_all(worker):
    while ledger.claim(worker):
        pass

in_both(claim_all)
"""
    url = request.getfixturevalue("database_url") if kind == "postgres" else f"sqlite:{tmp_path}/runs.db"
    assert forking(program, url) == ""
    assert {(run.status, run.version) for run in opening(url).runs()} == {(RunStatus.RUNNING, 2)}


def test_a_fork_that_ends_takes_no_connection_of_its_parent_along(database_url: str) -> None:
    program = """
from retake.runs import open_ledger

ledger = open_ledger(sys.argv[1])
run = ledger.create_for_task("t", "t#1", actor="cron")
if os.fork():
    os.wait()
print(ledger.get(run.run_id).status)
"""
    assert forking(program, database_url) == "queued\n" * 2


def test_a_user_who_may_not_make_tables_is_told_what_to_grant(database_url: str, clock: FakeClock) -> None:
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute("DROP ROLE IF EXISTS guest")
        owner.execute("CREATE ROLE guest LOGIN")
        owner.execute("REVOKE ALL ON SCHEMA public FROM public")
        owner.execute("GRANT USAGE ON SCHEMA public TO guest")
    with pytest.raises(StorageError, match=r"permission denied for schema public.*GRANT CREATE"):
        open_sql_ledger(database_url.replace("retake@", "guest@"), clock)


@pytest.fixture(scope="module")
def guarded(postgres: str) -> Iterator[str]:
    """Start a server that requires a password."""
    with server(*FAST) as base:
        url = new_database(base)
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute("ALTER ROLE retake PASSWORD 'right'")
            ((rules,),) = owner.execute("SHOW hba_file")
            Path(rules).write_text("host all all 127.0.0.1/32 scram-sha-256\n")
            owner.execute("SELECT pg_reload_conf()")
        yield url


def test_the_password_comes_from_the_environment(
    guarded: str, clock: FakeClock, opening: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("PGPASSFILE", os.devnull)
    for wrong in (None, "wrong"):
        if wrong:
            monkeypatch.setenv("PGPASSWORD", wrong)
        with pytest.raises(StorageKeyRefused, match="Give the password in PGPASSWORD"):
            open_sql_ledger(guarded, clock)
    monkeypatch.setenv("PGPASSWORD", "right")
    assert opening(guarded).runs() == []


def test_an_error_of_the_driver_is_reported_without_its_secrets() -> None:
    error = in_words(sqlite3.OperationalError("could not reach postgresql://me:s3cret@host/runs\n  at all"), "x")
    assert "s3cret" not in str(error)
    assert "\n" not in str(error)


def test_a_message_that_ends_with_a_question_ends_once() -> None:
    error = in_words(psycopg.OperationalError("connection refused\n\tIs the server running?"), "x")
    assert "Is the server running? Check that" in str(error)
    assert "locked. Another process" in str(in_words(sqlite3.OperationalError("database is locked"), "x"))
