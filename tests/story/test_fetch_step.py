"""Polling the Midjourney task: every answer, and its effect on the document."""

from typing import Any

import pytest
from story_ticks import ORDERED, at
from story_world import Heard, World

from retake.errors import PollFailed, RetakeError, TaskFailed
from retake.story.documents import Status, Step
from retake.story.media import fetch

PICTURES = {"task_id": "imagine-1", "task_type": "imagine", "task_result": {"image_url": "https://cdn/grid.png"}}


def flying(kind: str = "imagine", *outcomes: str, **more: Any) -> World:
    task = {"task_id": f"{kind}-7", "task_type": kind, "requested_at_utc": ORDERED}
    doc = {"midjourney_task": task, "status": f"waiting_for_{kind}"}
    if kind == "upscale":
        doc["midjourney_results"] = PICTURES
    world = at("", **{**doc, **more})
    world.vendors.plan("fetch", *outcomes)
    return world


@pytest.mark.parametrize("kind", ["imagine", "upscale"])
def test_the_results_of_a_task_that_is_done_are_saved_and_the_task_is_cleared(kind: str) -> None:
    world = flying(kind, "ok", retries={kind: 2, "fetch": 1, "runway": 1}, last_error={"message": "old"})
    world.by_hand(fetch)
    doc = world.doc
    assert (doc.task, doc.status, doc.raw.get("last_error"), doc.retries) == (None, None, None, {"runway": 1})
    assert doc.results is not None
    assert (doc.results.task_id, doc.results.task_type) == (f"{kind}-7", kind)
    assert doc.results.task_result["image_url"] == "https://cdn/grid.png"


def test_a_running_task_changes_nothing_but_the_counter_of_failed_polls() -> None:
    world = flying("imagine", "running", retries={"imagine": 1, "fetch": 2}, retry_count=2)
    before = world.json("config/config_midjourney.json")
    world.by_hand(fetch)
    assert world.json("config/config_midjourney.json") == {**before, "retries": {"imagine": 1}, "retry_count": 0}


def test_a_running_task_without_failed_polls_changes_nothing_at_all() -> None:
    world = flying("imagine", "running", "running")
    world.by_hand(fetch)
    before = world.everything()
    world.by_hand(fetch)
    assert world.everything() == before


@pytest.mark.parametrize("kind", ["imagine", "upscale"])
@pytest.mark.parametrize(
    ("outcome", "error", "status", "kept"),
    [
        ("error", PollFailed, "mj_fetch_failed", True),
        ("key", PollFailed, "waiting", True),
        ("failed", TaskFailed, "trigger_failed", False),
        ("failed_b", TaskFailed, "task_failed_max_retries", False),
    ],
)
def test_every_failure_has_its_status(
    kind: str, outcome: str, error: type[RetakeError], status: str, kept: bool
) -> None:
    world = flying(kind, outcome, retries={kind: 1, "fetch": 2})
    with pytest.raises(error):
        world.by_hand(fetch)
    doc = world.doc
    names = {"waiting": f"waiting_for_{kind}", "trigger_failed": f"{kind}_trigger_failed"}
    assert doc.status == names.get(status, status)
    assert bool(doc.task) is kept
    assert doc.retries_of(Step.FETCH) == (2 if kept else 0)
    assert doc.retries_of(Step(kind)) == 1
    assert doc.raw.get("last_error") is not None
    if kind == "upscale":
        assert doc.raw["midjourney_results"] == PICTURES


def test_a_rejected_picture_fails_at_the_step_that_ordered_it() -> None:
    world = flying("upscale", "failed_b")
    with pytest.raises(TaskFailed):
        world.by_hand(fetch)
    assert (world.doc.status, world.doc.failed_step) == (Status.TASK_FAILED_MAX_RETRIES, Step.UPSCALE)


def test_without_a_task_in_flight_nothing_is_asked() -> None:
    world = World()
    before = world.everything()
    world.by_hand(fetch)
    assert not world.vendors.asked
    assert world.everything() == before


def test_a_task_that_does_not_say_when_it_was_ordered_times_out_in_the_end() -> None:
    world = flying("imagine", *["running"] * 99)
    world.put("config/config_midjourney.json", {"midjourney_task": {"task_id": "t", "task_type": "imagine"}})
    world.put("666/20260101-0000.json", {"topic": "t"})
    first = world.tick()
    assert (first.why, world.vendors.asked["fetch"]) == ("waiting for Midjourney", 1)
    world.later(seconds=world.settings.workflow.mj_timeout_seconds)
    world.tick()
    assert world.ended == ["done"]
    assert world.bucket.read("666/20260101-0000.mp4")[0] == b"MOCK"


def test_each_new_refusal_of_a_key_that_was_mended_in_between_is_reported() -> None:
    world = flying("imagine", "key", "key", "running", "key")
    with Heard() as log:
        for _ in range(4):
            world.tick()
            world.later(hours=1)
    assert world.vendors.asked["fetch"] == 4
    assert log.alerts == ["ERR_CRITICAL_UNAUTHORIZED"] * 2, "once, and again after it had worked in between"
