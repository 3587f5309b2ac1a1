"""How large a picture or a video may be: each download is asked for with the limit of its kind."""

from typing import Any

import pytest
from story_world import CONTENT, World

from retake.story.media import make_media

ID = "20260101-0000"


def limits(pick: str = "first", **doc: Any) -> list[tuple[str, int | None]]:
    """The downloads of one step, and what each may have in bytes."""
    world = World(max_picture_bytes=111, max_video_bytes=222)
    world.settings = world.settings._replace(image=world.settings.image._replace(pick=pick))
    world.put("config/config_gen.json", {"generation_id": ID})
    world.put("config/config_midjourney.json", doc)
    world.put(f"666/{ID}.json", CONTENT)
    asked: list[tuple[str, int | None]] = []
    download = world.vendors.download

    def noted(url: str, max_bytes: int | None = None) -> bytes:
        asked.append((url, max_bytes))
        return download(url)

    world.vendors.download = noted
    world.by_hand(lambda context: make_media(context, ID))
    return asked


def test_a_picture_and_a_video_have_limits_of_their_own() -> None:
    result = {"image_url": "https://cdn/full.png"}
    upscaled = {"task_id": "upscale-1", "task_type": "upscale", "task_result": result}
    assert limits(midjourney_results=upscaled) == [("https://cdn/full.png", 111), ("https://cdn/film.mp4", 222)]


@pytest.mark.parametrize("singles", [[], ["https://cdn/1.png"]])
def test_a_grid_that_is_cut_for_the_choice_is_a_picture(singles: list[str]) -> None:
    result = {"image_url": "https://cdn/grid.png", "temporary_image_urls": singles}
    pictures = {"task_id": "imagine-1", "task_type": "imagine", "task_result": result}
    assert limits("vision", midjourney_results=pictures) == [("https://cdn/grid.png", 111)]
