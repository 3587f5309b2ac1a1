"""The rows that the service and `status` read do not grow with old pipelines. Plans of SQLite without statistics."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rows_world import Rows

from retake.music.survey import calls_since
from retake.music.upkeep import Upkeep
from retake.runs.recovery import Recovery


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(f"sqlite:{tmp_path}/music.db")


def plans(rows: Rows, work: Callable[[], object]) -> list[str]:
    """Return SQLite's plans for the queries that `work` makes."""
    made: list[str] = []
    with rows.database.database.cursor() as cursor:
        cursor.connection.set_trace_callback(made.append)
    work()
    with rows.database.database.cursor() as cursor:
        cursor.connection.set_trace_callback(None)
        queries = [it for it in made if it.startswith("SELECT")]
        return [str(row[-1]) for it in queries for row in cursor.execute(f"EXPLAIN QUERY PLAN {it}").fetchall()]


def test_upkeep_does_not_read_each_pipeline_that_was_ever_cancelled(rows: Rows) -> None:
    for _ in range(3):
        rows.actions.cancel(rows.create().id)
    recovery = Recovery(rows.database.ledger, rows.clock, patience_s=60, pipeline="music")
    found = plans(rows, Upkeep(rows.actions, recovery).look)
    runs = [it for it in found if " task_runs " in it and "pipeline" in it]
    assert any("ix_task_runs" in it for it in runs)
    of_rows = [it for it in found if "pipelines" in it]
    assert len(of_rows) == 1, "the pipelines at work"


def test_upkeep_cancels_each_waiting_run_of_a_cancelled_pipeline(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retake.music.upkeep._PAGE", 2)
    several = [rows.create() for _ in range(5)]
    with monkeypatch.context() as died:
        died.setattr("retake.music.actions.cancel_run", lambda *of: None)
        for it in several:
            rows.actions.cancel(it.id)
    kept = rows.create()
    recovery = Recovery(rows.database.ledger, rows.clock, patience_s=60, pipeline="music")
    Upkeep(rows.actions, recovery).look()
    found = [rows.database.ledger.find(it.run_key) for it in (*several, kept)]
    assert [it and it.status for it in found] == [*["cancelled"] * 5, "queued"]


def test_the_calls_of_a_day_are_found_by_their_day(rows: Rows) -> None:
    def look() -> None:
        with rows.database.reading() as cursor:
            calls_since(cursor, "2026-11-22")

    assert any("ix_paid_calls_day" in it for it in plans(rows, look))
