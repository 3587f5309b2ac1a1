"""Scripts run by hand after a tick gave a generation up, or made its video, and died before moving it."""

from typing import Any

import pytest
from story_ticks import ID, at
from story_world import World
from test_media_step import make

from retake.errors import StateError
from retake.story.content import write_content


def failed_for_good() -> World:
    return at(status="task_failed_max_retries", failed_step="imagine")


def assert_untouched(world: World) -> None:
    assert not world.vendors.billed
    assert world.doc.raw == {"status": "task_failed_max_retries", "failed_step": "imagine"}


@pytest.mark.parametrize("use_mock", [False, True])
def test_no_picture_is_made(use_mock: bool) -> None:
    world = failed_for_good()
    with pytest.raises(StateError, match="failed for good, and the next tick moves it"):
        make(world, use_mock=use_mock)
    assert_untouched(world)


def test_no_text_is_written() -> None:
    world = failed_for_good()
    with pytest.raises(StateError, match="failed for good, and the next tick moves it"):
        world.by_hand(lambda context: write_content(context, ID, world.prompts))
    assert_untouched(world)


@pytest.mark.parametrize("doc", [{}, {"runway_task": {"task_id": "r"}, "status": "waiting_for_runway"}])
def test_no_mock_takes_the_place_of_a_video_that_is_there(doc: dict[str, Any]) -> None:
    world = at(files="json png mp4", **doc)
    before = world.everything()
    with pytest.raises(StateError, match="a mock would replace it; the next tick finishes"):
        make(world, use_mock=True)
    assert world.everything() == before


@pytest.mark.parametrize("files", ["json png mp4", "json png"])
def test_no_text_takes_the_place_of_one_whose_picture_is_there(files: str) -> None:
    world = at(files=files)
    before = world.everything()
    with pytest.raises(StateError, match="which fits only its text"):
        world.by_hand(lambda context: write_content(context, ID, world.prompts))
    assert (world.everything(), world.vendors.asked.total()) == (before, 0)
