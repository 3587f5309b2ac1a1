"""docs/prompts.md describes the prompts file: its example is valid, and its tables name every key."""

import json
import re
from pathlib import Path

import pytest

from retake.errors import SettingsError
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


@pytest.mark.parametrize("value", [None, 5, {"a": "b"}, ["a", None]], ids=str)
@pytest.mark.parametrize("key", ["system", "user"])
def test_messages_are_what_the_page_says(key: str, value: object, tmp_path: Path) -> None:
    call = {"name": "all", "keys": list(KEYS), "system": "s", "user": "u", key: value}
    (tmp_path / "prompts.json").write_text(json.dumps({"calls": [call]}), "utf-8")
    with pytest.raises(SettingsError, match=f"call 'all': {key} must be a text or a list of lines, and is"):
        load_prompts(str(tmp_path / "prompts.json"))


def test_the_tables_name_every_key() -> None:
    assert names_in("A call") == [*Prompt._fields]
    assert sorted(names_in("The answers")) == sorted(KEYS)
