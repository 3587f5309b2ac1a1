"""What the ledger records of generations that the real scripts made, and lost, and made after all."""

import json
from pathlib import Path
from typing import Any

import pytest
from cron_machine import GEN, ID, MANAGER, PUBLIC, Machine, manager_killed_at

from retake.bucket.directory import DirectoryBucket
from retake.clock import SystemClock
from retake.runs import Ledger, open_ledger
from retake.runs.run import CHANGED, Event
from retake.runs.states import RunStatus

STEPS = ["content", "imagine", "upscale", "runway"]


def ledger_of(machine: Machine, url: str | None = None) -> Ledger:
    return open_ledger(url, DirectoryBucket(str(machine.bucket)), SystemClock(), read_only=True)


def in_words(event: Event) -> str:
    payload = event.payload
    if event.kind == CHANGED:
        return f"{payload['status']} {payload['actor']}"
    return str(payload.get("step") or payload.get("code") or payload.get("error_code"))


def told(ledger: Ledger, task_id: str) -> list[str]:
    return [in_words(event) for run in ledger.of_task(task_id) for event in ledger.events(run.run_id)]


def documents(machine: Machine) -> list[dict[str, Any]]:
    """Return the runs as stored in the bucket, readable for people."""
    return [machine.read(key) for key in sorted(machine.files("runs")) if key.startswith("runs/run-")]


def test_a_generation_with_a_failure_is_reported_by_its_run_from_beginning_to_end(machine: Machine) -> None:
    machine.order("upscale#1=500")
    assert machine.until_done().exit_code == 0
    [document] = documents(machine)
    assert (document["status"], document["pipeline"], document["attempt"]) == ("succeeded", "story", 2)
    assert told(ledger_of(machine), document["task_id"]) == [
        *("queued cron", "running cron", "content", "imagine"),
        *("retry_scheduled cron", "ERR_TEMPORARY_UNAVAILABLE", "running cron"),
        *("upscale", "runway", "succeeded cron"),
    ]
    assert f"{document['task_id']}.mp4" in {key.removeprefix("666/") for key in machine.files("666")}


def test_between_two_ticks_the_run_says_what_it_waits_for(machine: Machine) -> None:
    machine.set(RETRYING={"strategy": "fixed", "first_seconds": 3000, "jitter_percent": 0})
    machine.plant("upscale")
    machine.order("upscale#1=500")
    machine.tick()
    [run] = ledger_of(machine).of_task(ID)
    assert run.status is RunStatus.RETRY_SCHEDULED
    assert run.next_retry_at
    assert 2900 < (run.next_retry_at - SystemClock().now()).total_seconds() <= 3001
    rest = machine.tick()
    assert (rest.exit_code, len(machine.calls("upscale"))) == (0, 1)
    assert rest.said("attempt 1/3 for status upscale_trigger_failed is due at")
    assert machine.tick("--resume").exit_code == 0
    assert machine.tick().exit_code == 0
    assert machine.generation_id is None


def test_a_killed_tick_is_an_interruption_that_recovery_mends(machine: Machine) -> None:
    machine.plant("imagine")
    manager_killed_at(machine, "imagine", script_too=True)
    assert machine.read(PUBLIC)["processing_lock"] is True
    assert [it["status"] for it in documents(machine)] == ["running"]
    assert machine.tick().exit_code == 0
    [run] = ledger_of(machine).of_task(ID)
    assert (run.status, run.resumes, run.attempt) == (RunStatus.SUCCEEDED, 1, 1)
    assert told(ledger_of(machine), ID) == [
        *("queued cron", "running cron", "interrupted recovery", "running recovery"),
        *STEPS,
        "succeeded cron",
    ]


def test_a_failed_generation_that_is_resumed_has_a_second_run(machine: Machine) -> None:
    machine.set(WORKFLOW={"max_retries": 0})
    machine.plant("upscale")
    machine.order("upscale#1=500")
    assert machine.until_done().exit_code == 69
    assert machine.until_done("--retake", ID).exit_code == 0
    assert told(ledger_of(machine), ID) == [
        *("queued cron", "running cron", "content", "imagine", "failed cron", "ERR_TEMPORARY_UNAVAILABLE"),
        *("queued operator", "running operator", "retake", "upscale", "runway", "succeeded operator"),
    ]
    assert [run.attempt for run in ledger_of(machine).of_task(ID)] == [1, 2]


# --- another ledger -------------------------------------------------------------------------------------------------


def test_channels_share_one_ledger_where_the_settings_name_one(machine: Machine) -> None:
    machine.set(STORAGE={"url": "file:bucket", "ledger": f"sqlite:{machine.folder}/runs.db"})
    written = json.loads(machine.settings_file.read_text())
    machine.settings_file.write_text(json.dumps({**written, "CHANNELS": ["north", "south"]}))
    tick = machine.tick()
    assert tick.exit_code == 0, tick.err
    assert {line["logger"].partition(".")[0] for line in tick.lines} == {"retake"}
    ledger = ledger_of(machine, f"sqlite:{machine.folder}/runs.db")
    assert {run.pipeline: run.status for run in ledger.runs()} == {
        "story/north": RunStatus.SUCCEEDED,
        "story/south": RunStatus.SUCCEEDED,
    }
    assert not [key for key in machine.files() if "runs/" in key]
    [run] = ledger.runs(pipeline="story/north")
    assert run.task_id.startswith("north/20")
    assert told(ledger, run.task_id) == ["queued cron", "running cron", *STEPS, "succeeded cron"]


def test_a_ledger_that_cannot_be_had_ends_the_tick_before_anything_is_paid(machine: Machine) -> None:
    machine.set(STORAGE={"url": "file:bucket", "ledger": f"sqlite:{machine.settings_file}/runs.db"})
    machine.plant("upscale")
    tick = machine.tick()
    assert tick.exit_code == 75
    assert "runs.db" in tick.error
    assert machine.calls() == []
    machine.set(STORAGE={"ledger": None})
    assert machine.until_done().exit_code == 0


# --- what an idle tick costs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ledger", [None, "sqlite:runs.db"])
def test_an_idle_tick_loads_nothing_of_it(machine: Machine, ledger: str | None) -> None:
    machine.set(STORAGE={"url": "file:bucket", "ledger": ledger}, BREAKER={"failures": 3})
    machine.put(GEN, {"generation_id": None})
    for folder, name in (("444", "20250101-0001"), ("555", "20250101-0002"), ("666", "20250101-0003")):
        for suffix in ("json", "png", "mp4"):
            machine.put(f"{folder}/{name}.{suffix}", {})
    machine.env["PYTHONPROFILEIMPORTTIME"] = "1"
    process = machine.start(MANAGER)
    _, err = process.communicate(timeout=60)
    assert "nothing to do" in err
    loaded = {line.rpartition("|")[2].strip() for line in err.splitlines() if line.startswith("import time:")}
    assert "retake.story.pipeline" in loaded
    assert not [name for name in loaded if name.startswith(("retake.runs", "retake.retrying", "sqlalchemy"))]
    assert not Path(machine.folder / "runs.db").exists()
