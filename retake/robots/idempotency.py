"""Idempotency keys made from data: equal requests have equal keys."""

import unicodedata
from collections.abc import Mapping
from typing import Any


def key_of(data: Mapping[str, Any]) -> str:
    """Return the idempotency key of `data`: 64 hexadecimal digits, equal only for equal data.

    Data are equal if they mean the same as JSON. The order of an object's keys makes no difference, nor does 10 or 10.0
    (JSON has one kind of number), nor whether "й" is one character or two (text is normalized to NFC, since macOS
    decomposes it). Everything else makes a difference: case, spaces, the order of a list, 10 and "10", a null and a
    missing key. NFKC is not used, since it turns "m²" into "m2".

    Raises ValueError, naming the place, for data that are not JSON: a number that is not finite, a key that is not a
    string, an object of another Python type, lists or objects nested too deeply.
    """
    import json
    from hashlib import sha256

    try:
        text = json.dumps(_canonical(data, "data"), ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    except RecursionError as error:
        raise ValueError(f"data: nested too deeply ({error})") from error
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
            raise ValueError(f"{where}: {value} is not a number that JSON has")
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
            raise ValueError(f"{where}: the key {name!r} is not text")  # noqa: TRY004  see key_of
        canonical = unicodedata.normalize("NFC", name)
        if canonical in found:
            raise ValueError(f"{where}: the key {canonical!r} is there twice")
        found[canonical] = _canonical(part, f"{where}.{canonical}")
    return found
