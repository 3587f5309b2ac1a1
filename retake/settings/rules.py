"""Rules: what a value of a file may be, in words and as a function that checks and converts it.

The function returns the value ready for use, or raises ValueError; schema.py writes the message.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple


class Rule(NamedTuple):
    """What is allowed, in words, and the function that returns the value ready for use or raises ValueError.

    whole(1, 5).read(3)     # 3
    whole(1, 5).allowed     # "whole number, 1 to 5"
    """

    allowed: str
    read: Callable[[Any], Any]
    hidden: bool = False  # whether what was found may be a secret, which no message may show


class PictureSize(NamedTuple):
    """Width and height of a picture, in pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


def _require(sound: bool) -> None:
    if not sound:
        raise ValueError


def whole(low: int, high: int | None = None) -> Rule:
    def read(value: Any) -> int:
        _require(type(value) is int and low <= value and (high is None or value <= high))
        return int(value)

    return Rule(f"whole number, {low} {'or more' if high is None else f'to {high}'}", read)


def above_zero(high: int) -> Rule:
    def read(value: Any) -> float:
        _require(type(value) in (int, float) and 0 < value <= high)
        return value  # type: ignore[no-any-return]  # an int stays an int: 300, not 300.0, in messages

    return Rule(f"number above 0, up to {high}", read)


def from_zero(high: int) -> Rule:
    def read(value: Any) -> float:
        _require(type(value) in (int, float) and 0 <= value <= high)
        return value  # type: ignore[no-any-return]

    return Rule(f"number, 0 to {high}", read)


def between(low: int, high: int) -> Rule:
    def read(value: Any) -> float:
        _require(type(value) in (int, float) and low <= value <= high)
        return value  # type: ignore[no-any-return]

    return Rule(f"number, {low} to {high}", read)


def choice(*choices: str) -> Rule:
    def read(value: Any) -> str:
        _require(isinstance(value, str) and value in choices)
        return str(value)

    return Rule(" or ".join(json.dumps(choice) for choice in choices), read)


def none_or(rule: Rule) -> Rule:
    """Allow "none" for None, in formats without a null such as TOML."""
    return Rule(f'{rule.allowed}, or "none"', lambda value: None if value == "none" else rule.read(value))


def several(rule: Rule) -> Rule:
    """Allow a list of different values, each as `rule` allows; it may be empty."""

    def read(value: Any) -> tuple[Any, ...]:
        _require(isinstance(value, list))
        read = tuple(rule.read(item) for item in value)
        _require(len(set(read)) == len(read))
        return read

    return Rule(f"list of different values, each: {rule.allowed}", read)


def some(rule: Rule) -> Rule:
    """Allow what `several` allows, but for an empty list."""
    many = several(rule)

    def read(value: Any) -> tuple[Any, ...]:
        found: tuple[Any, ...] = many.read(value)
        _require(found != ())
        return found

    return Rule(f"{many.allowed}; not empty", read, rule.hidden)


def _read_name(value: Any) -> str:
    text = _read_text(value)
    _require(len(text) <= 64 and text.isascii() and all(sign.isalnum() or sign in "-_." for sign in text))
    _require(not text.startswith("."))
    return text


def _read_variable(value: Any) -> str:
    text = _read_text(value)
    _require(text.isascii() and text.replace("_", "a").isalnum() and not text[0].isdigit() and len(text) <= 64)
    return text


def _read_yes_or_no(value: Any) -> bool:
    _require(type(value) is bool)
    return bool(value)


def _read_text(value: Any) -> str:
    _require(isinstance(value, str) and value.isprintable() and value == value.strip() and 0 < len(value) <= 500)
    return str(value)


def _without_credentials(url: str) -> str:
    _require("@" not in url.partition("://")[2].partition("/")[0])
    return url


def _read_endpoint(value: Any) -> str:
    text = _read_text(value)
    scheme, _, rest = text.partition("://")
    _require(scheme in ("http", "https") and not rest.startswith(("/", ":", "?")) and rest != "" and " " not in text)
    return _without_credentials(text).rstrip("/")


def _read_bucket_url(value: Any) -> str:
    text = _read_text(value)
    scheme, _, rest = text.partition(":")
    _require(scheme.isalnum() and rest != "")
    return _without_credentials(text)


def _read_ledger_url(value: Any) -> str:
    text = _read_text(value)
    scheme, _, rest = text.partition(":")
    _require(scheme in ("sqlite", "postgresql") and rest != "" and "password=" not in text.lower())
    if scheme == "postgresql":
        server, _, database = rest.removeprefix("//").partition("/")
        _require(rest.startswith("//") and server != "" and database != "")
        _require(":" not in server.rpartition("@")[0])
    return text


def _read_umask(value: Any) -> str:
    text = _read_text(value)
    _require(3 <= len(text) <= 4 and all(sign in "01234567" for sign in text) and not int(text, 8) & 0o7700)
    return text


def _read_key(value: Any) -> str:
    parts = _read_text(value).split("/")
    _require("\\" not in value and not any(part in ("", ".", "..") or part.startswith(".retake") for part in parts))
    return "/".join(parts)


def _read_folder(value: Any) -> str:
    return _read_key(_read_text(value).rstrip("/")) + "/"


def _read_ratio(value: Any) -> str:
    width, _, height = _read_text(value).partition(":")
    for part in (width, height):
        _require(part.isascii() and part.isdecimal() and len(part) <= 5 and int(part) > 0)
    return f"{width}:{height}"


def _read_size(value: Any) -> PictureSize:
    if isinstance(value, str):
        parts = [part.strip() for part in value.lower().replace("×", "x").replace("*", "x").split("x")]
        _require(all(part.isascii() and part.isdecimal() and len(part) <= 5 for part in parts))
        value = [int(part) for part in parts]
    _require(isinstance(value, list) and len(value) == 2)
    _require(all(type(side) is int and 16 <= side <= 4096 and side % 2 == 0 for side in value))
    return PictureSize(*value)


ENDPOINT = Rule("http:// or https:// URL without credentials", _read_endpoint)
BUCKET_URL = Rule(
    "file:PATH, b2://BUCKET/PREFIX or s3://BUCKET/PREFIX?endpoint=URL&region=NAME, without credentials",
    _read_bucket_url,
)
LEDGER_URL = Rule("sqlite:PATH or postgresql://USER@HOST:PORT/DATABASE, without a password", _read_ledger_url)
YES_OR_NO = Rule("true or false", _read_yes_or_no)
UMASK = Rule('octal digits that withhold nothing from the owner: "077", "027", "002"', _read_umask)
TEXT = Rule("text, not empty", _read_text)
NAME = Rule('name of letters, digits, "-", "_" and ".", 64 at most', _read_name)
VARIABLE = Rule("name of an environment variable; the secret itself stands in no file", _read_variable, hidden=True)
KEY = Rule("key in the bucket: relative, parts separated by /", _read_key)
FOLDER = Rule("folder in the bucket: relative, parts separated by /", _read_folder)
RATIO = Rule('"WIDTH:HEIGHT"', _read_ratio)
SIZE = Rule('"WIDTHxHEIGHT" or [WIDTH, HEIGHT], even numbers, 16 to 4096', _read_size)
SECONDS = above_zero(31_536_000)  # a year
PATIENCE = from_zero(31_536_000)  # seconds; 0 is "not at all"
USD = from_zero(1_000_000)
