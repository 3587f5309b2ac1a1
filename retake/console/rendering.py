"""Render an answer: coloured tables on a terminal, aligned plain text in a pipe, one JSON document for programs.

Texts from vendors are cleaned, so that they cannot move the cursor or end a line. A stream that cannot encode a
character gets a plainer one instead of an error.
"""

import codecs
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from retake.console.answer import Answer, Block, Cell, Facts, Heading, Markdown, Raw, Sentence, Table, Tone, cell
from retake.console.layout import GAP, columns_of, cut, fold, widths
from retake.foreign_text import json_lines, one_line, several_lines
from retake.logs import forget_unwritten
from retake.strict_json import for_programs

if TYPE_CHECKING:
    from rich.console import Console

_ASCII_FORMS = {
    **dict.fromkeys("«»„“”", '"'),
    **dict.fromkeys("–—−", "-"),
    "…": "...",
    "·": "-",
    "×": "x",
    "→": "->",
    "✓": "ok",
    "✗": "x",
    "’": "'",
    "\u00a0": " ",
}
"""ASCII replacements for the characters that we use ourselves."""


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Replace the characters that the stream's encoding lacks. An error handler of codecs."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    shown = (_ASCII_FORMS.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in lacking)
    return "".join(shown), error.end


codecs.register_error("retake.plainer", _replace_unencodable)


def show(answer: Answer, stream: TextIO, *, as_json: bool, indent: int | None = 2) -> None:
    """Write `answer` to `stream`, as JSON or as text for a terminal or a pipe. JSON is indented by `indent`, or on one
    line if that is None. Raises BrokenPipeError if nobody reads it any more."""
    _tolerate_encoding(stream)
    if as_json:
        unicode = (stream.encoding or "").lower().replace("-", "") == "utf8"
        stream.write(json_lines(for_programs(answer.document, ensure_ascii=not unicode, indent=indent)) + "\n")
    elif stream.isatty():
        _show_on_terminal(answer.blocks, stream)
    else:
        stream.writelines(f"{line}\n" for line in plain(answer.blocks))
    stream.flush()


def complain(message: str, stream: TextIO) -> None:
    """Write an error message to stderr for people. If that fails, only the exit code reports the error."""
    _tolerate_encoding(stream)
    try:
        for number, line in enumerate(message.splitlines() or [""]):
            stream.write(f"{'  ' if number else 'error: '}{one_line(line)}\n")
        stream.flush()
    except OSError as error:  # nobody reads it any more, or the disk is full
        forget_unwritten(stream, for_good=isinstance(error, BrokenPipeError))


def _tolerate_encoding(stream: TextIO) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure:
        reconfigure(errors="retake.plainer")


# --- in a pipe ----------------------------------------------------------------------------------------------------


def plain(blocks: Sequence[Block]) -> Iterator[str]:
    """Yield the lines of the blocks without colours, with aligned columns, and without truncating or wrapping."""
    for number, block in enumerate(blocks):
        match block:
            case Heading(text):
                yield from ([""] if number else [])
                yield one_line(text)
            case Sentence(text, _, indent):
                yield " " * indent + one_line(text)
            case Facts(rows):
                yield from _aligned([[label, cell(value).text] for label, value in rows], ())
            case Table(columns, rows, right):
                texts = [[name.upper() for name in columns], *([cell(value).text for value in row] for row in rows)]
                yield from _aligned(texts, [columns.index(name) for name in right])
            case Raw(text) | Markdown(text):
                yield from map(one_line, text.split("\n")[: -1 if text.endswith("\n") else None])


def _aligned(rows: Sequence[Sequence[str]], right: Sequence[int]) -> Iterator[str]:
    cleaned = [[one_line(text) for text in row] for row in rows]
    widths = [max(map(columns_of, column)) for column in zip(*cleaned, strict=True)]
    for row in cleaned:
        cells = []
        for number, (text, width) in enumerate(zip(row, widths, strict=True)):
            room = " " * (width - columns_of(text))
            cells.append(room + text if number in right else text + room)
        yield (" " * GAP).join(cells).rstrip()


# --- on a terminal ------------------------------------------------------------------------------------------------


def _show_on_terminal(blocks: Sequence[Block], stream: TextIO) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, emoji=False, markup=False)
    for number, block in enumerate(_rendered(blocks)):
        match block:
            case Heading(text):
                console.print(*([] if not number else ["\n"]), Text(one_line(text), "bold"), sep="")
            case Sentence(text, tone, indent):
                for line in fold(one_line(text), console.width - indent):
                    console.print(Text(f"{' ' * indent}{line}", tone.value), soft_wrap=True)
            case Facts(rows):
                _print_facts(rows, console)
            case Table():
                _print_table(block, console)
            case Raw(text):
                console.print(Text(several_lines(text.rstrip("\n"))), soft_wrap=True)


def _rendered(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        if isinstance(block, Markdown):
            from retake.console.rendered import blocks_of

            yield from blocks_of(block.text)
        else:
            yield block


def _print_facts(rows: Sequence[tuple[str, str | Cell]], console: "Console") -> None:
    """Print each label and value. A time or an id may exceed the width; the terminal then wraps it."""
    from rich.text import Text

    labels = [one_line(label) for label, _ in rows]
    width = max(map(columns_of, labels), default=0) + GAP
    for label, (_, value) in zip(labels, rows, strict=True):
        shown = cell(value)
        for number, line in enumerate(fold(one_line(shown.text), console.width - width)):
            told = "" if number else label
            room = " " * (width - columns_of(told))
            console.print(Text.assemble((told, Tone.FAINT.value), room, (line, shown.tone.value)), soft_wrap=True)


def _print_table(table: Table, console: "Console") -> None:
    """Print the table or, if the terminal is too narrow for it, each row as a list of facts."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    rows = [[_shown(value, name in table.brief) for value, name in zip(row, table.columns, strict=True)]
            for row in table.rows]  # fmt: skip
    texts = [[name, *(row[number].text for row in rows)] for number, name in enumerate(table.columns)]
    chosen = widths(texts, console.width)
    if chosen is None:
        for number, row in enumerate(rows):
            if number:
                console.print()
            _print_facts([(name, it) for name, it in zip(table.columns, row, strict=True) if it.text], console)
        return
    shown = RichTable(box=SIMPLE_HEAD, header_style="dim", show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name, size in zip(table.columns, chosen, strict=True):
        justify = "right" if name in table.right else "left"
        head = Text(one_line(name))
        shown.add_column(head, justify=justify, min_width=size, max_width=size, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        folded = ("\n".join(fold(it.text, size)) for it, size in zip(row, chosen, strict=True))
        shown.add_row(*(Text(text, it.tone.value) for text, it in zip(folded, row, strict=True)))
    console.print(shown)


def _shown(value: str | Cell, brief: bool) -> Cell:
    it = cell(value)
    return Cell(cut(one_line(it.text)) if brief else one_line(it.text), it.tone)


__all__ = ["columns_of", "complain", "plain", "show"]
