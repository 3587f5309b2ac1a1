"""Planted damage to the kept counts of dead letters and bills: it is found, and a repair drops them."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pytest
from damage import Damage, Site, assert_found
from money import change, changed, deleted, written
from schemas import check
from story_world import World, busy_world

from retake.bucket import ANY, Bucket
from retake.bucket.wrappers import Wrapper
from retake.operations.spend import as_document, spend_report
from retake.retrying import kept_counts
from retake.retrying.dead_letters import DeadLetters, LettersKept
from retake.retrying.kept_counts import KeptKind
from retake.story.kept_bills import BillsKept
from retake.story.operations import open_operations

T = TypeVar("T")

LETTERS, BILLS = "kept/dead_letters/", "kept/spend/"
INDEX = f"{LETTERS}index.json"
BILLS_INDEX = f"{BILLS}index.json"
FIRST = "20260101-0000"


def month_of(site: Site, place: str = LETTERS) -> str:
    [name] = [it.key for it in site.bucket.list(place) if it.key != f"{place}index.json"]
    return name


def counted_world() -> World:
    world = busy_world()
    world.clock.sleep(5 * 86400)
    letters = DeadLetters(world.bucket, clock=world.clock, counted=True)
    assert letters.count() == letters.count(reported=True) == 1
    assert told(world)["total"]["calls"] > 3
    return world


def told(world: World) -> dict[str, Any]:
    operations = open_operations(world.settings, world.clock, bucket=world.bucket)
    return as_document(spend_report(operations, 30))


def in_month(place: str, how: Callable[[dict[str, Any]], object]) -> Callable[[Site], None]:
    return lambda site: change(site, month_of(site, place), how)


def sums(document: dict[str, Any]) -> dict[str, Any]:
    return dict.__getitem__(document["months"], next(iter(document["months"])))


LETTER = {"20260101-0000": {"report.json": [1, 1.0]}}
BILL = {f"{FIRST}-x": {"outcome": "done", "modified": 1.0, "calls": []}}

ROWS = [
    Damage("an index that is none", written(INDEX, b'{"until": 3}'), "counts-invalid", INDEX, repaired=True),
    Damage(
        "a month that is none",
        lambda site: written(month_of(site), b"[1]")(site),
        "counts-invalid",
        "kept/dead_letters/",
        repaired=True,
    ),
    Damage(
        "a row of a letter that is not there",
        lambda site: change(site, month_of(site), lambda it: it["items"].update(LETTER)),
        "counts-wrong",
        "kept/dead_letters/",
        repaired=True,
    ),
    Damage(
        "sums of more than the rows",
        changed(INDEX, lambda it: next(iter(it["months"].values())).update(letters=2)),
        "counts-wrong",
        "kept/dead_letters/",
        repaired=True,
    ),
    *(
        Damage(f"{name} of bills", plant, code, BILLS, repaired=True)
        for name, plant, code in (
            ("an index that is none", written(BILLS_INDEX, b'{"until": 3}'), "counts-invalid"),
            (
                "sums that are none",
                changed(BILLS_INDEX, lambda it: sums(it).update(days={"x": [1.5] * 5})),
                "counts-invalid",
            ),
            ("sums that lack something", changed(BILLS_INDEX, lambda it: sums(it).pop("modified")), "counts-invalid"),
            ("a month that is none", lambda site: written(month_of(site, BILLS), b"[1]")(site), "counts-invalid"),
            ("a row of no calls", in_month(BILLS, lambda it: it["items"][FIRST].update(calls=[7])), "counts-invalid"),
            (
                "a row of a record that is not there",
                in_month(BILLS, lambda it: it["items"].update(BILL)),
                "counts-wrong",
            ),
            ("a row without its record's calls", in_month(BILLS, lambda it: it["items"].pop(FIRST)), "counts-wrong"),
            (
                "another price",
                in_month(BILLS, lambda it: it["items"][FIRST]["calls"][0].update(price_usd=9)),
                "counts-wrong",
            ),
            (
                "other sums",
                changed(BILLS_INDEX, lambda it: sums(it).update(days={"2026-01-01": [1, 45000, 0, 0, 0]})),
                "counts-wrong",
            ),
        )
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_damage_is_found(row: Damage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_counts, "KEEP_AFTER", 1)
    assert_found(row, Site(counted_world()))


def test_what_another_program_wrote_unmarked_is_found_and_counts_after_a_repair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_counts, "KEEP_AFTER", 1)
    world = counted_world()
    before = told(world)
    site, record = Site(world), world.json(f"spend/{FIRST}.json")
    record["paid_calls"][0]["price_usd"] = 1.0
    world.put(f"spend/{FIRST}.json", record)
    assert told(world) == before
    findings = [it for it in site.check(repair=True).findings if it.code == "counts-wrong"]
    assert [it.repaired for it in findings] == [True]
    assert told(world)["total"]["usd"] > before["total"]["usd"]


class WatchedBucket(Wrapper):
    """Counts the operations by name and key."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.seen: Counter[str] = Counter()

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        self.seen[f"{operation} {key}"] += 1
        return call()


def test_a_folder_is_listed_once_for_all_its_months(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_counts, "KEEP_AFTER", 1)
    site = Site(counted_world())
    few = looked_at(site)
    kinds: Mapping[str, KeptKind] = {LETTERS: LettersKept(), BILLS: BillsKept()}
    for place, kind in kinds.items():
        months = {it: kind.sums({}) for it in ("202510", "202511", "202512")}
        change(site, f"{place}index.json", lambda it, months=months: it["months"].update(months))
        for it in months:
            written(f"{place}{it}.json", {"items": {}})(site)
    many = looked_at(site)
    assert {it: many[it] for it in few} == few
    assert all("/2025" in it for it in many.keys() - few.keys())


def looked_at(site: Site) -> Counter[str]:
    """Check the bucket, and return what was done to it."""
    watched, site.bucket = site.bucket, WatchedBucket(site.bucket)
    try:
        assert site.check().whole
        return site.bucket.seen
    finally:
        site.bucket = watched


def test_a_record_that_a_repair_writes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_counts, "KEEP_AFTER", 1)
    world = World(max_retries=0)
    world.vendors.plan("upscale", "refused")
    while "failed" not in world.ended:
        world.tick()
    world.clock.sleep(5 * 86400)
    [key] = world.keys_of("spend/")
    kept = world.bucket.read(key)[0]
    world.bucket.delete(key)
    world.put(
        "spend/20260101-2359.json", {"outcome": "done", "paid_calls": [{"requested_at_utc": "2026-01-01T00:00:00Z"}]}
    )
    assert told(world)["total"]["calls"] == 1
    assert world.keys_of("kept/spend/")
    Site(world).check(repair=True)
    assert world.json(key)["paid_calls"]
    whole = told(world)
    world.bucket.write(key, kept, ANY)
    deleted(BILLS_INDEX)(Site(world))
    assert told(world)["total"] == whole["total"]


def test_the_documents_are_what_their_schemas_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_counts, "KEEP_AFTER", 1)
    world = counted_world()
    names = {INDEX: "kept_index", BILLS_INDEX: "kept_index"}
    for key in world.keys_of("kept/"):
        check(names.get(key) or ("kept_bills" if key.startswith(BILLS) else "kept_letters"), world.json(key))
    assert len(world.keys_of("kept/")) == 4
