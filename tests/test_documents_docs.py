"""docs/documents.md describes every key of every document as its schema does, and nothing else."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from schemas import SCHEMAS, check

PAGE = (Path(__file__).parent.parent / "docs" / "documents.md").read_text(encoding="utf-8")
DOCUMENTS = {
    "config/config_public.json": "config_public",
    "config/config_gen.json": "config_gen",
    "config/config_midjourney.json": "config_midjourney",
    "666/ID.json": "content",
    "config/topics.json": "topics",
    "dead_letters/ID/report.json": "dead_letter",
    "spend/ID.json": "spend",
    "caps/DAY.json": "day_book",
    "paid/NAME/state.json": "paid_calls_state",
    "paid/NAME/calls/KEY.json": "paid_calls_key",
    "kept/FOLDER/index.json": "kept_index",
    "kept/dead_letters/MONTH.json": "kept_letters",
    "kept/spend/MONTH.json": "kept_bills",
    "Paid call": "paid_call",
    "Error record": "error_record",
}
"""The sections of the page, with the schema of each."""

WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "array": "list",
    "object": "object",
    "null": "null",
}

Part = Mapping[str, Any]


def resolved(name: str, part: Part) -> Part:
    """Return a part of a schema with its reference resolved."""
    if "anyOf" in part:  # a value or null
        return {**part, "type": [resolved(name, part["anyOf"][0])["type"], "null"]}
    if "$ref" not in part:
        return part
    target = part["$ref"]
    base = SCHEMAS[name]["$defs"][target.removeprefix("#/$defs/")] if target[0] == "#" else {"type": "object"}
    return {**base, **part, "properties": {**base.get("properties", {}), **part.get("properties", {})}}


def kind(part: Part) -> str:
    types = part.get("type", [])
    words = [WORDS[it] for it in ([types] if isinstance(types, str) else types)]
    words = [f"{it} (ISO 8601)" if it == "text" and "format" in part else it for it in words]
    return " or ".join(words) or "not checked"


def rows(name: str, part: Part, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the key, type and description from each row."""
    for key, inner in part.get("properties", {}).items():
        it = resolved(name, inner)
        yield f"`{prefix}{key}`", kind(it), it["description"]
        yield from rows(name, it, f"{prefix}{key}.")
        values = it.get("additionalProperties")
        if isinstance(values, Mapping) and "properties" in values:
            yield from rows(name, values, f"{prefix}{key}.NAME.")


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_page_has_a_section_for_each_document() -> None:
    assert re.findall(r"^## (.+)$", PAGE, flags=re.MULTILINE)[-len(DOCUMENTS) :] == list(DOCUMENTS)
    parts = {"run", "moment", "own_paid_call"}
    assert set(DOCUMENTS.values()) == {name for name in SCHEMAS if not name.startswith("answer_")} - parts


@pytest.mark.parametrize(("title", "name"), DOCUMENTS.items())
def test_a_section_has_every_key_with_its_type_who_writes_it_and_what_it_means(title: str, name: str) -> None:
    found = [line.strip("| ").split(" | ") for line in section(title).splitlines() if line.startswith("| `")]
    told, known = [(key, what, meaning) for key, what, _, meaning in found], list(rows(name, SCHEMAS[name]))
    new, gone = [it for it in known if it not in told], [it for it in told if it not in known]
    assert told == known, f"docs/documents.md, {title}: rows as in retake/schemas/{name}.json; add {new}, remove {gone}"
    assert all(writer.strip() for _, _, writer, _ in found)


@pytest.mark.parametrize(("title", "name"), DOCUMENTS.items())
def test_its_example_is_one(title: str, name: str) -> None:
    [example] = re.findall(r"```json\n(.*?)```", section(title), flags=re.DOTALL)
    check(name, json.loads(example))
