"""Idempotency keys: made from the data, so that who asks for the same thing twice asks with the same key."""

import unicodedata
from collections.abc import Mapping
from typing import Any


def key_of(data: Mapping[str, Any]) -> str:
    """The idempotency key of `data`: 64 hexadecimal digits, the same for the same data, and for no other.

    The same data are JSON that means the same: the order of an object's keys makes no difference, nor whether a number
    is written 10 or 10.0 (JSON has one kind of number, and systems pass them on as they like), nor whether «й» is one
    character or two (Unicode's form C: macOS takes it apart, everybody else does not). Everything else does make one:
    upper and lower case, spaces, the order of a list, 10 and "10", a key with null and no key. Form KC is not used: it
    makes «м²» of «м2».

    Raises ValueError, naming the place, for what is no JSON: a number that is not finite, a key that is no text, an
    object of Python's own.
    """
    import json
    from hashlib import sha256

    text = json.dumps(_canonical(data, "data"), ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def _canonical(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if value - value != 0:
            raise ValueError(f"{where}: {value} is no number that JSON has")
        return int(value) if value.is_integer() else value
    if isinstance(value, list | tuple):
        return [_canonical(part, f"{where}[{index}]") for index, part in enumerate(value)]
    if isinstance(value, Mapping):
        return _canonical_object(value, where)
    raise ValueError(f"{where}: {type(value).__name__} is nothing that JSON has")


def _canonical_object(value: Mapping[Any, Any], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, part in value.items():
        if not isinstance(name, str):
            raise ValueError(f"{where}: the key {name!r} is no text")  # noqa: TRY004  see key_of
        canonical = unicodedata.normalize("NFC", name)
        if canonical in found:
            raise ValueError(f"{where}: the key {canonical!r} is there twice")
        found[canonical] = _canonical(part, f"{where}.{canonical}")
    return found
