"""`errors`: the last errors of all pipelines, each once, wherever they are recorded."""

import json
from datetime import timedelta
from typing import Any

import pytest
from acting_world import failed_run
from click.testing import CliRunner
from operator_states import STATES
from reading_world import World, ask, context_of, shown
from test_console_layout import Terminal, drawn
from test_console_runs import eventful

from retake.clock import stamp
from retake.console.command_context import CommandContext
from retake.console.errors import command as errors
from retake.errors import Code, VendorError, error_record
from retake.operations.last_errors import last_errors
from retake.retrying.dead_letters import DeadLetters
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run import ERROR, Note
from retake.runs.states import Trigger
from retake.settings.shared import StorageSettings

__all__ = ["Terminal"]


def found(world: World | CommandContext, limit: int = 100) -> list[dict[str, Any]]:
    return list(ask(errors, world, limit=limit).document["errors"])


def record(world: World, message: str = "HTTP 500", *, days: float = 0, about: str = "song-1") -> dict[str, Any]:
    now = world.clock.now() - timedelta(days=days)
    error = VendorError(Code.UNAVAILABLE, message)
    return error_record(error, now=now, robot_id="story.upscale", correlation_id=about, retry_count=0)


def test_the_records_are_the_standard_ones_and_the_newest_comes_first() -> None:
    world = eventful()
    records = found(world)
    assert [it["timestamp"] for it in records] == sorted((it["timestamp"] for it in records), reverse=True)
    assert len({it["error_id"] for it in records}) == len(records) == 4
    newest = records[0]
    assert (newest["pipeline"], newest["generation_id"], newest["robot_id"]) == (
        "story",
        "20260101-0006",
        "story.imagine",
    )
    assert {"error_class", "error_code", "message", "details", "recovery_actions"} <= set(newest)
    assert "actor" not in newest
    assert found(world, limit=2) == records[:2]


def test_what_only_a_document_or_a_dead_letter_has_is_there_too() -> None:
    world = STATES["upscale failed"]()
    assert [it["error_code"] for it in found(world)] == ["ERR_TEMPORARY_UNAVAILABLE"]
    lost = record(world, "lost on the way", days=3)
    DeadLetters(world.bucket, world.clock).put("song-1", "song", {}, lost)
    assert [it["message"] for it in found(world)] == ["HTTP 500", "lost on the way"]


def test_an_error_on_the_ledger_and_in_the_documents_is_one() -> None:
    world = World()
    world.vendors.plan("imagine", "refused")
    while not world.doc.error:
        world.tick()
    [only] = found(world)
    assert only["error_id"] == world.doc.error.id
    world.vendors.plan("imagine", "rejected")
    while not world.ended:
        world.tick()
    assert len(found(world)) == 2, "the dead letter and the ledger record the same last error"


def test_errors_alike_at_the_same_moment_are_two() -> None:
    world = World()
    for name in ("song-1", "song-2"):
        DeadLetters(world.bucket, world.clock).put(name, "song", {}, record(world, about=name))
    assert {it["generation_id"] for it in found(world)} == {"song-1", "song-2"}


def test_the_runs_of_workers_are_among_them() -> None:
    world = World()
    failed_run(world, record(world))
    [only] = found(world)
    assert (only["pipeline"], only["generation_id"]) == ("music", "song-1")


@pytest.mark.parametrize("url", [None, "sqlite:{}"])
def test_the_errors_of_the_last_days_are_found_among_many_runs(
    url: str | None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from retake.runs import open_ledger

    world = World()
    if url:
        url = url.format(tmp_path / "runs.db")
        world.settings = world.settings._replace(storage=StorageSettings(ledger=url))
    ledger = open_ledger(url, world.bucket, world.clock)
    for number in range(12):
        run = ledger.create_for_task(f"t-{number}", f"t-{number}", actor="x", pipeline="music")
        run = ledger.move(run, Trigger.WORKER_CLAIM, actor="x", worker="w")
        error = record(world, f"error {number}")
        due = world.clock.now()
        run = ledger.move(run, Trigger.RETRYABLE_ERROR, actor="x", error=error, next_retry_at=due)
        world.later(hours=9)
        run = ledger.move(run, Trigger.RETRY_DUE, actor="x", worker="w")
        ledger.move(run, Trigger.COMPLETED, actor="x")
    assert [it["message"] for it in found(world)] == [f"error {number}" for number in reversed(range(12))]
    assert [it["message"] for it in found(world, limit=3)] == ["error 11", "error 10", "error 9"]
    monkeypatch.setattr("retake.operations.last_errors._MAX_BUCKET_RUNS", 1)
    monkeypatch.setattr("retake.operations.last_errors._MAX_DATABASE_RUNS", 1)
    assert "error 11" in [it["message"] for it in found(world)], "a search that ends early skips the older days"


@pytest.mark.parametrize("url", [None, "sqlite:{}"])
def test_an_error_of_a_run_that_is_long_under_way_is_found_by_its_own_time(url: str | None, tmp_path: Any) -> None:
    from retake.runs import open_ledger

    world = World()
    if url:
        url = url.format(tmp_path / "runs.db")
        world.settings = world.settings._replace(storage=StorageSettings(ledger=url))
    ledger = open_ledger(url, world.bucket, world.clock)
    old = ledger.create_for_task("old", "old", actor="x", pipeline="music")
    world.later(days=2)
    late = ledger.create_for_task("late", "late", actor="x", pipeline="music")
    ledger.note(late, *Note(ERROR, record(world, "yesterday", days=1)), actor="x")
    world.later(days=1)
    ledger.create_for_task("later", "later", actor="x", pipeline="music")
    ledger.note(old, *Note(ERROR, record(world, "now")), actor="x")
    assert [it["message"] for it in found(world, limit=1)] == ["now"]


def test_no_secret_is_shown() -> None:
    world = World()
    said = "see https://x.test/a.png?sig=s3cret and sk-abcdefgh12345678"
    failed_run(world, {**record(world), "message": f"{said} with pass-phrase-7"})
    context = CommandContext(
        {"SOME_TOKEN": "pass-phrase-7"}, clock=world.clock, bucket=world.bucket, settings=world.settings
    )
    answer = ask(errors, context, limit=9)
    for text in (json.dumps(answer.document), shown(answer)):
        assert not any(secret in text for secret in ("s3cret", "abcdefgh", "pass-phrase-7"))
        assert "https://x.test/a.png?…" in text or "\\u2026" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_on_a_terminal_no_line_is_too_wide(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = eventful()
    text = drawn(ask(errors, world, limit=100), width, monkeypatch)
    assert max(map(len, text.splitlines())) <= width
    assert "UNAVAILABLE" in text
    assert "20260101-0006" in text


def test_a_record_without_an_id_and_a_time_is_listed() -> None:
    world = World()
    world.put("dead_letters/x/report.json", {"last_error": {"timestamp": [1], "message": "of another program"}})
    assert [it.record.message for it in last_errors(context_of(world).operations, 10).errors] == ["of another program"]


def test_without_errors_a_sentence_says_so() -> None:
    assert shown(ask(errors, World(), limit=100)) == "No error is on record.\n"


@pytest.mark.parametrize("limit", ["0", "10001", "many"])
def test_an_invalid_limit_is_a_usage_error(limit: str) -> None:
    assert CliRunner().invoke(errors, ["--limit", limit]).exit_code == 2


def test_one_of_several_channels_can_be_named() -> None:
    world = World()
    world.settings = world.settings._replace(channels=("en", "fr"))
    for channel in ("en", "fr"):
        part = world.bucket.part(f"{channel}/")
        run = BucketLedger(part, world.clock).create_for_task("t", "t", actor="x", pipeline=f"story/{channel}")
        BucketLedger(part, world.clock).note(run, ERROR, record(world, channel), actor="x")
    assert {it["pipeline"] for it in found(world)} == {"story/en", "story/fr"}
    assert [it["pipeline"] for it in found(context_of(world, channel="fr"))] == ["story/fr"]


def test_documents_that_cannot_be_read_hide_nothing_else() -> None:
    world = eventful()
    before = found(world)
    world.put("config/config_midjourney.json", [])
    assert found(world) == before
    assert stamp(world.clock.now())


def test_what_an_error_is_about_need_not_be_a_generation() -> None:
    world = World()
    failed_run(world, record(world))
    head, row = shown(ask(errors, world, limit=9)).splitlines()
    assert (head.split()[1], row.split()[1]) == ("ABOUT", "song-1")
