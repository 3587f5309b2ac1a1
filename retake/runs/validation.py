"""Validates everything that a ledger stores, so that all stores refuse the same values.

Names (task_id, idempotency_key, actor, worker, kind, …) are short texts that every store can keep in an indexed column.
Payloads are JSON objects of limited size and depth. An invalid value never reaches the store.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from retake.errors import RunError

MAX_NAME_BYTES = 2_000
"""Maximum bytes of UTF-8 in a name: fits into an index entry of PostgreSQL."""

MAX_PAYLOAD_BYTES = 1_000_000
"""Maximum bytes of a payload as JSON."""

MAX_PAYLOAD_DEPTH = 100
"""Maximum levels of objects and lists in a payload."""

MAX_NOTES = 1_000
"""Maximum number of notes recorded with one transition."""

_INTEGER_LIMIT = 10**1000
_MENDED_CHARACTERS = 100_000  # of a whole value
_MENDED_TEXT = 10_000  # characters of one text in it


class InvalidField(RunError, ValueError):
    """A value that some store could not keep. `field` names it, `reason` says why. Nothing was changed."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}. Nothing was changed")
        self.field = field
        self.reason = reason


def name(field: str, value: object) -> str:
    """Return `value` if it is a name: a text that is not blank, within the limits of `column`. Raises InvalidField."""
    text = column(field, value)
    if not text or text.isspace():
        raise InvalidField(field, "has to be a text that is not empty")
    return text


def optional_name(field: str, value: object) -> str | None:
    """Return `value` if it is None or a name. Raises InvalidField."""
    return None if value is None else name(field, value)


def column(field: str, value: object) -> str:
    """Return `value` if it is a text, possibly empty, that a column of every store can hold. Raises InvalidField."""
    if not isinstance(value, str):
        raise InvalidField(field, f"is not text but {type(value).__name__}")
    if "\0" in value:
        raise InvalidField(field, "has a NUL character in it, which PostgreSQL cannot store")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise InvalidField(field, "has half of a surrogate pair in it, which UTF-8 cannot encode") from None
    if size > MAX_NAME_BYTES:
        raise InvalidField(field, f"is {size:,} bytes long, and {MAX_NAME_BYTES:,} are allowed")
    return value if type(value) is str else str(value)


def is_column(value: str) -> bool:
    """Return whether a column of every store can hold `value`."""
    try:
        column("", value)
    except InvalidField:
        return False
    return True


def moment(field: str, value: object) -> datetime:
    """Return the time `value` in UTC. Raises InvalidField."""
    if not isinstance(value, datetime):
        raise InvalidField(field, f"is not a time but {type(value).__name__}")
    if value.tzinfo is None:
        raise InvalidField(field, "is a time without a time zone")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidField(field, "is a time that UTC does not have") from None


def payload(field: str, value: object) -> dict[str, Any]:
    """Return a copy of the JSON object `value`, made of plain dicts and lists and equal to what will be read back.
    Raises InvalidField."""
    return _copied(field, value).result


def result(field: str, value: object) -> dict[str, Any]:
    """Return a copy of the result of a job. None and empty values become {}.

    Other programs read results, so unlike other payloads they must not contain NUL characters or lone surrogates.
    Raises InvalidField, also if reading the value raises.
    """
    try:
        if not value:
            return {}
        copy = _copied(field, value)
    except InvalidField:
        raise
    except Exception as error:
        raise InvalidField(field, f"cannot be read: {type(error).__name__}: {error}") from error
    if copy.odd:
        raise InvalidField(copy.odd, "has a NUL character or half of a surrogate pair in it")
    return copy.result


def record(value: object, *, needs_code: bool) -> dict[str, Any]:
    """Return a copy of the error record `value`. With `needs_code` it must have an error_code. Raises InvalidField."""
    found = payload("error", value)
    if needs_code or "error_code" in found:
        name("error.error_code", found.get("error_code"))
    return found


def notes(given: Sequence[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the notes of a transition, each as kind and payload. Raises InvalidField."""
    if len(given) > MAX_NOTES:
        raise InvalidField("notes", f"are {len(given):,}, and {MAX_NOTES:,} are allowed with one transition")
    return [
        (name(f"notes[{number}].kind", kind), payload(f"notes[{number}].payload", value))
        for number, (kind, value) in enumerate(given)
    ]


def mended(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return `value` as a payload that every store accepts, truncated and with replacements if necessary. Never raises.

    Use this for values that must be recorded whatever they are: errors, and parts of other programs' documents.
    """
    try:
        return payload("", value)
    except Exception:  # noqa: BLE001  foreign objects may raise anything
        found = _mended(value, _MENDED_CHARACTERS, 0)
        return found if isinstance(found, dict) else {"value": found}


def mended_record(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return the error record `error`, changed as by `mended`, with an error_code that every store accepts."""
    found = mended(error)
    code = found.get("error_code")
    if not isinstance(code, str) or not code.strip() or not is_column(code):
        found["error_code"] = ascii(code)[:200]
    return found


class _Copy:
    """A copy in progress, which stops as soon as it is too large."""

    def __init__(self) -> None:
        self.result: dict[str, Any] = {}
        self.odd = ""  # the path of text that only JSON can represent
        self._left = MAX_PAYLOAD_BYTES

    @property
    def may_be_too_large(self) -> bool:
        """Return whether the JSON has to be measured.

        The count so far bounds its size: a value counts 1 and takes at most 30 bytes plus its characters, which count 1
        and take at most 12 bytes each. Four bits of a number count 1 and take at most two digits.
        """
        return (MAX_PAYLOAD_BYTES - self._left) * 48 > MAX_PAYLOAD_BYTES

    def of(self, value: Any, where: str, depth: int = 0) -> Any:
        self._count(where, 1)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value, where)
        if isinstance(value, int):
            if abs(value) >= _INTEGER_LIMIT:
                raise InvalidField(where, "is a number of more than 1,000 digits")
            self._count(where, value.bit_length() // 4)  # at most its number of digits
            return int(value)
        if isinstance(value, float):
            if value - value != 0:
                raise InvalidField(where, f"is {value}, and JSON has no such number")
            return float(value)
        if depth == MAX_PAYLOAD_DEPTH:
            raise InvalidField(where, f"is nested deeper than {MAX_PAYLOAD_DEPTH} levels")
        if isinstance(value, list | tuple):
            return [self.of(part, f"{where}[{number}]", depth + 1) for number, part in enumerate(value)]
        if isinstance(value, Mapping):
            return {self._key(key, where): self.of(part, _within(where, key), depth + 1) for key, part in value.items()}
        raise InvalidField(where, f"is not JSON but {type(value).__name__}")

    def _key(self, key: Any, where: str) -> str:
        if not isinstance(key, str):
            raise InvalidField(where, f"has the key {key!a:.60}, which is not text")
        return self._text(key, where)

    def _text(self, value: str, where: str) -> str:
        self._count(where, len(value))
        if not self.odd and ("\0" in value or not _is_unicode(value)):
            self.odd = where
        return str(value)

    def _count(self, where: str, number: int) -> None:
        self._left -= number
        if self._left < 0:
            raise InvalidField(where, f"makes a payload of more than {MAX_PAYLOAD_BYTES:,} bytes")


def _copied(field: str, value: object) -> _Copy:
    if not isinstance(value, Mapping):
        raise InvalidField(field, f"is not a JSON object but {type(value).__name__}")
    copy = _Copy()
    copy.result = copy.of(value, field)
    if copy.may_be_too_large and (size := len(json.dumps(copy.result))) > MAX_PAYLOAD_BYTES:
        raise InvalidField(field, f"is {size:,} bytes of JSON, and {MAX_PAYLOAD_BYTES:,} are allowed")
    return copy


def _within(where: str, key: object) -> str:
    short = str(key)[:60]
    return f"{where}.{short if short.isprintable() else ascii(short)}"


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _mended(value: Any, budget: int, depth: int) -> Any:
    """Return the beginning of `value`, in about `budget` characters. Each part gets half of what is left."""
    if isinstance(value, str):
        return value[: min(budget, _MENDED_TEXT)].encode("utf-8", "replace").decode()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value) if value - value == 0 else str(value)
    if isinstance(value, int):
        return int(value) if abs(value) < _INTEGER_LIMIT else "a number of more than 1,000 digits"
    if depth == MAX_PAYLOAD_DEPTH // 4 or budget < 16:
        return "…"
    try:
        if isinstance(value, Mapping):
            return _mended_parts(value.items(), budget, depth)
        if isinstance(value, list | tuple):
            parts = _mended_parts(((str(number), part) for number, part in enumerate(value)), budget, depth)
            return list(parts.values())
        return _mended(repr(value), min(budget, 1_000), depth)
    except Exception as error:  # noqa: BLE001  from the object's own code
        return f"unreadable: {type(error).__name__}"


def _mended_parts(parts: Any, budget: int, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, part in parts:
        if budget < 16:
            break
        written = _mended(str(key)[:200], 200, depth)
        found[written] = _mended(part, budget // 2, depth + 1)
        budget -= len(json.dumps({written: found[written]}))
    return found
