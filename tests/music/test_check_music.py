"""`retake check` of music: rows, files and their partners compared, on SQLite and PostgreSQL."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rows_world import Rows
from sqlalchemy import NullPool, create_engine, delete, insert, update

from retake.bucket import ANY
from retake.checking import Check, CheckReport, Scope
from retake.music.rows import PipelineRow
from retake.music.tables import messages, paid_calls, pipeline_jobs, pipelines


def checked(rows: Rows) -> CheckReport:
    return Check(rows.operations.examinations(), Scope(rows.bucket, rows.clock)).run()


def filled(rows: Rows) -> PipelineRow:
    """Create a pipeline at work, one that failed, and one with a cover, which is returned."""
    with_cover = rows.create("with a cover")
    attempt = rows.begin()
    rows.pay(attempt, "accepted")
    rows.keep(with_cover, "cover-0.png")
    rows.keep(with_cover, "cover-1.png")
    url = f"/api/music/pipeline/{with_cover.id}/media/cover-1.png"
    rows.attempts.succeed(attempt, {"cover_url": url, "metadata_json": '{"title": "x"}'})
    rows.create("failed")
    rows.fail("PiAPI refused the prompt", "ERR_BUSINESS_REJECTED")
    rows.create("at work")
    rows.begin()
    return rows.actions.get(with_cover.id)


def test_pipelines_need_no_files_yet(rows: Rows) -> None:
    assert [it.code for it in checked(rows).findings] == ["nothing-here"]
    rows.create("at work")
    report = checked(rows)
    assert report.whole
    assert not report.findings
    assert report.looked_at["music_pipelines"] == 1


def change(rows: Rows, statement: Any) -> None:
    """Change something as another program would, on a connection without constraints."""
    engine = rows.database.database.engine
    if engine.dialect.name == "sqlite":
        engine = create_engine(f"sqlite:///{rows.settings.music.database.removeprefix('sqlite:')}", poolclass=NullPool)
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET session_replication_role = replica")
        connection.execute(statement)
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET session_replication_role = DEFAULT")


def set_columns(**values: Any) -> Callable[[Rows, PipelineRow], None]:
    return lambda rows, row: change(rows, update(pipelines).where(pipelines.c.id == row.id).values(values))


def add_call(**values: Any) -> Callable[[Rows, PipelineRow], None]:
    given = {"step": "cover", "take": 1, "price_usd": 0.045, "day": "2026-11-22", **values}
    return lambda rows, row: change(rows, insert(paid_calls).values(pipeline_id=row.id, **given))


def _never_worked_on(rows: Rows, row: PipelineRow) -> None:
    change(rows, update(pipelines).where(pipelines.c.id == row.id).values(state="video_running", run_number=9))
    rows.clock.moment += timedelta(hours=2)


def _never_sent(rows: Rows, row: PipelineRow) -> None:
    rows.settings = rows.settings._replace(music=rows.settings.music._replace(telegram="on"))
    change(
        rows, insert(messages).values(pipeline_id=row.id, event="pending", run_number=77, created_at=rows.clock.now())
    )
    rows.clock.moment += timedelta(minutes=61)


class Planted(NamedTuple):
    """A kind of damage to the pipeline that has a cover, and its code."""

    name: str
    plant: Callable[[Rows, PipelineRow], Any]
    code: str
    where: str = ""

    def __str__(self) -> str:
        return self.name


TABLE = [
    Planted("no such state", set_columns(state="dreaming"), "music-pipeline-invalid"),
    Planted("no JSON", set_columns(metadata_json="{"), "music-pipeline-invalid"),
    Planted("no object", set_columns(review_json="[]"), "music-pipeline-invalid"),
    Planted("a cover is gone", lambda rows, row: rows.bucket.delete("music/1/cover-1.png"), "music-file-missing"),
    Planted(
        "an empty cover", lambda rows, row: rows.bucket.write("music/1/cover-1.png", b"", ANY), "music-file-missing"
    ),
    Planted(
        "an attempt is gone",
        lambda rows, row: change(rows, update(pipeline_jobs).where(pipeline_jobs.c.id == 1).values(attempt=2)),
        "music-attempts-wrong",
    ),
    Planted(
        "two attempts at once",
        lambda rows, row: [
            change(rows, insert(pipeline_jobs).values(pipeline_id=1, step="video", run_number=n)) for n in (8, 9)
        ],
        "music-attempts-wrong",
    ),
    Planted("one task, two bills", add_call(outcome="accepted", answer='"task-1"'), "music-call-billed-twice"),
    Planted("a call before the last is pending", add_call(outcome="pending", id=0), "music-call-not-settled"),
    Planted("no run for hours", _never_worked_on, "music-run-missing", "music-1"),
    Planted(
        "attempts of nobody",
        lambda rows, row: change(rows, insert(pipeline_jobs).values(pipeline_id=999, step="cover", status="failed")),
        "music-rows-without-pipeline",
        "pipeline_jobs",
    ),
    Planted("calls of nobody", lambda rows, row: add_call()(rows, row._replace(id=999)), "music-rows-without-pipeline"),
    Planted("a message waits", _never_sent, "music-message-not-sent"),
    Planted(
        "files of nobody",
        lambda rows, row: rows.bucket.write("music/999/cover-1.png", b"x", ANY),
        "music-files-without-pipeline",
        "music/999/",
    ),
]


def test_whole_rows_have_no_finding(rows: Rows) -> None:
    filled(rows)
    report = checked(rows)
    assert report.findings == []
    assert report.looked_at["music_pipelines"] == 3
    assert (report.looked_at["paid_calls"], report.looked_at["music_files"]) == (1, 2)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_planted_damage_is_found(rows: Rows, row: Planted) -> None:
    row.plant(rows, filled(rows))
    report = checked(rows)
    assert {it.code for it in report.findings} == {row.code}, report.findings
    assert all(it.what and it.todo and row.where in it.where for it in report.findings)


def test_a_deleted_pipeline_leaves_its_rows_and_files(rows: Rows) -> None:
    row = filled(rows)
    change(rows, delete(pipelines).where(pipelines.c.id == row.id))
    codes = [it.code for it in checked(rows).findings]
    assert sorted(codes) == ["music-files-without-pipeline", *["music-rows-without-pipeline"] * 3]


def test_many_pipelines_are_read_page_by_page(rows: Rows) -> None:
    with rows.database.database.engine.begin() as connection:
        connection.execute(insert(pipelines), [{"track_title": "x", "state": "cancelled"} for _ in range(1203)])
    assert checked(rows).looked_at["music_pipelines"] == 1203


def test_without_a_database_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    rows = Rows(f"sqlite:{tmp_path}/music.db")
    rows.settings = rows.settings._replace(music=rows.settings.music._replace(database=f"sqlite:{tmp_path}/none.db"))
    assert [it.code for it in checked(rows).findings] == ["nothing-here"]
    assert not (tmp_path / "none.db").exists()
