"""Markdown that stays what it was meant to be, whatever the texts in it contain.

Written for CommonMark with tables, as GitHub and most others read it. Somebody else's text never ends a line, and what
could begin something in it is escaped. A pipe becomes a character reference: readers of tables do not agree on which
pipes a backslash escapes.
"""

from collections.abc import Iterable, Sequence

from retake.foreign_text import one_line

_ESCAPED = {**{sign: f"\\{sign}" for sign in "\\`*_[]<>#&~$!"}, "|": "&#124;"}


def text(value: object) -> str:
    """Return `value` as plain words within a line or a table's cell."""
    return _escaped(line(value))


def sentence(value: str) -> str:
    """Return a sentence of ours within a line: what it has between backticks is code, the rest plain words."""
    parts = line(value).split("`")
    if len(parts) % 2 == 0:  # one without its pair
        return text(value)
    return "".join(code(part) if number % 2 else _escaped(part) for number, part in enumerate(parts))


def _escaped(words: str) -> str:
    return "".join(_ESCAPED.get(sign, sign) for sign in words)


def code(value: object) -> str:
    """Return `value` as code, unchanged, between more backticks than it has in a row. Not for a table's cell."""
    words = line(value) or " "
    longest = max((len(run) for run in "".join("`" if it == "`" else " " for it in words).split()), default=0)
    fence = "`" * (longest + 1)
    room = " " if words.startswith("`") or words.endswith("`") else ""
    return f"{fence}{room}{words}{room}{fence}"


def line(value: object) -> str:
    """Return `value` on one line, without control characters."""
    return " ".join(one_line(str(value)).split())


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table; cells are Markdown already (`text`)."""
    lines = [f"| {' | '.join(columns)} |", f"|{'|'.join(' --- ' for _ in columns)}|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def section(title: str, lines: Iterable[str]) -> list[str]:
    """Return a heading and the lines below it."""
    return [f"## {title}", "", *lines, ""]
