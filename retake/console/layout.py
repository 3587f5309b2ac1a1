"""Lay out text on a narrow terminal: where lines are folded, and when a table becomes a list. Pure.

A time or an id is never broken: "2026-01-31 12:00:00 UTC" and a vendor's task stay on one line, however narrow the
terminal is, so that they can be read and copied.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence

GAP = 2
"""Terminal columns between two columns of a table."""

MAX_BRIEF = 80
"""Maximum number of characters of a brief cell shown on a terminal, enough for the status of a vendor's answer."""

_MIN_WORD_WIDTH = 14  # terminal columns; longer words may be broken when a column is narrowed to this
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?: ?UTC|Z)?|\d\d:\d\d:\d\d")
_ID = re.compile(r"(?<!\S)(?=[a-z_-]*\d)[0-9a-z_-]{8,40}(?![^\s,;:.)])")  # of a run, a generation, a task (36)
_GLUE = "\N{NO-BREAK SPACE}"  # replaces a space at which lines must not be folded; a text may contain some itself
_FILLER = "\0"  # follows each character of two columns during folding, because textwrap counts characters


def fold(text: str, width: int) -> list[str]:
    """Return `text` in lines of at most `width` columns, except that a time or an id stays whole."""
    glued = _TIME.sub(lambda time: time[0].replace(" ", _GLUE), text)
    filler = "" if text.isascii() or _FILLER in text else _FILLER
    if filler:
        glued = "".join(sign + filler * (columns_of(sign) - 1) for sign in glued)
    lines: list[str] = []
    for line in textwrap.wrap(glued, max(1, width), break_long_words=False, break_on_hyphens=False) or [""]:
        whole = line.replace(filler, "") if filler else line
        lines += _split(whole.replace(_GLUE, " "), max(1, width))
    return lines


def _split(line: str, width: int) -> Iterator[str]:
    """Break a line whose only word is too long, unless it contains a time or an id."""
    if columns_of(line) <= width or _TIME.search(line) or _ID.search(line):
        yield line
        return
    part = ""
    for sign in line:
        if part and columns_of(part + sign) > width:
            yield part
            part = ""
        part += sign
    yield part


def widths(columns: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Return the widths of a table's columns that fit into `room`, or None if it is too narrow for a table. `columns`
    are the texts of each column, its name first."""
    natural = [max(map(columns_of, column)) for column in columns]
    least = [min(full, _min_width(column)) for full, column in zip(natural, columns, strict=True)]
    room -= GAP * (len(columns) - 1)
    if sum(least) > room:
        return None
    chosen = list(natural)
    while (over := sum(chosen) - room) > 0:  # narrow the widest column that can still be folded
        able = [number for number in range(len(chosen)) if chosen[number] > least[number]]
        widest = max(able, key=lambda number: chosen[number])
        others = max((chosen[number] for number in able if number != widest), default=0)
        chosen[widest] = max(least[widest], min(chosen[widest] - 1, max(chosen[widest] - over, others)))
    return chosen


def _min_width(column: Sequence[str]) -> int:
    """Return the minimum width of a column, at which its times, ids and shorter words stay whole."""
    whole = [columns_of(it[0]) for text in column for kind in (_TIME, _ID) for it in kind.finditer(text)]
    words = [min(columns_of(word), _MIN_WORD_WIDTH) for text in column for word in text.split()]
    return max([1, *whole, *words])


def cut(text: str, limit: int = MAX_BRIEF) -> str:
    """Return `text`, truncated to `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def columns_of(text: str) -> int:
    """Return the number of terminal columns that `text` takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in text)
