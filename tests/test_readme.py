"""The README says what is there: its links, its tests, its commands, its files."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINKS = re.findall(r"\[([^\]]+)\]\(([^)#]+)\)", README)
SHOWN = [(text, target) for text, target in LINKS if target.startswith("tests/")]


@pytest.mark.parametrize("target", sorted({target for _, target in LINKS}))
def test_what_it_links_to_is_there(target: str) -> None:
    assert (ROOT / target.replace("\\", "")).exists()


@pytest.mark.parametrize(("text", "file"), SHOWN)
def test_the_test_that_shows_it_is_there(text: str, file: str) -> None:
    assert f"def test_{text.replace(' ', '_')}(" in (ROOT / file).read_text(encoding="utf-8")


def test_each_row_of_what_can_go_wrong_names_the_test_that_shows_it() -> None:
    table = README.partition("## What can go wrong")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(SHOWN)
    assert all("](tests/" in row for row in rows)


def test_the_commands_it_opens_with_are_targets() -> None:
    opening = README.partition("## What it looks like")[0]
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    named = re.findall(r"^    make ([a-z]+)", opening, flags=re.MULTILINE)
    assert named == ["run", "test"]
    assert set(named) <= set(targets)


def test_the_options_it_names_are_options() -> None:
    doors = [ROOT / "retake" / "story" / "options.py", *(ROOT / "retake" / "console").glob("*.py")]
    door = "".join(path.read_text("utf-8") for path in doors)
    for option in sorted(set(re.findall(r"--[a-z]+(?:-[a-z]+)*", README)) - {"--help"}):
        assert f'"{option}"' in door, option


def test_the_rooms_it_draws_are_those_of_the_package() -> None:
    drawing = README.partition("## How the house is laid out")[2].partition("```\n\n")[0]
    rooms = {path.name for path in (ROOT / "retake").iterdir() if (path / "__init__.py").exists()}
    assert set(re.findall(r"^  ([a-z]+)/", drawing, flags=re.MULTILINE)) == rooms
    for module in (ROOT / "retake").glob("*.py"):
        assert module.name in drawing or module.name == "__init__.py"


def test_its_figures_are_those_that_the_benchmarks_print() -> None:
    """The tables of the README have the heads of the tables that `make bench` prints, all of them, in their order."""
    words = "process|tick|generation|bucket|every tick|channels|ledger|runs|100,000 runs"
    heads = re.findall(rf"^\| ({words}) +\|", README.partition("## What it costs")[2], flags=re.MULTILINE)
    assert heads == [
        *("process", "tick", "generation", "bucket", "tick", "every tick", "channels"),
        *("ledger", "runs", "100,000 runs"),
    ]
