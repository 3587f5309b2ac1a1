"""What stands between text from outside (a vendor's message, a document, a listing) and whatever shows it.

A terminal obeys control characters (ESC, BEL, U+009B), readers of lines break at some (U+0085, U+2028), and some turn
around what is read (U+202E) or cannot be seen at all (U+200B). Everything that leaves for a terminal, a log or a page
passes through one of these functions. Letters of every script stay.
"""

import json
import re
from functools import cache
from typing import Any

from retake.errors import redact


def one_line(text: str) -> str:
    """`text` on one line, a space for each character that rules or cannot be seen, none at its end."""
    return several_lines(text).replace("\n", " ").rstrip()


def several_lines(text: str) -> str:
    """`text` with a space for each character that rules or cannot be seen, but for the line feeds."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)


def json_lines(text: str) -> str:
    r"""The same JSON as `text`, with an escape (\u202e) for each character in it that rules or cannot be seen."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else _escape(sign) for sign in text)


@cache
def _escape(sign: str) -> str:
    return json.dumps(sign)[1:-1]


def plain(name: str) -> str:
    """`name`, from a file that anything may stand in, fit for one line of a message."""
    text = name if name.isprintable() else repr(name)
    return text if len(text) <= 120 else text[:120] + "…"


def shown(value: Any) -> str:
    """`value` as a message may show it: short, on one line, and without what may be a secret in the wrong place."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list) and any(isinstance(part, (dict, list)) for part in value):
        return "a list"
    text = redact(json.dumps(value, ensure_ascii=False, default=str))  # TOML has dates
    text = re.sub(r"://[^/\s\"]*@", "://…@", text)
    text = re.sub(r"(?i)(password=)[^&\s\"]+", r"\1…", text)
    return plain(re.sub(r"[\w+=-]{20,}", "…", text))
