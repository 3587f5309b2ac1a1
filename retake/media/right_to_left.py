"""Right-to-left scripts: Hebrew, and Arabic, whose letters also change shape next to each other.

The libraries are imported only for such texts. Vowel points are removed, as headlines have none.
"""

import unicodedata
from collections.abc import Sequence

_FROM_RIGHT = ("R", "AL")


def is_from_right(text: str) -> bool:
    """Return whether any part of `text` is written from right to left."""
    return any(unicodedata.bidirectional(character) in _FROM_RIGHT for character in text)


def joined(text: str) -> str:
    """Return `text` with Arabic letters in their contextual shapes (Arabic Presentation Forms)."""
    if not is_from_right(text):
        return text
    from arabic_reshaper import reshape

    text = "".join(it for it in text if not (unicodedata.combining(it) and unicodedata.bidirectional(it) == "NSM"))
    shaped: str = reshape(text)
    return shaped


def in_drawing_order(lines: Sequence[str]) -> list[str]:
    """Return the lines of a text with their letters in drawing order, from left to right [Unicode UAX #9].

    The first letter with a direction sets the base direction of all lines.
    """
    if not any(map(is_from_right, lines)):
        return list(lines)
    from bidi.algorithm import get_display

    base = _direction("".join(lines))
    return [str(get_display(line, base_dir=base)) for line in lines]


def _direction(text: str) -> str:
    strong = (unicodedata.bidirectional(character) for character in text)
    return next(("L" if it == "L" else "R" for it in strong if it in ("L", *_FROM_RIGHT)), "L")
