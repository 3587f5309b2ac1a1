from typing import Any

import pytest

from retake.errors import PollFailed
from retake.vendors.pictures import first_picture, single_links

SINGLES = [f"https://cdn/{n}.png" for n in range(1, 5)]


class Links:
    """Returns a link as the download of itself."""

    def download(self, url: str, max_bytes: int | None = None) -> bytes:
        return url.encode()


def quarters(grid: bytes) -> list[bytes]:
    return [b"%d of %s" % (n, grid) for n in range(1, 5)]


@pytest.mark.parametrize(
    ("result", "picture"),
    [
        ({"temporary_image_urls": SINGLES, "image_url": "grid"}, b"https://cdn/1.png"),
        ({"temporary_image_urls": None, "image_urls": SINGLES, "image_url": "grid"}, b"https://cdn/1.png"),
        ({"temporary_image_urls": [], "image_urls": None, "image_url": "grid"}, b"1 of grid"),
        ({"temporary_image_urls": SINGLES[:2], "image_url": "grid"}, b"1 of grid"),
        ({"temporary_image_urls": ["", *SINGLES[1:]], "image_url": "grid"}, b"1 of grid"),
        ({"image_url": "grid"}, b"1 of grid"),
    ],
)
def test_the_first_single_picture_else_the_first_quarter_of_the_grid(result: dict[str, Any], picture: bytes) -> None:
    assert first_picture(result, Links(), 1000, quarters) == picture


@pytest.mark.parametrize("result", [{}, {"image_url": ""}, {"image_url": 7}, {"image_urls": "x", "image_url": None}])
def test_a_result_without_a_picture_is_a_failed_poll(result: dict[str, Any]) -> None:
    with pytest.raises(PollFailed, match="no picture"):
        first_picture(result, Links(), 1000, quarters)


def test_links_are_single_pictures_when_there_are_four() -> None:
    assert single_links({"temporary_image_urls": SINGLES}) == SINGLES
    assert single_links({"temporary_image_urls": SINGLES[:3]}) == []
    assert single_links({"temporary_image_urls": "four"}) == []
