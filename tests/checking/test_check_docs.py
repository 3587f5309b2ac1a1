"""docs/check.md lists every code with its cause and remedy."""

from pathlib import Path

import pytest
from advised import commands_in, parsed

from retake.checking import CODES

PAGE = (Path(__file__).parents[2] / "docs" / "check.md").read_text("utf-8")


def test_each_code_is_listed_as_the_code_has_it() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{name}` | {it.level.value} | {it.cause} | {it.todo} | {'yes' if it.repairable else 'no'} |"
        for name, it in CODES.items()
    ]


@pytest.mark.parametrize("name", [name for name, it in CODES.items() if "retake " in it.todo])
def test_the_commands_of_a_remedy_are_complete(name: str) -> None:
    commands = [*commands_in(CODES[name].todo)]
    assert commands
    for words in commands:
        parsed(["2" if word == "N" else word for word in words])
