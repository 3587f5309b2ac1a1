"""The answer of a command: a document for programs, and blocks of text for people with the same content."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from retake.operations.port import OrderDone
from retake.runs.states import RunStatus


class Tone(StrEnum):
    """The tone of a piece of text, shown on a terminal with colours. Nothing is said by colour alone."""

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
    """The heading of the blocks below it."""

    text: str


class Sentence(NamedTuple):
    """A sentence, wrapped to the terminal's width and indented by `indent` columns."""

    text: str
    tone: Tone = Tone.PLAIN
    indent: int = 0


class Facts(NamedTuple):
    """A list of facts, each a label and a value on one line."""

    rows: Sequence[tuple[str, str | Cell]]


class Table(NamedTuple):
    """A table with named columns. `right` are the right-aligned columns (numbers), `brief` those that are truncated on
    a terminal. In a pipe nothing is truncated."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    right: Sequence[str] = ()
    brief: Sequence[str] = ()


class Raw(NamedTuple):
    """Text that is written unchanged, line by line."""

    text: str


class Markdown(NamedTuple):
    """Text in Markdown, rendered on a terminal and unchanged in a pipe."""

    text: str


Block = Heading | Sentence | Facts | Table | Raw | Markdown


class Answer(NamedTuple):
    """The return value of a command. `document` can be encoded as JSON; `exit_code` is that of the command."""

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
"""The tone of each state of a run."""


def done_lines(what: str, then: str = "", warning: str = "") -> list[Block]:
    """Return the text that says `what` a command has done, and what happens `then`."""
    return [
        Sentence(f"Done: {what}.", Tone.GOOD),
        *([Sentence(f"Warning: {warning}.", Tone.WARN)] if warning else []),
        *([Sentence(f"{then[0].upper()}{then[1:]}.")] if then else []),
    ]


def done_answer(it: OrderDone) -> Answer:
    """Return the answer of a command that has carried out an order."""
    return Answer(it.document, done_lines(it.what, it.then, it.warning))
