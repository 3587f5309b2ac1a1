"""JSON as documents and settings may hold it: each name once in an object, and no deeper than it can be written again.

Python's reader keeps the last of two equal names and drops the other without a word. A document that somebody mended by
hand, and that says two things at once, must be refused instead.
"""

import json
from typing import Any

from retake.foreign_text import shown

DEEPEST = 100
"""Levels of nesting. Where Python's JSON reader goes deeper than its writer, a document could be read and not saved."""


def parse(data: str | bytes) -> Any:
    """Return the value that `data` holds. Raises ValueError (json.JSONDecodeError where it is not JSON at all)."""
    try:
        value = json.loads(data, object_pairs_hook=_object)
    except RecursionError as error:
        raise ValueError(f"not JSON that can be read: nested too deeply ({error})") from error
    if _deeper_than(DEEPEST, value):
        raise ValueError(f"nested more than {DEEPEST} levels deep")
    return value


def what_is_wrong(error: ValueError) -> str:
    """Return in words why `parse` refused something."""
    return str(error) if type(error) is ValueError else f"not JSON ({error})"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"{shown(twice)} is there twice in one object; keep one of them")
    return found


def _deeper_than(levels: int, value: object) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_deeper_than(levels - 1, item) for item in inner)
