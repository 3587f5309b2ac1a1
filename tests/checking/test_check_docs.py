"""docs/check.md lists every code with its cause and remedy."""

from pathlib import Path

from retake.checking import CODES

PAGE = (Path(__file__).parents[2] / "docs" / "check.md").read_text("utf-8")


def test_each_code_is_listed_as_the_code_has_it() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{name}` | {it.level.value} | {it.cause} | {it.todo} | {'yes' if it.repairable else 'no'} |"
        for name, it in CODES.items()
    ]
