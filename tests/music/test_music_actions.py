"""What people may do with a pipeline in each state, and where a retry continues."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from rig import FOLLOWING, Rig
from sqlalchemy import insert, text, update

from retake.errors import StateError, StorageError
from retake.music.calls import CallBook
from retake.music.rows import PaidCall
from retake.music.states import STATES, MusicStep
from retake.music.steps import STEP_WORK
from retake.music.tables import pipeline_jobs, pipelines
from retake.operations.port import Refusal
from retake.runs.sql_ledger import SqlLedger
from retake.testing.vendors import Died


@pytest.mark.parametrize("reason", ["thumb: no picture", "thumb", "thumb: a: b"])
def test_a_row_without_attempts_is_retried_at_the_step_its_reason_names(rig: Rig, reason: str) -> None:
    row = rig.insert(track_title="x", audio="demo.wav", state="failed", failed_reason=reason)
    assert rig.actions.retry(row.id).state == "thumb_running"


def test_the_last_failed_attempt_counts_before_the_reason(rig: Rig) -> None:
    row = rig.insert(track_title="x", audio="demo.wav", state="failed", failed_reason="cover: no")
    with rig.database.transaction() as cursor:
        for step, status in (("thumb", "failed"), ("meta", "failed"), ("review", "succeeded")):
            cursor.change(insert(pipeline_jobs).values(pipeline_id=row.id, step=step, status=status))
    assert rig.actions.retry(row.id).state == "meta_running"


@pytest.mark.parametrize("reason", [None, "", "no step", "covers: no", "Publish: no"])
def test_where_no_step_is_on_record_a_retry_is_refused(rig: Rig, reason: str | None) -> None:
    row = rig.insert(track_title="x", audio="demo.wav", state="failed", failed_reason=reason)
    with pytest.raises(Refusal, match=r"\(state=failed\)$"):
        rig.actions.retry(row.id)


def test_a_row_that_another_program_has_inserted_is_worked_on(rig: Rig) -> None:
    row = rig.insert(track_title="Paper Boats", audio="demo.wav")
    rig.settle()
    assert rig.get(row).state == "cover_pending"


def test_what_another_program_has_cancelled_is_not_paid_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    row, before, begin = rig.create(), rig.billed("imagine"), CallBook.begin

    def cancelled(*call: Any) -> PaidCall:
        with rig.database.transaction() as cursor:
            cursor.change(update(pipelines).where(pipelines.c.id == row.id).values(state="cancelled"))
        return begin(*call)

    monkeypatch.setattr(CallBook, "begin", cancelled)
    rig.work()
    assert rig.get(row).state == "cancelled"
    assert rig.billed("imagine") == before


def test_a_step_that_another_program_begins_anew_uses_what_is_paid_for(rig: Rig) -> None:
    row = rig.create()
    rig.settle()
    before = rig.billed("imagine")
    with rig.database.transaction() as cursor:  # though its run has ended
        cursor.change(update(pipelines).where(pipelines.c.id == row.id).values(state="cover_running"))
    rig.settle()
    assert rig.get(row).state == "cover_pending"
    assert rig.get(row).run_number == row.run_number + 1
    assert rig.billed("imagine") == before


def test_a_time_without_a_zone_that_another_program_has_written_is_utc(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = {"track_title": "Paper Boats", "audio": "demo.wav", "created_at": text("'2026-11-22 12:30:00'")}
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        row = rig.insert(**written)
    time.tzset()
    assert row.created_at == datetime(2026, 11, 22, 12, 30, tzinfo=UTC)


def test_a_value_of_another_program_that_is_not_a_time_is_named_with_its_row(rig: Rig) -> None:
    with rig.database.database.cursor() as cursor:
        cursor.execute("INSERT INTO pipelines (track_title, updated_at) VALUES ('Paper Boats', 'at noon')")
    with pytest.raises(
        StateError, match=r"pipelines\.updated_at in the row that begins with '1': 'at noon' is invalid"
    ):
        rig.actions.get(1)


@pytest.mark.parametrize(
    ("step", "values", "said"),
    [
        ("thumb", {"cover_url": "/api/music/pipeline/1/media/.."}, "the cover is not on record: its column has '..'"),
        ("thumb", {"cover_url": "y" * 2000}, "the cover is not on record: its column has 'yyy"),
        ("video", {"audio": "y" * 2000}, "MUSIC.audio_folder has no yyy"),
    ],
)
def test_a_row_of_another_program_with_a_name_that_no_file_can_have_fails_by_name(
    rig: Rig, step: str, values: dict[str, str], said: str
) -> None:
    row = rig.begun(step)
    rig.actions.change(row.id, lambda cursor, now: values)
    rig.settle()
    failed = rig.get(row)
    assert failed.state == "failed"
    assert failed.failed_reason
    assert said in failed.failed_reason
    assert rig.attempts(row)[0][2] == "ERR_BUSINESS_MISSING"


def test_what_is_saved_is_done_though_its_run_is_created_only_later(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **named: Any) -> Any:
        raise StorageError("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(SqlLedger, "create_for_task", away)
        row = rig.create()  # an error would lead to a second, paid creation
    rig.settle()
    with monkeypatch.context() as patch:
        patch.setattr(SqlLedger, "create_for_task", away)
        assert rig.actions.feedback(row.id, "more blue").state == "cover_running"
    with monkeypatch.context() as patch:
        patch.setattr(SqlLedger, "find", away)
        assert rig.actions.cancel(row.id).state == "cancelled"


@pytest.mark.parametrize("began", [True, False])
def test_a_step_that_kills_four_workers_fails(rig: Rig, monkeypatch: pytest.MonkeyPatch, began: bool) -> None:
    """They die in the step or before it has begun: it is that step which failed."""
    rig.sandbox.order("imagine#1=task-failed")
    row = rig.create()
    rig.settle()
    assert [it[:2] for it in rig.attempts(row)] == [(1, "failed"), (2, "succeeded")]

    def dies(*_: Any) -> Any:
        raise Died

    with monkeypatch.context() as patch:
        if began:
            patch.setitem(STEP_WORK, MusicStep.VIDEO, dies)
        else:
            patch.setattr("retake.music.attempts.AttemptStore.begin", dies)
        rig.actions.approve(row.id)
        deaths = 0
        for _ in range(6):
            try:
                rig.settle()
            except Died:
                deaths += 1
    rig.settle()
    assert deaths == 4
    failed = rig.get(row)
    assert failed.state == "failed"
    assert (failed.failed_reason or "").startswith("video: ")
    assert "running" not in {status for _, status, _ in rig.attempts(row)}
    assert rig.attempts(row)[-1][1:] == ("failed", "ERR_TEMPORARY_SCRIPT_DIED")
    assert rig.actions.retry(row.id).state == "video_running"


# --- states and actions ---------------------------------------------------------------------------------------------

ACTIONS: dict[str, Callable[[Rig, int], Any]] = {
    "approve": lambda rig, number: rig.actions.approve(number),
    "feedback": lambda rig, number: rig.actions.feedback(number, "again"),
    "publish": lambda rig, number: rig.actions.publish(number),
    "cancel": lambda rig, number: rig.actions.cancel(number),
    "retry": lambda rig, number: rig.actions.retry(number),
    "retry_again": lambda rig, number: rig.actions.retry(number, again=True),
    "resolve": lambda rig, number: rig.actions.resolve(number, "abcdefghijk"),
    "again": lambda rig, number: rig.actions.again(number),
}


def _expected(state: str, action: str) -> str | None:
    """Return the state that follows according to the contract, None if the action is refused."""
    step, _, phase = state.rpartition("_")
    pending = phase == "pending"
    final = state in ("published", "cancelled")
    return {
        "approve": f"{FOLLOWING[step]}_running" if pending else None,
        "feedback": f"{step}_running" if pending else None,
        "publish": "publish_running" if state == "review_pending" else None,
        "cancel": None if final or state == "publish_running" else "cancelled",
        "retry": "publish_running" if state == "failed" else None,
        "retry_again": None,  # an upload is only ever continued
        "resolve": "published" if state == "awaiting_manual" else None,
        "again": "publish_running" if state == "awaiting_manual" else None,
    }[action]


def test_every_action_in_every_state(rig: Rig) -> None:
    for state in STATES:
        for action, act in ACTIONS.items():
            row = rig.insert(track_title="x", audio="demo.wav", state=state, failed_reason="publish: no")
            expected = _expected(state, action)
            if expected is None:
                with pytest.raises(Refusal, match=rf"\(state={state}\)$"):
                    act(rig, row.id)
                assert rig.get(row) == row, (state, action)
            else:
                act(rig, row.id)
                assert rig.get(row).state == expected, (state, action)


@pytest.mark.parametrize("action", ["approve", "feedback"])
def test_another_step_than_the_pending_one_is_refused(rig: Rig, action: str) -> None:
    row = rig.before("thumb")
    act = rig.actions.approve if action == "approve" else lambda number, step: rig.actions.feedback(number, "x", step)
    for step in ("cover", "thumb", "publish"):
        with pytest.raises(Refusal, match=r"\(state=video_pending\)$"):
            act(row.id, step)
    act(row.id, "video")
    assert re.fullmatch(r"(thumb|video)_running", rig.get(row).state)
