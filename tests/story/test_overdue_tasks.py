"""Midjourney tasks in flight for longer than WORKFLOW.mj_timeout_seconds."""

import pytest
from story_ticks import ID, Scripted

from retake.ticking.tick import ScriptResult


@pytest.mark.parametrize("last_look", ["running", "error"])
def test_a_task_that_takes_too_long_is_asked_for_once_more_and_given_up_for_a_mock(last_look: str) -> None:
    world = Scripted()
    world.vendors.plan("fetch", "running", last_look)
    world.tick()
    world.later(seconds=world.settings.workflow.mj_timeout_seconds)
    assert world.tick().ended == "done"
    assert (world.bucket.read(f"666/{ID}.mp4")[0], world.vendors.asked["fetch"]) == (b"MOCK", 2)


def test_a_task_that_was_finished_while_nobody_asked_is_not_given_up() -> None:
    world = Scripted()
    world.vendors.plan("fetch", "running")
    world.tick()
    world.later(seconds=2 * world.settings.workflow.mj_timeout_seconds)
    tick = world.tick()
    assert tick.ended == "done"
    assert world.bucket.read(f"666/{ID}.mp4")[0] != b"MOCK"
    assert (world.vendors.asked["imagine"], world.vendors.asked["upscale"]) == (1, 1)


def test_a_task_is_not_given_up_while_the_key_is_refused() -> None:
    world = Scripted(critical_retry_minutes=60)
    world.vendors.plan("fetch", "key", "key")
    assert world.tick().exit_code == 78
    world.later(seconds=2 * world.settings.workflow.mj_timeout_seconds)
    assert world.tick().exit_code == 78
    assert world.tick().exit_code == 78
    assert (world.doc.task is not None, world.vendors.asked["fetch"]) == (True, 2)
    world.later(seconds=3700)
    assert world.tick().ended == "done"
    assert world.bucket.read(f"666/{ID}.mp4")[0] != b"MOCK"


@pytest.mark.parametrize("exit_code", [65, 75, 78])
def test_a_task_is_not_given_up_while_the_script_cannot_ask_for_it(exit_code: int) -> None:
    world = Scripted()
    world.vendors.plan("fetch", "running")
    world.tick()
    world.later(seconds=world.settings.workflow.mj_timeout_seconds)
    world.endings.append(ScriptResult(exit_code))
    assert world.tick().exit_code == exit_code
    assert world.doc.task is not None
    assert world.tick().ended == "done"
    assert world.bucket.read(f"666/{ID}.mp4")[0] != b"MOCK"
