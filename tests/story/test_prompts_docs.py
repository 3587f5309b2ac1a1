"""docs/prompts.md describes the prompts file: its example is valid, and its tables name every key."""

import re
from pathlib import Path

from retake.story.content import KEYS, Prompt, load_prompts, unknown_references

PAGE = (Path(__file__).parents[2] / "docs" / "prompts.md").read_text("utf-8")


def names_in(section: str) -> list[str]:
    """Return the keys in the first column of the section's table."""
    rows = re.findall(r"^\| (`.+?) \|", PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0], re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def test_the_example_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "prompts.json").write_text(PAGE.partition("```json\n")[2].partition("```")[0], "utf-8")
    prompts = load_prompts(str(tmp_path / "prompts.json"))
    assert not unknown_references(prompts)
    defaults = prompts[1]
    assert f"{defaults.temperature} and {defaults.max_tokens} by default" in PAGE


def test_the_tables_name_every_key() -> None:
    assert names_in("A call") == [*Prompt._fields]
    assert sorted(names_in("The answers")) == sorted(KEYS)
