"""Makes text from outside (a vendor's message, a document, a listing) safe to show.

Terminals obey control characters (ESC, BEL, U+009B); other characters break lines (U+0085, U+2028), reverse the text
(U+202E) or are invisible (U+200B). All text for a terminal, a log or a page passes through one of these functions.
Letters of every script are kept.
"""

import json
import re
from functools import cache
from typing import Any

from retake.errors import redact


def one_line(text: str) -> str:
    """Return `text` on one line, with a space for each control or invisible character and no trailing space."""
    return several_lines(text).replace("\n", " ").rstrip()


def several_lines(text: str) -> str:
    """Return `text` with a space for each control or invisible character except line feeds."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)


def json_lines(text: str) -> str:
    r"""Return the JSON `text` with each control or invisible character escaped (\u202e)."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else _escape(sign) for sign in text)


@cache
def _escape(sign: str) -> str:
    return json.dumps(sign)[1:-1]


def plain(name: str) -> str:
    """Return `name`, which comes from outside, for one line of a message: printable, 120 characters at most."""
    text = name if name.isprintable() else repr(name)
    return text if len(text) <= 120 else text[:120] + "…"


def storable(text: str) -> str:
    """Return `text` if databases, Redis and JSON can hold it. Raises ValueError otherwise."""
    if "\0" in text or any("\ud800" <= sign <= "\udfff" for sign in text):
        raise ValueError("has characters that cannot be stored")
    return text


def utf16_cut(text: str, limit: int) -> str:
    """Return `text` cut to `limit` UTF-16 code units, the unit of SMS and Telegram.

    A cut text ends with "…". A lone surrogate becomes "?".
    """
    encoded = text.encode("utf-16-le", "replace")
    if len(encoded) <= 2 * limit:
        return encoded.decode("utf-16-le")
    return encoded[: 2 * (limit - 1)].decode("utf-16-le", "ignore").rstrip() + "…"


def shown(value: Any) -> str:
    """Return `value` for a message: short, on one line, and without anything that may be a misplaced secret."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list) and any(isinstance(part, (dict, list)) for part in value):
        return "a list"
    text = redact(json.dumps(value, ensure_ascii=False, default=str))  # TOML has dates
    text = re.sub(r"://[^/\s\"]*@", "://…@", text)
    text = re.sub(r"(?i)(password=)[^&\s\"]+", r"\1…", text)
    return plain(re.sub(r"[\w+=-]{20,}", "…", text))
