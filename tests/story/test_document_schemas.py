"""Everything that the story writes matches the schemas of the package, at every tick."""

import random
import re
from collections.abc import Mapping
from typing import Any

import pytest
from schemas import SCHEMAS, check
from story_world import World

from retake.document_schema import InvalidDocument
from retake.story.documents import parse_gen, parse_public
from retake.ticking.tick import Orders

WRITTEN = {
    r"config/config_public\.json(\.displaced-\d+)?": "config_public",
    r"config/config_gen\.json": "config_gen",
    r"(config|dead_letters/[^/]+)/config_midjourney\.json": "config_midjourney",
    r"config/topics\.json": "topics",
    r"(666|555|444|archive|dead_letters/[^/]+)/[\w-]+\.json": "content",
    r"dead_letters/[^/]+/report\.json": "dead_letter",
    r"spend/[\w-]+\.json": "spend",
    r"caps/\d{4}-\d\d-\d\d\.json": "day_book",
}
"""The documents of the bucket, and the schema of each. The first matching pattern decides."""

OF_OTHERS = re.compile(r"runs/|breakers/|.*\.(png|mp4)$")
"""The documents of ledger and breakers, and media."""

ORDER = ("config_midjourney", "dead_letter", "content")


def schema_of(key: str) -> str | None:
    found = [name for pattern, name in WRITTEN.items() if re.fullmatch(pattern, key)]
    return min(found, key=lambda name: ORDER.index(name) if name in ORDER else 0) if found else None


def unknown_keys(schema: Mapping[str, Any], document: Mapping[str, Any]) -> list[str]:
    """Return the keys of the document and its objects that the schema accepts without describing them."""
    known = schema["properties"]
    found = [key for key in document if key not in known]
    for key in document.keys() & known.keys():
        inner, value = known[key], document[key]
        target = inner.get("$ref", "").removeprefix("#/$defs/")
        shared = schema["$defs"][target] if target in schema.get("$defs", {}) else {}
        properties = {**shared.get("properties", {}), **inner.get("properties", {})}
        if isinstance(value, dict) and properties:
            found += [f"{key}.{it}" for it in value if it not in properties]
    return found


def check_documents(world: World) -> set[str]:
    """Check every document in the bucket; return the names of their schemas."""
    seen = set()
    for key in world.keys_of():
        name = schema_of(key)
        assert name or OF_OTHERS.match(key), f"{key}: which schema?"
        if name:
            document = world.json(key)
            check(name, document)
            why = f"{key}: add the keys to retake/schemas/{name}.json and to docs/documents.md"
            assert unknown_keys(SCHEMAS[name], document) == [], why
            seen.add(name)
    error = world.doc.error
    if error:
        check("error_record", error.raw)
    return seen


def run(world: World, ticks: int = 14) -> set[str]:
    seen: set[str] = set()
    for _ in range(ticks):
        world.tick()
        seen |= check_documents(world)
    return seen


def test_a_generation_writes_each_kind_of_document() -> None:
    world = World(max_retries=1)
    world.vendors.plan("upscale", "refused", "refused")
    assert run(world, 20) == set(WRITTEN.values())


@pytest.mark.search
@pytest.mark.parametrize("rule", ["retry", "hold"])
@pytest.mark.parametrize("kind", ["write", "imagine", "upscale", "create"])
@pytest.mark.parametrize("outcome", ["refused", "rejected", "key", "unknown", "lost", "dies", "wasted"])
def test_whatever_becomes_of_a_paid_call(kind: str, outcome: str, rule: str) -> None:
    world = World(on_unknown_outcome=rule)
    world.vendors.plan(kind, outcome)
    run(world)
    if world.doc.pending:
        world.tick(Orders(resolve="skip" if kind == "write" else "retry"))
        run(world, 3)


@pytest.mark.parametrize("kind", ["fetch", "poll"])
@pytest.mark.parametrize("outcome", ["running", "failed", "failed_b", "error", "key"])
@pytest.mark.parametrize("on_exhausted", ["fail", "mock"])
def test_whatever_a_poll_is_answered(kind: str, outcome: str, on_exhausted: str) -> None:
    world = World(on_exhausted=on_exhausted, max_retries=1)
    world.vendors.plan(kind, *[outcome] * 3)
    run(world)


def test_a_dead_letter_that_is_requeued() -> None:
    world = World(max_retries=0)
    world.vendors.plan("upscale", "refused")
    while "failed" not in world.ended:
        run(world, 1)
    world.tick(Orders(retake=world.keys_of("dead_letters/")[0].split("/")[1]))
    run(world, 4)


@pytest.mark.parametrize("number", range(5))
def test_any_sequence_of_failures(number: int) -> None:
    chance = random.Random(number)
    outcomes = ["ok", "ok", "refused", "unknown", "lost", "error", "running", "failed", "expired", "dies", "wasted"]
    world = World(max_retries=2, on_unknown_outcome=chance.choice(["retry", "hold"]))
    world.vendors.choose_next = lambda kind: chance.choice(outcomes)
    for _ in range(40):
        world.tick(Orders(resolve="retry") if world.doc.pending and world.doc.pending.outcome else Orders())
        check_documents(world)


def test_what_was_found_valid_is_not_shared_and_says_nothing_of_other_schemas() -> None:
    data = b'{"generation_id": "20260101-0930"}'
    first = parse_gen(data)
    first.raw["generation_id"] = 7
    assert parse_gen(data).generation_id == "20260101-0930"
    for _ in range(2):
        with pytest.raises(InvalidDocument):
            parse_public(data)
