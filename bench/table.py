"""A table as Markdown, to be pasted into docs/performance.md."""

from collections.abc import Sequence


def markdown(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the table, with the first column aligned left and the others right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = (
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join([first, *rest])} |"

    rule = "|".join(["-" * (widths[0] + 2), *(f"{'-' * (width + 1)}:" for width in widths[1:])])
    return "\n".join([title, "", line(head), f"|{rule}|", *map(line, rows)])
