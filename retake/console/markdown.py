"""Write Markdown that foreign texts cannot break.

The dialect is CommonMark with tables, as on GitHub. A foreign text never ends a line, and any markup in it is escaped.
A pipe becomes a character reference, because parsers of tables do not agree on which pipes a backslash escapes.
"""

from collections.abc import Iterable, Sequence

from retake.foreign_text import one_line

_ESCAPED = {**{sign: f"\\{sign}" for sign in "\\`*_[]<>#&~$!"}, "|": "&#124;"}


def text(value: object) -> str:
    """Return `value` as plain text for a line or a table's cell."""
    return _escaped(line(value))


def sentence(value: str) -> str:
    """Return a sentence of ours for a line: text between backticks is code, the rest plain text."""
    parts = line(value).split("`")
    if len(parts) % 2 == 0:  # an unpaired backtick
        return text(value)
    return "".join(code(part) if number % 2 else _escaped(part) for number, part in enumerate(parts))


def _escaped(words: str) -> str:
    return "".join(_ESCAPED.get(sign, sign) for sign in words)


def code(value: object) -> str:
    """Return `value` unchanged as code, fenced by more backticks than it contains. Not for a table's cell."""
    words = line(value) or " "
    longest = max((len(run) for run in "".join("`" if it == "`" else " " for it in words).split()), default=0)
    fence = "`" * (longest + 1)
    room = " " if words.startswith("`") or words.endswith("`") else ""
    return f"{fence}{room}{words}{room}{fence}"


def line(value: object) -> str:
    """Return `value` on one line, without control characters."""
    return " ".join(one_line(str(value)).split())


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table. Its cells are already Markdown (see `text`)."""
    lines = [f"| {' | '.join(columns)} |", f"|{'|'.join(' --- ' for _ in columns)}|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def section(title: str, lines: Iterable[str]) -> list[str]:
    """Return a heading and the lines below it."""
    return [f"## {title}", "", *lines, ""]
