"""Reads JSON of documents and settings strictly, and writes it always the same way.

Python's reader silently keeps the last of two equal names in an object. A document that was edited by hand and
contradicts itself must be refused instead. Nesting is limited to what can be written again.
"""

import json
from json.encoder import encode_basestring as _text
from typing import Any

from retake.foreign_text import shown

MAX_DEPTH = 100
"""Maximum levels of nesting. Python's JSON reader may go deeper than its writer: such a document could not be saved."""


def parse(data: str | bytes) -> Any:
    """Return the value that `data` holds. Raises ValueError, or its subclass json.JSONDecodeError if it is not JSON."""
    try:
        value = _DECODER.decode(data if isinstance(data, str) else _decoded(data))
    except RecursionError as error:
        raise ValueError(f"not JSON that can be read: nested too deeply ({error})") from error
    opened = data.count("{") + data.count("[") if isinstance(data, str) else data.count(b"{") + data.count(b"[")
    if opened > MAX_DEPTH and deeper_than(MAX_DEPTH, value):  # cheap test first: each level needs a bracket
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    return value


def _decoded(data: bytes) -> str:
    try:
        return data.decode(json.detect_encoding(data), "surrogatepass")
    except UnicodeDecodeError as error:
        raise ValueError(f"not JSON (byte {error.start + 1} is not UTF-8)") from error


def encode(value: Any) -> bytes:
    """Return `value` as documents are stored: indented JSON in UTF-8, keys in their order, a newline at the end.

    A lone surrogate, which JSON can represent and UTF-8 cannot, is kept by writing the whole document in ASCII.
    """
    try:
        text = _readable(value, "\n")
    except (_NotPlain, RecursionError):
        text = json.dumps(value, ensure_ascii=False, indent=2)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value, indent=2).encode() + b"\n"


class _NotPlain(Exception):
    """A value that `_readable` leaves to the json module, which may still be able to write it."""


def _readable(value: Any, line: str) -> str:
    """Return the same as `json.dumps(value, ensure_ascii=False, indent=2)` in half the time: the json module's C
    writer cannot indent. `line` is a line feed and the indent of the line that `value` ends on. Raises _NotPlain."""
    kind = type(value)
    if kind is str:
        return _text(value)
    if kind is dict:
        inner, parts = f"{line}  ", []
        for key, item in value.items():
            if type(key) is not str:
                raise _NotPlain
            parts.append(f"{_text(key)}: {_text(item) if type(item) is str else _readable(item, inner)}")
        return f"{{{inner}{f',{inner}'.join(parts)}{line}}}" if parts else "{}"
    if kind is list:
        inner = f"{line}  "
        return f"[{inner}{f',{inner}'.join([_readable(item, inner) for item in value])}{line}]" if value else "[]"
    if value is None or kind is bool:
        return "null" if value is None else "true" if value else "false"
    if kind is int or (kind is float and value - value == 0):  # neither infinite nor NaN
        return repr(value)
    raise _NotPlain


def as_stored(value: Any) -> Any:
    """Return a copy of `value` as it would be read back from a document. Raises ValueError if it is not JSON."""
    try:
        return parse(encode(value))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error


def well_formed(value: Any) -> Any:
    """Return `value` with "?" in place of lone surrogates, which no UTF-8 file can hold."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def for_programs(value: Any, **options: Any) -> str:
    """Return `json.dumps(value, **options)`, with null in place of NaN and infinity. JSON lacks these, but Python reads
    and writes them, and so they are in documents of other programs."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None), **options)


def what_is_wrong(error: ValueError) -> str:
    """Return why `parse` refused its input, in words."""
    return str(error) if type(error) is ValueError else f"not JSON ({error})"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"{shown(duplicate)} appears twice in one object; keep one of them")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)  # making one takes longer than reading a short document


def deeper_than(levels: int, value: object) -> bool:
    """Return whether `value` has more than `levels` levels of objects and lists."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if levels < 0 or not inner:
        return levels < 0
    return any(deeper_than(levels - 1, item) for item in inner)
