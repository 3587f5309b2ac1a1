"""The pictures in the result of an imagine task: four single ones if the vendor provides them, else cut from a grid."""

from collections.abc import Callable, Mapping
from typing import Any

from retake.errors import Code, PollFailed
from retake.vendors import Downloader

Quarters = Callable[[bytes], list[bytes]]
"""Cuts a grid into four pictures: `retake.media.picture.quarters`."""


def single_links(result: Mapping[str, Any], field: str = "temporary_image_urls") -> list[str]:
    """Return the links to the four single pictures, or none: only some of a vendor's plans include them."""
    links = result.get(field)
    usable = isinstance(links, list) and len(links) == 4 and all(isinstance(link, str) and link for link in links)
    return list(links) if usable and isinstance(links, list) else []


def first_picture(result: Mapping[str, Any], downloader: Downloader, max_bytes: int, quarters: Quarters) -> bytes:
    """Return the first of the four pictures: the single one, or else the top left of the grid.

    Free. Raises PollFailed for a result without pictures, the errors of the download (LinkExpired for an expired link:
    the task returns a new one), and the MediaError of `quarters`.
    """
    singles = single_links(result) or single_links(result, "image_urls")
    if singles:
        return downloader.download(singles[0], max_bytes)
    grid = result.get("image_url")
    if not isinstance(grid, str) or not grid:
        raise PollFailed(Code.BAD_ANSWER, "the result of the imagine task has no picture")
    return quarters(downloader.download(grid, max_bytes))[0]
