"""JSON as documents and settings hold it: read strictly, and always written the same way.

Python's reader keeps the last of two equal names in an object and silently drops the other. A document that was edited
by hand and contradicts itself must be refused instead. Nesting is limited to what can be written again.
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


def encode(value: Any) -> bytes:
    """Return `value` as a document is stored: readable JSON, UTF-8, keys in their order, a newline at the end.

    A lone surrogate, which JSON can carry and UTF-8 cannot, is kept: the whole document is then written in ASCII.
    """
    try:
        return json.dumps(value, ensure_ascii=False, indent=2).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value, indent=2).encode() + b"\n"


def as_stored(value: Any) -> Any:
    """Return a copy of `value` as a document would give it back. Raises ValueError for what is not JSON."""
    try:
        return parse(encode(value))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error


def well_formed(value: Any) -> Any:
    """Return `value` with lone surrogates, which no UTF-8 file can hold, replaced by "?"."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def what_is_wrong(error: ValueError) -> str:
    """Return why `parse` refused something, in words."""
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
