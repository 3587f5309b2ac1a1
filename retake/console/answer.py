"""The answer of a command: one document for programs, and blocks of text for people that say the same."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from retake.operations.port import OrderDone
from retake.runs.states import RunStatus


class Tone(StrEnum):
    """How a piece of text is meant. On a terminal with colours it shows; nothing is said by colour alone."""

    PLAIN = ""
    STRONG = "bold"
    GOOD = "green"
    WARN = "yellow"
    BAD = "red"
    FAINT = "dim"


class Cell(NamedTuple):
    """A piece of text with its tone."""

    text: str
    tone: Tone = Tone.PLAIN


class Heading(NamedTuple):
    """A line above what belongs together."""

    text: str


class Sentence(NamedTuple):
    """A sentence of its own, wrapped where the terminal ends, `indent` columns from its left edge."""

    text: str
    tone: Tone = Tone.PLAIN
    indent: int = 0


class Facts(NamedTuple):
    """What things are, one a line: label and value."""

    rows: Sequence[tuple[str, str | Cell]]


class Table(NamedTuple):
    """Rows below named columns; `right` are the columns whose text stands at their right edge (numbers),
    `brief` those that are cut short on a terminal. In a pipe nothing is cut."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    right: Sequence[str] = ()
    brief: Sequence[str] = ()


class Raw(NamedTuple):
    """A text that is written as it stands, line by line."""

    text: str


class Markdown(NamedTuple):
    """A text in Markdown: as it stands in a pipe, rendered on a terminal."""

    text: str


Block = Heading | Sentence | Facts | Table | Raw | Markdown


class Answer(NamedTuple):
    """What a command returns. `document` is ready for JSON; `exit_code` is what the command exits with."""

    document: Mapping[str, Any]
    blocks: Sequence[Block]
    exit_code: int = 0


def cell(value: str | Cell) -> Cell:
    """Return `value` as a Cell."""
    return value if isinstance(value, Cell) else Cell(value)


RUN_TONES = {
    RunStatus.SUCCEEDED: Tone.GOOD,
    RunStatus.FAILED: Tone.BAD,
    RunStatus.RETRY_SCHEDULED: Tone.WARN,
    RunStatus.INTERRUPTED: Tone.WARN,
    RunStatus.CANCELLED: Tone.FAINT,
}
"""How each state of a run is shown."""


def done_lines(what: str, then: str = "", warning: str = "") -> list[Block]:
    """Return the lines of a command that has done something: `what`, and what comes `then`."""
    return [
        Sentence(f"Done: {what}.", Tone.GOOD),
        *([Sentence(f"Warning: {warning}.", Tone.WARN)] if warning else []),
        *([Sentence(f"{then[0].upper()}{then[1:]}.")] if then else []),
    ]


def done_answer(it: OrderDone) -> Answer:
    """Return the answer of a command that has carried out an order."""
    return Answer(it.document, done_lines(it.what, it.then, it.warning))
