"""Once the video is saved, the files show that the generation is done, and its document need not."""

import pytest
from story_ticks import ID, UPSCALED, at
from story_world import World

from retake.story.media import make_media


def make(world: World) -> None:
    world.by_hand(lambda context: make_media(context, ID))


def test_the_film_is_ordered_polled_and_saved_in_one_go() -> None:
    world = at(midjourney_results=UPSCALED)
    world.vendors.plan("poll", "running", "running", "ok")
    make(world)
    assert world.bucket.read(f"666/{ID}.mp4")[0] == b"bytes of https://cdn/film.mp4"
    assert world.clock.now().second == 30, "polled every 15 seconds"
    doc = world.doc
    assert (doc.error.raw, doc.retries) == ({}, {})
    assert [call["outcome"] for call in doc.paid_calls] == ["accepted"]
    asked = world.vendors.asked["poll"]
    assert world.tick().ended == "done", "the files show that it exists"
    assert world.vendors.asked["poll"] == asked
    doc = world.doc
    assert (doc.status, doc.runway_task, doc.results, doc.retries) == (None, None, None, {})


@pytest.mark.parametrize("status", ["runway_poll_failed", "runway_poll_timeout"])
def test_a_film_that_is_there_leaves_no_error_status(status: str) -> None:
    """As when the script is run by hand: its failed poll would be retried, or given up on."""
    task = {"task_id": "create-1", "requested_at_utc": "2026-01-01T00:00:00Z"}
    doc = {"midjourney_results": UPSCALED, "runway_task": task, "status": status, "retries": {"runway_poll": 99}}
    world = at("json png", **doc)
    make(world)
    assert (world.doc.status, world.doc.runway_task) == (None, None)
    assert world.tick().ended == "done"
