"""The maximum size of pictures and videos: each download is requested with the limit of its kind."""

from typing import Any

import pytest
from story_ticks import ID, UPSCALED, at

from retake.story.media import make_media


def limits(pick: str = "first", **doc: Any) -> list[tuple[str, int | None]]:
    """Return the downloads of one step, each with its maximum number of bytes."""
    world = at(workflow={"max_picture_bytes": 111, "max_video_bytes": 222}, pick=pick, **doc)
    asked: list[tuple[str, int | None]] = []
    download = world.vendors.download

    def noted(url: str, max_bytes: int | None = None) -> bytes:
        asked.append((url, max_bytes))
        return download(url)

    world.vendors.download = noted
    world.by_hand(lambda context: make_media(context, ID))
    return asked


def test_a_picture_and_a_video_have_limits_of_their_own() -> None:
    assert limits(midjourney_results=UPSCALED) == [("https://cdn/full.png", 111), ("https://cdn/film.mp4", 222)]


@pytest.mark.parametrize("singles", [[], ["https://cdn/1.png"]])
def test_a_grid_that_is_cut_for_the_choice_is_a_picture(singles: list[str]) -> None:
    result = {"image_url": "https://cdn/grid.png", "temporary_image_urls": singles}
    pictures = {"task_id": "imagine-1", "task_type": "imagine", "task_result": result}
    assert limits("vision", midjourney_results=pictures) == [("https://cdn/grid.png", 111)]
