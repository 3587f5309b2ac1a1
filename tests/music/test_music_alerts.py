"""Problems of music become alerts, which close once they are solved."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import NoReturn

import pytest
from rows_world import START, Rows
from sqlalchemy import text

from retake.alerts.conditions import Condition
from retake.alerts.store import BoardStore
from retake.clock import stamp
from retake.errors import StorageError
from retake.music.alerts import BOARD_EVERY_S, EVERY_S, MusicWatch, findings
from retake.music.attempts import CAP_REACHED
from retake.music.background import alerts_loop
from retake.music.operations import vendors_of
from retake.music.states import MusicStep
from retake.music.survey import Survey, Trouble, survey
from retake.operations.kpi import KpiReader, KpiReport
from retake.testing.logs import CapturedLogs
from retake.ticking.watch import BoardDocument


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Rows]:
    world = Rows(f"sqlite:{tmp_path}/music.db", daily_cap_usd=1.0)
    yield world
    world.database.close()


def found(rows: Rows) -> dict[str, Condition]:
    with rows.database.reading() as cursor:
        look = findings(survey(cursor), vendors_of(rows.settings), rows.clock.now())
    assert look.pipeline == "music"
    assert {it.code for it in look.found} <= look.codes
    return {it.key: it for it in look.found}


def test_nothing_is_wrong_with_what_is_at_work_or_waits_for_a_yes(rows: Rows) -> None:
    rows.create()
    rows.succeed()
    rows.create()
    assert found(rows) == {}


def test_a_failed_pipeline_names_step_and_command(rows: Rows) -> None:
    rows.create()
    rows.fail("PiAPI refused the prompt", "ERR_BUSINESS_REJECTED")
    [(key, it)] = found(rows).items()
    assert (key, it.code, it.level) == ("generation_failed/cover", "generation_failed", "error")
    assert (it.title, it.command) == ("A pipeline failed at cover", "python -m retake music retry 1")
    assert (it.generation_id, it.step, it.error_class) == ("music-1", "cover", "B")
    assert it.message == "PiAPI refused the prompt"


def test_pipelines_that_fail_at_one_step_are_one_alert(rows: Rows) -> None:
    for _ in range(3):
        rows.create()
        rows.fail("no", "ERR_BUSINESS_REJECTED")
        rows.clock.sleep(1)
    rows.at(rows.create(), MusicStep.META)
    rows.fail("no", "ERR_BUSINESS_REJECTED")
    conditions = found(rows)
    assert set(conditions) == {"generation_failed/cover", "generation_failed/meta"}
    cover = conditions["generation_failed/cover"]
    assert (cover.generation_id, cover.follows) == (
        "music-3",
        "Everything before it is kept. 3 pipelines wait for a retry.",
    )


@pytest.mark.parametrize(
    ("step", "code", "key"),
    [
        (MusicStep.COVER, "ERR_CRITICAL_OUT_OF_CREDIT", "refused/piapi"),
        (MusicStep.REVIEW, "ERR_CRITICAL_UNAUTHORIZED", "refused/chat API"),
        (MusicStep.PUBLISH, "ERR_CRITICAL_OUT_OF_CREDIT", "refused/YouTube"),
    ],
)
def test_what_a_vendor_refuses_is_critical(rows: Rows, step: MusicStep, code: str, key: str) -> None:
    rows.at(rows.create(), step)
    rows.fail("the key is refused", code)
    conditions = found(rows)
    assert set(conditions) == {key, f"generation_failed/{step}"}
    assert (conditions[key].code, conditions[key].level) == ("refused", "critical")


def test_an_upload_of_unknown_outcome_waits_for_a_decision(rows: Rows) -> None:
    rows.at(rows.create(), MusicStep.PUBLISH)
    rows.await_person("the session is gone")
    [(key, it)] = found(rows).items()
    assert (key, it.level) == ("outcome_unknown/publish", "error")
    assert it.command == "python -m retake music resolve 1 VIDEO_ID, or 1 --again"
    assert found_after(rows, lambda: rows.actions.resolve(1, "dQw4w9WgXcQ")) == {}


def test_a_call_of_unknown_outcome_that_is_made_again_is_a_warning(rows: Rows) -> None:
    rows.create()
    attempt = rows.begin()
    rows.pay(attempt, "lost")
    [(key, it)] = found(rows).items()
    assert (key, it.level) == ("outcome_unknown/cover", "warning")
    rows.attempts.succeed(attempt, {})
    assert found(rows) == {}


def test_a_step_that_the_cap_holds_back_is_reported_once_a_day(rows: Rows) -> None:
    rows.create()
    rows.held_back()
    [(key, it)] = found(rows).items()
    assert (key, it.code, it.occurrence) == ("cap_reached/music", "cap_reached", "2026-11-22")
    assert "1.000 of 1.000 USD" in it.message
    rows.clock.moment += timedelta(days=1)
    assert found(rows) == {}, "it is being retried, with an open outcome"
    again = rows.attempts.begin(rows.database.ledger.runs()[0])
    assert again
    rows.attempts.interrupt(again, it.message, CAP_REACHED)
    assert found(rows)[key].occurrence == "2026-11-23"


def test_a_row_of_another_program_without_attempts_is_reported_too() -> None:
    trouble = Trouble(7, "Paper Boats", "", "music-7", START, "", None)
    [it] = findings(Survey({}, failed=(trouble,)), {}, START).found
    assert (it.key, it.title, it.error_code) == ("generation_failed/unknown", "A pipeline failed", None)


def found_after(rows: Rows, act: object) -> dict[str, Condition]:
    assert callable(act)
    act()
    return found(rows)


# --- the watch --------------------------------------------------------------------------------------------------------


def watch_of(rows: Rows) -> MusicWatch:
    return MusicWatch(rows.settings, rows.database, rows.bucket, rows.clock, {})


def active(rows: Rows) -> dict[str, str]:
    board = BoardStore(rows.bucket, rows.clock).read()
    return {it.key: it.state for it in board.alerts.values() if it.active}


@pytest.mark.parametrize("way", ["retry", "cancel"])
def test_an_alert_lasts_until_the_pipeline_is_retried_or_cancelled(rows: Rows, way: str) -> None:
    rows.create()
    rows.fail("no", "ERR_BUSINESS_REJECTED")
    watch = watch_of(rows)
    assert watch.look()
    assert set(active(rows)) == {"generation_failed/cover"}
    getattr(rows.actions, way)(1)
    assert watch.look()
    assert active(rows) == {}


def test_the_board_is_looked_at_when_something_changes_and_once_a_minute(rows: Rows) -> None:
    watch = watch_of(rows)
    assert watch.look()
    assert not watch.look()
    rows.create()
    rows.fail("no", "ERR_BUSINESS_REJECTED")
    assert watch.look()
    assert not watch.look()
    rows.clock.sleep(BOARD_EVERY_S)
    assert watch.look()


def test_a_clock_that_was_set_back_keeps_no_look_at_the_board_back(rows: Rows) -> None:
    watch = watch_of(rows)
    assert watch.look()
    rows.clock.moment -= timedelta(hours=3)
    assert watch.look()
    assert not watch.look()


def test_two_processes_raise_one_alert(rows: Rows) -> None:
    rows.create()
    rows.fail("no", "ERR_BUSINESS_REJECTED")
    for watch in (watch_of(rows), watch_of(rows)):
        watch.look()
    [alert] = BoardStore(rows.bucket, rows.clock).read().alerts.values()
    assert (alert.occurrences, alert.pipelines) == (1, ["music"])


def test_bad_rates_are_an_alert_of_music(rows: Rows) -> None:
    for _ in range(12):
        rows.create()
        rows.fail("no", "ERR_BUSINESS_REJECTED")
    watch_of(rows).look()
    board = BoardStore(rows.bucket, rows.clock).read()
    assert board.alerts["kpi"].pipelines == ["music"]
    assert not BoardDocument.read(rows.bucket).shared_alerts  # which a tick of the story would have to read
    assert rows.bucket.list("kpi/")


def test_figures_that_cannot_be_counted_keep_no_alert_back(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_long(reader: KpiReader) -> KpiReport:
        raise StorageError("canceling statement due to statement timeout")

    monkeypatch.setattr(KpiReader, "report", too_long)
    rows.create()
    rows.fail("no", "ERR_BUSINESS_REJECTED")
    with CapturedLogs() as log:
        assert watch_of(rows).look()
    assert set(active(rows)) == {"generation_failed/cover"}
    assert "statement timeout" in log.warnings[0]


def test_a_database_that_stays_away_is_reported_and_other_alerts_stay(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> NoReturn:
        raise StorageError("the database does not answer")

    rows.create()
    rows.fail("no", "ERR_BUSINESS_REJECTED")
    watch = watch_of(rows)
    watch.look()
    with monkeypatch.context() as patch:
        patch.setattr(rows.database, "reading", away)
        assert watch.look()
        assert active(rows) == {"generation_failed/cover": "open", "ledger_unavailable/music": "open"}
        rows.clock.sleep(rows.settings.alerts.group_seconds)
        assert watch.look()
        alert = BoardStore(rows.bucket, rows.clock).read().alerts["ledger_unavailable/music"]
        assert (alert.message, alert.told_at) == ("the database does not answer", stamp(rows.clock.now()))
    assert watch.look()
    assert set(active(rows)) == {"generation_failed/cover"}


def test_a_database_that_can_only_be_read_is_reported_until_it_can_be_written(rows: Rows) -> None:
    rows.create()
    rows.fail("no", "ERR_BUSINESS_REJECTED")
    watch = watch_of(rows)
    watch.look()
    with rows.database.transaction() as cursor:
        full = "CREATE TRIGGER full BEFORE UPDATE ON service_leases BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
        cursor.rows(text(full))
    rows.clock.sleep(BOARD_EVERY_S)
    for _ in range(2):
        watch.look()
        assert active(rows) == {"generation_failed/cover": "open", "ledger_unavailable/music": "open"}
        rows.clock.sleep(EVERY_S)
    board = BoardStore(rows.bucket, rows.clock).read()
    assert "disk is full. Free some space" in board.alerts["ledger_unavailable/music"].message
    with rows.database.transaction() as cursor:
        cursor.rows(text("DROP TRIGGER full"))
    assert watch.look()
    assert set(active(rows)) == {"generation_failed/cover"}


def test_the_service_looks_until_it_is_stopped(rows: Rows) -> None:
    rows.create()
    rows.fail("no", "ERR_BUSINESS_REJECTED")
    looked, watch = Event(), watch_of(rows)

    class Seen(MusicWatch):
        def look(self) -> bool:
            found = watch.look()
            looked.set()
            return found

    loop = alerts_loop(Seen(rows.settings, rows.database, rows.bucket, rows.clock, {}))
    loop.start()
    assert looked.wait(30)
    loop.stop()
    loop.join(30)
    assert set(active(rows)) == {"generation_failed/cover"}
