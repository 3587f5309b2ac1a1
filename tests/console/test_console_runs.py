"""`runs` and `show`: the contents of the ledger, found by what a person types, in order."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from operator_states import STATES
from reading_world import World, ask, clear, context_of, shown

from retake.clock import stamp
from retake.console.report import command as report
from retake.console.runs import command as runs
from retake.console.show import command as show
from retake.console.since import moment_of, read_since
from retake.console.status import command as status
from retake.errors import RunError
from retake.operations.timeline import timeline
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run import UnknownRun
from retake.runs.states import Trigger
from retake.settings.shared import StorageSettings
from retake.story.operator_actions import OperatorActions
from retake.story.settings import Settings
from retake.ticking.tick import Orders


def eventful() -> World:
    """Return a world with one generation that recovered, one that failed for good, and one under way."""
    world = World()
    world.vendors.plan("imagine", "refused", "unknown", "ok")
    while not world.ended:
        world.tick()
    clear(world)
    world.vendors.plan("upscale", "rejected")
    while len(world.ended) < 2:
        world.tick()
    world.vendors.plan("imagine", "refused")
    world.ticks(2)
    return world


def ids(world: World, **options: object) -> list[str]:
    asked = {"statuses": (), "limit": 20, "pipeline": None, **options}
    return [run["task_id"] for run in ask(runs, world, **asked).document["runs"]]


def on_ledger(world: World, task: str, pipeline: str = "music") -> str:
    run = BucketLedger(world.bucket, world.clock).create_for_task(task, f"{task}#1", actor="x", pipeline=pipeline)
    return run.run_id


def test_runs_are_listed_the_last_changed_first() -> None:
    world = eventful()
    assert ids(world) == ["20260101-0006", "20260101-0005", "20260101-0000"]
    assert ids(world, limit=1) == ["20260101-0006"]
    assert ids(world, statuses=("failed", "succeeded")) == ["20260101-0005", "20260101-0000"]
    text = shown(ask(runs, world, statuses=(), limit=20, pipeline=None))
    assert text.startswith("Runs of story\nRUN")
    assert re.search(r"20260101-0005  failed +00:05:00  B REJECTED$", text, re.MULTILINE)


def test_runs_of_another_pipeline_are_there_when_asked_for() -> None:
    world = eventful()
    on_ledger(world, "song-1")
    assert "song-1" in ids(world)
    assert ids(world, pipeline="music") == ["song-1"]
    assert "song-1" not in ids(world, pipeline="story")
    assert "PIPELINE" in shown(ask(runs, world, statuses=(), limit=20, pipeline=None))


def test_an_empty_ledger_says_so() -> None:
    answer = ask(runs, World(), statuses=(), limit=20, pipeline=None)
    assert "No run is on record yet" in shown(answer)
    assert "b2_storage_manager.py" in shown(answer)
    assert "make run" in shown(answer)
    assert (answer.document, answer.exit_code) == ({"runs": [], "unreadable": []}, 0)
    none = ask(runs, World(), statuses=("failed",), limit=20, pipeline=None)
    assert shown(none) == "There is no such run on record.\n"


def test_whoever_has_no_checkout_is_told_of_no_script_and_no_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retake.console.runs.checkout", lambda: None)
    told = shown(ask(runs, World(), statuses=(), limit=20, pipeline=None))
    assert "retake tick" in told
    assert "b2_storage_manager" not in told
    assert "make" not in told


def test_the_error_stands_in_its_column_and_when_it_is_due_beside_the_state() -> None:
    world = World()
    world.vendors.plan("imagine", "refused", "refused")
    world.tick()
    [line] = shown(ask(runs, world, statuses=(), limit=20, pipeline=None)).splitlines()[2:]
    assert line.endswith("A UNAVAILABLE")
    assert "retry_scheduled, due now, imagine 1/4" in line
    waiting = STATES["pictures failed and wait"]()
    waiting.tick()
    [line] = shown(ask(runs, waiting, statuses=(), limit=20, pipeline=None)).splitlines()[2:]
    assert "retry_scheduled, due in " in line
    assert line.endswith("A UNAVAILABLE")


def test_attempts_are_counted_in_one_way_on_every_screen() -> None:
    world = World()
    world.vendors.plan("imagine", "refused", "refused", "rejected")
    while not world.ended:
        world.tick()
    OperatorActions(world.settings, world.bucket, world.clock, owner="console:7").requeue("20260101-0000")
    [told] = ask(status, world).document["pipelines"]
    assert (told["step"], told["attempt"], told["max_attempts"]) == ("imagine", 1, 4)
    listed = ask(runs, world, statuses=(), limit=20, pipeline=None)
    [run, failed] = sorted(listed.document["runs"], key=lambda it: it["status"], reverse=True)
    assert (run["step"], run["step_attempt"], run["max_attempts"]) == ("imagine", 1, 4)
    assert (failed["step"], failed["step_attempt"]) == (None, None)
    assert run["attempt"] == 4, "the run's own counter: how often the task was started"
    assert "queued, imagine 1/4" in shown(listed)
    for command in (show, report):
        answer = ask(command, world, run="20260101-0000")
        assert (answer.document["step_attempt"], answer.document["max_attempts"]) == (1, 4)
        assert "imagine, attempt 1 of 4" in shown(answer)
        assert "taken up" in shown(answer)
        failures = [it["step_attempt"] for it in answer.document["timeline"] if it["error"]]
        assert failures == [1, 2, 3]
    assert "imagine, attempt 1 of 4" in shown(ask(status, world))


def test_runs_are_chosen_by_time_and_by_error() -> None:
    world = eventful()
    last = "20260101-0006"
    assert ids(world, since=timedelta(minutes=1)) == [last]
    assert ids(world, since=moment_of(timedelta(days=1), world.clock.now())) == [last, "20260101-0005", "20260101-0000"]
    for code in ("REJECTED", "B REJECTED", "err_business_rejected", "rejected"):
        assert ids(world, code=code) == ["20260101-0005"]
        assert ids(world, code=code, limit=1) == ["20260101-0005"], "found beyond the first of all"
    assert ids(world, code="NETWORK") == []


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("90s", timedelta(seconds=90)),
        ("30m", timedelta(minutes=30)),
        ("2 h", timedelta(hours=2)),
        ("2d", timedelta(days=2)),
        ("1w", timedelta(weeks=1)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_a_time_is_read_as_people_type_it(text: str, meant: object) -> None:
    assert read_since(None, None, text) == meant


@pytest.mark.parametrize("text", ["", "soon", "d", "-2d", "2026-13-01", "0001-01-01T00:00+14:00"])
def test_what_is_not_a_time_is_a_usage_error_that_says_what_is(text: str) -> None:
    with pytest.raises(click.BadParameter, match="30m, 2h, 2d"):
        read_since(None, None, text)


def test_a_time_before_all_time_is_the_beginning() -> None:
    assert moment_of(timedelta(weeks=999_999), World().clock.now()).year == 1


def test_a_run_is_found_by_its_id_its_beginning_and_its_generation() -> None:
    world = eventful()
    run_id = ask(runs, world, statuses=("failed",), limit=1, pipeline=None).document["runs"][0]["run_id"]
    for text in (run_id, run_id[:14], run_id[:9], "20260101-0005"):
        assert ask(show, world, run=text).document["runs"][0]["run_id"] == run_id


def test_something_missing_is_reported_as_missing() -> None:
    for text in ("run-0000000000000000", "run-", "20250101-0000", "run-é", "../x", "run-/", ""):
        with pytest.raises(UnknownRun, match="there is no run"):
            ask(show, World(), run=text)


@pytest.mark.parametrize("text", ["run-\n", f"run-{'a' * 2000}", "run-\ud800", "run-..", "run-/x", "run-é"])
def test_a_prefix_of_no_id_is_reported_as_such(text: str) -> None:
    with pytest.raises(UnknownRun, match="there is no run"):
        ask(show, eventful(), run=text)


def test_an_object_of_others_among_the_runs_is_passed_over() -> None:
    world = eventful()
    world.put("runs/run-0.txt", "notes")
    world.put("runs/run-0.json", "{}")
    with pytest.raises(UnknownRun, match="there is no run and no generation 'run-0'"):
        ask(show, world, run="run-0")


def test_a_beginning_that_may_mean_several_is_refused_and_they_are_named() -> None:
    world = World()
    names = {on_ledger(world, f"song-{n}") for n in range(40)}
    with pytest.raises(RunError, match="may mean several") as caught:
        ask(show, world, run="run-")
    assert any(name in str(caught.value) for name in names)


def test_a_timeline_tells_failures_repeats_results_and_the_end() -> None:
    world = eventful()
    told = [it["what"] for it in ask(show, world, run="20260101-0000").document["timeline"]]
    assert told == [
        "created",
        "work began",
        "the text is ready",
        "imagine failed, to be tried again",
        "tried again",
        "the imagine call of 2026-01-01T00:02:00Z may have been carried out, and is asked again",
        "imagine failed, to be tried again",
        "tried again",
        "the pictures are ready",
        "the upscaled picture is ready",
        "the video is ready",
        "done",
    ]
    text = shown(ask(show, world, run="20260101-0000"))
    assert re.search(
        r"00:02:00 +\+2 min  cron +2  imagine failed, to be tried again. A TIMEOUT: imagine: no answer", text
    )
    assert "Paid: 0.610 USD for 5 calls" in text
    assert "unknown, possible duplicate" in text


def test_it_says_where_the_files_lie() -> None:
    world = eventful()
    files = [it["key"] for it in ask(show, world, run="20260101-0005").document["files"]]
    assert "dead_letters/20260101-0005/report.json" in files
    assert "spend/20260101-0005.json" in files


def test_the_calls_so_far_of_a_generation_under_way_are_reported() -> None:
    document = ask(show, eventful(), run="20260101-0006").document
    assert [call["step"] for call in document["paid_calls"]] == ["content"]
    assert document["files"][0]["key"] == "666/20260101-0006.json"


def test_a_generation_that_was_resumed_is_reported_as_one_story() -> None:
    world = eventful()
    while world.generation_id:
        world.tick()
    clear(world)
    world.tick(Orders(retake="20260101-0005"))
    while world.generation_id:
        world.tick()
    document = ask(show, world, run="20260101-0005").document
    assert [run["status"] for run in document["runs"]] == ["failed", "succeeded"]
    assert [run["attempt"] for run in document["runs"]] == [1, 2]
    assert document["timeline"][-1]["what"] == "done"
    assert len(shown(ask(show, world, run="20260101-0005")).splitlines()) > 10


def test_a_run_that_is_not_a_generation_is_reported_without_files() -> None:
    world = World()
    on_ledger(world, "../../etc/passwd")
    document = ask(show, world, run="../../etc/passwd").document
    assert (document["files"], document["paid_calls"]) == ([], [])


def test_a_channel_has_its_own_runs_and_a_name_in_two_of_them_must_be_made_clear() -> None:
    world = World()
    world.settings = Settings()._replace(channels=("en", "ru"))
    for name in ("en", "ru"):
        ledger = BucketLedger(world.bucket.part(f"{name}/"), world.clock)
        ledger.create_for_task(f"{name}/20260101-0000", f"{name}#1", actor="cron", pipeline=f"story/{name}")
        world.clock.sleep(1)
    assert ids(world) == ["ru/20260101-0000", "en/20260101-0000"]
    assert ask(show, world, run="en/20260101-0000").document["runs"][0]["pipeline"] == "story/en"
    alone = context_of(world, channel="ru")
    assert ask(show, alone, run="20260101-0000").document["task_id"] == "ru/20260101-0000"
    with pytest.raises(RunError, match=r"en/20260101-0000, ru/20260101-0000.*--channel"):
        ask(show, world, run="20260101-0000")
    assert [run["task_id"] for run in ask(runs, alone, statuses=(), limit=9, pipeline=None).document["runs"]] == [
        "ru/20260101-0000"
    ]


def test_a_database_is_looked_at_in_the_same_way(tmp_path: Path) -> None:
    world = World()
    world.settings = world.settings._replace(storage=StorageSettings(ledger=f"sqlite:{tmp_path / 'runs.sqlite'}"))
    world.vendors.plan("imagine", "refused", "rejected")
    world.ticks(3)
    assert ids(world) == ["20260101-0000"]
    [run] = ask(runs, world, statuses=("failed",), limit=9, pipeline=None).document["runs"]
    for text in (run["run_id"], run["run_id"][:8], "20260101-0000"):
        assert ask(show, world, run=text).document["timeline"][-1]["what"] == "imagine failed for good"
    with pytest.raises(UnknownRun):
        ask(show, world, run="run-x")
    assert ask(status, world).document["pipelines"][0]["runs"]["failed"] == 1


def test_whatever_is_noted_has_its_place_in_the_timeline() -> None:
    world = World()
    ledger = BucketLedger(world.bucket, world.clock)
    run = ledger.create_for_task("song", "song#1", actor="worker", pipeline="music")
    run = ledger.move(run, Trigger.WORKER_CLAIM, actor="worker", worker="w")
    ledger.note(run, "run.note", {"text": "two\nlines"}, actor="operator")
    ledger.note(run, "upload.begun", {"parts": 3}, actor="worker")
    ledger.note(run, "run.error", {"error_code": "ERR_TEMPORARY_NETWORK", "message": "cut"}, actor="worker")
    ledger.move(run, Trigger.PROCESS_RESTART, actor="recovery")
    told = [(it.actor, it.description, it.failure) for it in timeline(ledger.events(run.run_id))][2:]
    assert told == [
        ("operator", "two lines", ""),
        ("worker", "upload.begun: parts 3", ""),
        ("worker", "failed", "A NETWORK: cut"),
        ("recovery", "interrupted: its worker was gone", ""),
    ]


def test_what_was_seen_before_it_was_written_down_is_told_when_it_was_seen() -> None:
    world = World()
    ledger = BucketLedger(world.bucket, world.clock)
    run = ledger.create_for_task("song", "song#1", actor="worker", pipeline="music")
    began = world.clock.now() + timedelta(milliseconds=700)
    world.clock.moment = began
    run = ledger.move(run, Trigger.WORKER_CLAIM, actor="worker", worker="w")
    world.clock.sleep(60)
    for seen in (began, began + timedelta(seconds=20), began + timedelta(hours=1)):
        ledger.note(run, "run.step.done", {"step": "cover", "seen_at_utc": stamp(seen)}, actor="worker")
    told = [(it.at - began).total_seconds() for it in timeline(ledger.events(run.run_id))]
    assert told == [-0.7, 0, 0, 19.3, 60]  # never before the preceding transition, nor after it was written
