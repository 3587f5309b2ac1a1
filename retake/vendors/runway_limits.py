"""Runway's limits, applied before a call rather than learned from its errors. Pure.

Sources: runwayml 5.24 (`image_to_video.create`: ratios, durations, prompt length), docs.dev.runwayml.com/assets/inputs
(size of a data URI), docs.dev.runwayml.com on polling (at most every five seconds).
"""

import math
import re
from typing import NamedTuple

PROMPT_LIMIT = 1000  # UTF-16 code units
DATA_URI_LIMIT = 5_000_000  # characters of the whole URI; the vendor says "5 MB"
MIN_POLL_SECONDS = 5.0

_RATIOS = ("1280:720", "720:1280", "1104:832", "832:1104", "960:960", "1584:672")


class Model(NamedTuple):
    """What a model offers."""

    ratios: tuple[str, ...]
    durations: tuple[int, ...]  # seconds, ascending
    needs_prompt: bool


MODELS = {
    "gen4_turbo": Model(_RATIOS, (5, 10), needs_prompt=False),
    "gen4.5": Model(_RATIOS, tuple(range(2, 11)), needs_prompt=True),
}


def fit_prompt(text: str) -> str:
    """Return `text` cut to PROMPT_LIMIT units, between words if possible, and never within a character.

    Lone surrogates, which no request can carry, are removed.
    """
    units = text.encode("utf-16-le", "surrogatepass")
    whole = units.decode("utf-16-le", "ignore").strip()
    units = whole.encode("utf-16-le")
    if len(units) <= 2 * PROMPT_LIMIT:
        return whole
    cut = units[: 2 * PROMPT_LIMIT].decode("utf-16-le", "ignore")
    if whole[len(cut)].isspace():
        return cut.rstrip()
    words = re.split(r"\s+(?=\S*$)", cut, maxsplit=1)[0]
    # A text without spaces (Chinese, a pasted blob) may be cut anywhere.
    return words.rstrip() if len(words) >= len(cut) // 2 else cut


def fit_ratio(model: str, ratio: str) -> tuple[str, bool]:
    """Return the ratio of `model` nearest to `ratio` ("1280:768" → "1280:720"), and whether it is a different one.

    For an unknown model, `ratio` is returned unchanged.
    """
    known = MODELS.get(model)
    if known is None or ratio in known.ratios:
        return ratio, False
    shape = _shape(ratio)
    if shape is None:
        return known.ratios[0], True
    return min(known.ratios, key=lambda other: abs((_shape(other) or 0.0) - shape)), True


def fit_duration(model: str, seconds: float) -> tuple[int, bool]:
    """Return the duration of `model` nearest to `seconds`, and whether it is a different one.

    Of two equally near durations, the shorter and cheaper one is returned.
    """
    known = MODELS.get(model)
    if known is None:
        return round(seconds), False
    nearest = min(known.durations, key=lambda other: (abs(other - seconds), other))
    return nearest, nearest != seconds


def _shape(ratio: str) -> float | None:
    """Return the logarithm of width to height, so that distances are symmetric; None if `ratio` is not a ratio."""
    found = re.fullmatch(r"\s*(\d{1,6})\s*[:x×/]\s*(\d{1,6})\s*", ratio)
    if found is None or not int(found[1]) or not int(found[2]):
        return None
    return math.log(int(found[1]) / int(found[2]))
