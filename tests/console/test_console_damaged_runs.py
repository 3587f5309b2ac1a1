"""Runs with invalid documents are named, and hide no other run."""

import pytest
from reading_world import World, ask, shown
from test_console_runs import eventful

from retake.console.errors import command as errors
from retake.console.runs import command as runs
from retake.console.show import command as show
from retake.console.status import command as status
from retake.exit_codes import ExitCode
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run_document import run_key
from retake.testing.logs import CapturedLogs

IDS = ("20260101-0000", "20260101-0005", "20260101-0006")
"""The generations of the world: done, failed, and under way."""


def damaged(task_id: str) -> tuple[World, str]:
    """Return a world in which the document of a run of the task is invalid, and the key of that document."""
    world = eventful()
    [run] = BucketLedger(world.bucket, world.clock).of_task(task_id)
    world.put(run_key(run.run_id), b"{")
    return world, run_key(run.run_id)


@pytest.mark.parametrize("task_id", IDS)
def test_the_other_runs_are_listed_and_shown(task_id: str) -> None:
    world, key = damaged(task_id)
    others = [it for it in IDS if it != task_id]
    with CapturedLogs() as log:
        answer = ask(runs, world, statuses=(), limit=20, pipeline=None)
    assert sorted(run["task_id"] for run in answer.document["runs"]) == others
    assert all(it in shown(answer) for it in others)
    [told] = answer.document["unreadable"]
    assert told.startswith(f"{key}: the whole document: not JSON")
    assert told.endswith("fix it or remove it (in memory:)")
    assert (log.warnings, answer.exit_code) == ([told], ExitCode.BAD_STATE)
    for it in others:
        assert ask(show, world, run=it).document["task_id"] == it


def test_where_no_run_can_be_read_none_is_reported_as_missing() -> None:
    world = World()
    world.tick()
    [run] = BucketLedger(world.bucket, world.clock).runs()
    world.put(run_key(run.run_id), b"{")
    answer = ask(runs, world, statuses=(), limit=20, pipeline=None)
    assert (shown(answer).strip(), answer.exit_code) == ("No run on record can be read.", ExitCode.BAD_STATE)


def test_the_errors_of_the_other_runs_are_listed() -> None:
    world, key = damaged(IDS[1])
    answer = ask(errors, world, limit=100)
    assert answer.exit_code == ExitCode.BAD_STATE
    assert [it.partition(":")[0] for it in answer.document["unreadable"]] == [key]
    assert {it["generation_id"] for it in answer.document["errors"]} >= {IDS[0], IDS[2]}


def test_an_unfinished_run_that_cannot_be_read_needs_a_person() -> None:
    world, key = damaged(IDS[2])
    with CapturedLogs() as log:
        answer = ask(status, world)
    [need] = answer.document["pipelines"][0]["needs"]
    assert need.startswith(key)
    assert (log.warnings, answer.exit_code) == ([need], ExitCode.FAILED)


@pytest.mark.parametrize("task_id", IDS[:2])
def test_an_ended_run_that_cannot_be_read_needs_nobody(task_id: str) -> None:
    world, key = damaged(task_id)
    with CapturedLogs() as log:
        answer = ask(status, world)
    assert answer.document["pipelines"][0]["needs"] == []
    assert [it.startswith(key) for it in log.warnings] == [True]


def test_a_run_that_is_mended_is_no_longer_named() -> None:
    world = eventful()
    ledger = BucketLedger(world.bucket, world.clock)
    [run] = ledger.of_task(IDS[0])
    whole, _ = world.bucket.read(run_key(run.run_id))
    world.put(run_key(run.run_id), b"{")
    assert run not in ledger.runs()
    assert len(ledger.unreadable) == 1
    world.put(run_key(run.run_id), whole)
    assert run in ledger.runs()
    assert not ledger.unreadable
