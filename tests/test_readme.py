"""The README and docs/ match the project: links, tests, commands, files and figures."""

import re
import shlex
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import click
import pytest
from advised import parsed

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
PROBLEMS = ["README.md", "docs/troubleshooting.md"]
"""The pages that have a table of problems."""


def problems(page: str) -> list[str]:
    """Return the rows of the page's table of problems."""
    table = (ROOT / page).read_text("utf-8").partition("# What can go wrong")[2].partition("\n## ")[0]
    return [line for line in table.splitlines() if line.startswith("| ")][1:]


def shown(page: str) -> list[tuple[str, str]]:
    """Return the tests that the page names, with their files."""
    links = LINK.findall((ROOT / page).read_text("utf-8"))
    return [(text, target.removeprefix("../")) for text, target in links if "tests/" in target and " " in text]


def heading_anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_to_is_there(page: Path) -> None:
    for _, target in LINK.findall(page.read_text("utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.replace("\\", "").partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in heading_anchors(file), target


@pytest.mark.parametrize(("text", "file"), sorted({*shown(PROBLEMS[0]), *shown(PROBLEMS[1])}))
def test_the_named_test_exists(text: str, file: str) -> None:
    assert f"def test_{text.replace(' ', '_')}(" in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PROBLEMS)
def test_each_row_of_what_can_go_wrong_names_the_test_that_shows_it(page: str) -> None:
    rows = problems(page)
    assert len(rows) == len(shown(page)) >= 10
    assert all("](tests/" in row or "](../tests/" in row for row in rows)


def test_the_page_of_what_can_go_wrong_has_every_row_of_the_readme_and_the_readme_is_short() -> None:
    whole = [row.replace("](../tests/", "](tests/") for row in problems("docs/troubleshooting.md")]
    assert set(problems("README.md")) < set(whole)
    assert len(whole) >= 41
    assert len(README.splitlines()) <= 200


def test_the_commands_it_opens_with_are_targets() -> None:
    opening = README.partition("## What it looks like")[0]
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    named = re.findall(r"^    make ([a-z]+)", opening, flags=re.MULTILINE)
    assert named == ["run", "test"]
    assert set(named) <= set(targets)


def test_the_options_it_names_are_options() -> None:
    declaring = [ROOT / "retake" / "story" / "options.py", *(ROOT / "retake" / "console").glob("*.py")]
    code = "".join(path.read_text("utf-8") for path in declaring)
    text = README + (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    for option in sorted(set(re.findall(r"--[a-z]+(?:-[a-z]+)*", text)) - {"--help"}):
        assert f'"{option}"' in code, option


SCRIPTS = {
    "b2_storage_manager.py": ["tick"],
    "generate_content.py": ["content"],
    "generate_media.py": ["media"],
    "fetch_media.py": ["fetch"],
    "music_service.py": ["music", "serve"],
}
"""The `retake` words that each script of a checkout stands for."""

COMMAND = re.compile(rf"(?:\w+=\S+ )*(?:\S*python3? )?(?:-m retake|retake|(\S*/)?({'|'.join(SCRIPTS)})) (\S.*)")
PLACEHOLDERS = {"STEP": "imagine", "N": "3", "SECONDS": "3", "YYYY-MM-DD": "2026-01-31", "0..3": "1"}


def commands_of(page: Path) -> Iterator[list[str]]:
    """Yield the commands of a page, from its code lines and from its sentences.

    A command that stands for several ("list [--all]", "show|probe NAME") is one.
    """
    text = page.read_text("utf-8").replace("\\\n", " ")
    quoted = re.findall(r"`([^`\n]+)`", text)
    for line in (*(it for it in text.splitlines() if "`" not in it), *quoted):
        found = COMMAND.fullmatch(line.strip())
        if found is None:
            continue
        script, written = found[2], re.split(r" {2,}| # | > | 2>| \| | && |; ", found[3])[0]
        for part in written.replace(" | ", "|").split(", "):
            words = [word.strip("[]").removesuffix("...") for word in shlex.split(part)]
            for chosen in product(*(word.split("|") for word in words if word not in ("", "…"))):
                yield [*SCRIPTS.get(script, []), *(PLACEHOLDERS.get(word, word) for word in chosen)]


@pytest.mark.parametrize("page", [it for it in PAGES if it.name != "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_the_commands_of_a_page_are_accepted(page: Path) -> None:
    for words in commands_of(page):
        if words[:1] == ["COMMAND"] or not words:
            continue
        try:
            parsed(words)
        except click.MissingParameter:
            pass  # a sentence may name a command without its arguments
        except click.UsageError as error:
            told = error.format_message()
            if not told.endswith("requires an argument."):  # or an option
                raise AssertionError(f"{' '.join(words)}: {told}") from error


def test_the_layout_it_draws_matches_the_package() -> None:
    drawing = README.partition("## Layout")[2].partition("```\n\n")[0]
    folders = {path.name for path in (ROOT / "retake").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert set(re.findall(r"^  ([a-z]+)/", drawing, flags=re.MULTILINE)) == folders
    for module in (ROOT / "retake").glob("*.py"):
        assert module.name in drawing or module.name == "__init__.py"


def test_the_figures_are_those_that_the_benchmarks_print() -> None:
    """docs/performance.md has the headers of all the tables that `make bench` prints, in their order."""
    page = (ROOT / "docs" / "performance.md").read_text("utf-8")
    words = "process|system|(?:every )?tick|generation|left behind|(?:far )?(?:bucket|channels)|ledger|workers"
    heads = re.findall(rf"^\| ({words}|(?:100,000 )?runs|requests/s) +\|", page, flags=re.MULTILINE)
    assert heads == [
        *("process", "system", "tick", "generation", "left behind", "bucket", "tick", "every tick", "far bucket"),
        *("channels", "far channels", "ledger", "runs", "100,000 runs", "100,000 runs", "requests/s", "workers"),
    ]


def test_the_architecture_names_each_package() -> None:
    table = ARCHITECTURE.partition("## The packages")[2].partition("\n## ")[0]
    packages = {path.parent.name for path in ROOT.glob("retake/*/__init__.py")} | {"operations"}
    assert set(re.findall(r"^\| `([a-z]+)` \|", table, flags=re.MULTILINE)) == packages


def test_the_path_of_a_paid_call_names_functions_that_are_there() -> None:
    path = ARCHITECTURE.partition("## The path of one paid call")[2].partition("\n## ")[0]
    named = re.findall(r"\]\(\.\./([\w/]+\.py)\)\s+`(\w+)`", path)
    assert len(named) >= 25
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text("utf-8"), (file, name)


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/decisions/*.md")), ids=lambda page: page.name)
def test_a_decision_says_why_and_what_it_costs(page: Path) -> None:
    text = page.read_text("utf-8")
    assert re.match(rf"# {page.name[:3]}: .+\n", text)
    assert [it for it in ("Situation", "Decision", "Why", "Price") if f"**{it}.**" not in text] == []
