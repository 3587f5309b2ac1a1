"""The tables of docs/errors.md."""

from pathlib import Path

DOC = Path(__file__).parents[2] / "docs" / "errors.md"
_FAULTS = {"no answer in time": "hang", "connection cut": "cut-before", "200 HTML": "not-json"}


def rows(title: str) -> list[tuple[str, ...]]:
    """Return the rows of the table in a section."""
    section = DOC.read_text("utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in section.splitlines() if "|" in line]
    return cells[2:]


def fault_of(what: str) -> str:
    """Return the sandbox's fault for what happens in a row: "403 quotaExceeded" is 403-quotaExceeded."""
    return _FAULTS.get(what) or what.replace(" ", "-")
