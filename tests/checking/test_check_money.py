"""Planted damage to paid calls and to the day books."""

import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from damage import Damage, Site, assert_found, trouble
from money import BOOK, DOCUMENT, FIRST, change, changed, deleted, letter, paid_world, read, write, written
from reading_world import clear
from story_world import World
from test_spend import Channel

from retake.bucket import ABSENT, ANY
from retake.bucket.directory import DirectoryBucket
from retake.bucket.memory import MemoryBucket
from retake.bucket.wrappers import CountingBucket
from retake.checking.bills import BillExamination
from retake.checking.view import CheckView, LiveListing, Scope
from retake.clock import FakeClock, stamp
from retake.operations.examinations import examinations
from retake.operations.port import ItemOrder, Verb
from retake.ticking.channel_versions import MARKS

SPEND = f"spend/{FIRST}.json"


def call_of(record: dict, number: int = 0, **values: object) -> None:  # type: ignore[type-arg]
    record["paid_calls"][number].update(values)


def first_again(record: dict) -> None:  # type: ignore[type-arg]
    record["paid_calls"].append({**record["paid_calls"][0]})


def task_again(record: dict) -> None:  # type: ignore[type-arg]
    again = {**record["paid_calls"][1], "requested_at_utc": "2026-01-01T00:00:59Z", "price_usd": 0}
    record["paid_calls"].append(again)


def other_generation(site: Site) -> None:
    """Add the record of a generation that never existed, with a task of another one."""
    task = read(site, SPEND)["paid_calls"][1]
    call = {**task, "price_usd": 0, "requested_at_utc": "2026-01-01T00:09:00Z"}
    record = {"generation_id": "20260101-0900", "outcome": "done", "ended_at_utc": "2026-01-01T00:09:00Z"}
    write(site, "spend/20260101-0900.json", {**record, "paid_calls": [call]})


def less_in_letter(site: Site) -> None:
    change(site, f"dead_letters/{letter(site)}/report.json", lambda it: it["paid_calls"].pop())


def dearer_in_letter(site: Site) -> None:
    change(site, f"dead_letters/{letter(site)}/report.json", lambda it: call_of(it, price_usd=7))


def letters_record_gone(site: Site) -> None:
    site.bucket.delete(f"spend/{letter(site)}.json")


def book(**sums: object) -> Callable[[Site], None]:
    return changed(BOOK, lambda it: it["pipelines"]["story"].update(sums))


def less_by(usd: float) -> Callable[[Site], None]:
    """Lower both sums of the book below what was paid."""

    def how(it: Any) -> None:
        it["pipelines"]["story"]["settled_usd"] = round(it["pipelines"]["story"]["settled_usd"] - usd, 6)
        it["spent_usd"] = round(it["spent_usd"] - usd, 6)

    return changed(BOOK, how)


def left_open(site: Site) -> None:
    """Leave the reservation of a process that died before saving its intent."""
    account = read(site, DOCUMENT)["spend"]["reservation"]["account"]
    book(open={f"{account}/0123456789ab": 0.5}, reserved_usd=0.5)(site)
    change(site, BOOK, lambda it: it.update(spent_usd=round(it["spent_usd"] + 0.5, 6)))


def moved(site: Site) -> None:
    write(site, "caps/2026-01-02.json", {**_EMPTY, "day": "2026-01-02", "moved": {"to": "2026-01-01", "nonce": "1f"}})


def moved_and_outlived(site: Site) -> None:
    """Start another day before the move was finished."""
    moved(site)
    write(site, "caps/2026-01-03.json", {**_EMPTY, "day": "2026-01-03"})


def requeued_otherwise(site: Site) -> None:
    """Record a call that the document of the generation under way lacks."""
    present = read(site, "config/config_gen.json")["generation_id"]
    calls = read(site, DOCUMENT)["paid_calls"]
    record = {"generation_id": present, "outcome": "failed", "ended_at_utc": "2026-01-01T00:09:00Z"}
    write(site, f"spend/{present}.json", {**record, "paid_calls": [{**calls[0], "price_usd": 3}]})


_EMPTY = {"spent_usd": 0.0, "pipelines": {}}

ROWS = [
    Damage("a record that is not JSON", written(SPEND, b"{"), "spend-record-invalid", SPEND, also=("bills-missing",)),
    Damage("a record without calls", written(SPEND, {}), "spend-record-invalid", SPEND),
    Damage("a record of another name", changed(SPEND, lambda it: it.update(generation_id="x")), "spend-record-invalid"),
    Damage("a record of no known end", changed(SPEND, lambda it: it.update(outcome="lost")), "spend-record-invalid"),
    Damage("a record of no time", changed(SPEND, lambda it: it.pop("ended_at_utc")), "spend-record-invalid", SPEND),
    Damage("a record too large", written(SPEND, b" " * 16_000_001), "spend-record-invalid", SPEND),
    Damage(
        "a call below nothing",
        changed(SPEND, lambda it: call_of(it, price_usd=-1)),
        "paid-call-invalid",
        SPEND,
        also=("bills-missing",),
    ),
    Damage("a call of no step", changed(SPEND, lambda it: call_of(it, step="tea")), "paid-call-invalid", SPEND),
    Damage("a call of no outcome", changed(SPEND, lambda it: call_of(it, outcome="?")), "paid-call-invalid", SPEND),
    Damage(
        "a call of no such day",
        changed(SPEND, lambda it: call_of(it, counted_on="2026-02-30")),
        "paid-call-invalid",
        SPEND,
    ),
    Damage(
        "a call in the document of no price",
        changed(DOCUMENT, lambda it: call_of(it, price_usd="1")),
        "paid-call-invalid",
        DOCUMENT,
        also=("bills-missing", "day-sum-wrong", "document-invalid"),
    ),
    Damage("an intent with two bills", changed(SPEND, first_again), "paid-twice", SPEND, also=("day-sum-wrong",)),
    Damage("a task billed twice", changed(SPEND, task_again), "paid-twice", SPEND),
    Damage("a task of two generations", other_generation, "paid-twice", "20260101-0900"),
    Damage("a dead letter with fewer calls", less_in_letter, "bills-disagree", "report.json"),
    Damage("a dead letter with another price", dearer_in_letter, "bills-disagree", "report.json"),
    Damage("a document that is not its record's", requeued_otherwise, "bills-disagree", DOCUMENT),
    Damage(
        "a letter's record is gone",
        letters_record_gone,
        "spend-record-missing",
        "spend/",
        repaired=True,
        also=("bills-missing",),
    ),
    Damage("a generation's record is gone", deleted(SPEND), "bills-missing", BOOK),
    Damage("a book that is not JSON", written(BOOK, b"[]"), "day-book-invalid", BOOK),
    Damage("a book of no amounts", book(settled_usd="much"), "day-book-invalid", BOOK),
    Damage(
        "a book with less than was paid",
        book(settled_usd=0.1),
        "day-sum-wrong",
        BOOK,
        repaired=True,
        also=("day-figures-wrong",),
    ),
    Damage("a book with a tenth of a cent less than was paid", less_by(0.001), "day-sum-wrong", BOOK, repaired=True),
    Damage(
        "a book with more than anybody says",
        book(settled_usd=99.0),
        "day-sum-wrong",
        BOOK,
        repaired=True,
        also=("day-figures-wrong",),
    ),
    Damage(
        "a book with nothing of the pipeline",
        changed(BOOK, lambda it: it.update(pipelines={"other": {}})),
        "day-figures-wrong",
        BOOK,
        repaired=True,
    ),
    Damage(
        "a book whose parts add up to less",
        changed(BOOK, lambda it: it.update(spent_usd=9)),
        "day-figures-wrong",
        BOOK,
        repaired=True,
    ),
    Damage(
        "a book whose parts add up to a tenth of a cent more",
        changed(BOOK, lambda it: it.update(spent_usd=round(it["spent_usd"] - 0.001, 6))),
        "day-figures-wrong",
        BOOK,
        repaired=True,
    ),
    Damage("a pipeline's reserved sum is wrong", book(reserved_usd=1), "day-figures-wrong", BOOK, repaired=True),
    Damage("a book is gone", deleted(BOOK), "day-book-missing", BOOK, repaired=True),
    Damage("money reserved for nothing", left_open, "reservation-left", BOOK, repaired=True),
    Damage(
        "a move before the latest day", moved_and_outlived, "day-move-unfinished", "caps/2026-01-02.json", repaired=True
    ),
    Damage("a book that was to be moved", moved, "day-move-unfinished", "caps/2026-01-02.json", repaired=True),
]


@cache
def world() -> World:
    return paid_world()


@pytest.fixture(params=["memory", "directory"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return Site(world(), MemoryBucket() if request.param == "memory" else DirectoryBucket(str(tmp_path / "bucket")))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_damage_is_found(row: Damage, site: Site) -> None:
    assert_found(row, site)


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda it: it.pop("generation_id"),
        lambda it: it.update(kind="rollback"),
        lambda it: it.update(ended="requeued"),
        lambda it: it.pop("paid_calls"),
    ],
)
def test_a_letter_that_was_changed_meanwhile_makes_no_record(site: Site, meanwhile: Callable[[Any], object]) -> None:
    letters_record_gone(site)
    key = f"dead_letters/{letter(site)}/report.json"
    change(site, key, meanwhile)
    bills = next(it for it in examinations(site.context().operations) if isinstance(it, BillExamination))
    view = CheckView(Scope(site.bucket, site.world.clock), LiveListing(site.bucket))
    assert bills.repair(view, key) == []


def test_a_generation_under_way_that_was_requeued_is_whole() -> None:
    world = paid_world()
    site = Site(world)
    name = letter(site)
    world.vendors.plan("upscale")
    while world.generation_id:
        world.tick()
    assert [it.code for it in trouble(site.check())] == []
    site.context().operations.pipelines[0].carry_out(ItemOrder(Verb.REQUEUE, name))
    assert [it.code for it in trouble(site.check())] == []
    world.tick()
    assert [it.code for it in trouble(site.check())] == []


def test_a_letter_that_an_order_to_requeue_left_behind_agrees_with_what_was_paid_since() -> None:
    world = paid_world()
    site = Site(world)
    name = letter(site)
    while world.generation_id:
        world.tick()
    world.vendors.plans.clear()
    kept = {entry.key: site.bucket.read(entry.key)[0] for entry in site.bucket.list(f"dead_letters/{name}/")}
    site.context().operations.pipelines[0].carry_out(ItemOrder(Verb.REQUEUE, name))
    for key, data in kept.items():  # the order died before it removed them
        site.bucket.write(key, data, ANY)
    while world.generation_id:
        world.tick()
    assert read(site, f"spend/{name}.json")["outcome"] == "done"
    assert [it.code for it in trouble(site.check())] == []


def test_channels_are_held_against_one_book() -> None:
    shared = World()
    names = ("en", "ru")
    channels = [Channel(name, shared) for name in names]
    for channel in channels * 4:
        channel.tick()
    settings = shared.settings._replace(channels=names)
    for name in names:  # as on B2 and S3
        shared.bucket.write(f"{MARKS}{name}", b"changed", ABSENT)
    assert Site(shared, settings=settings).check().findings == []
    change(Site(shared), BOOK, lambda it: it["pipelines"]["story/ru"].update(settled_usd=0.001, reserved_usd=0))
    site = Site(shared, settings=settings)
    [wrong] = [it for it in site.check().findings if it.code == "day-sum-wrong"]
    assert wrong.what.startswith("story/ru: 0.001 USD are settled")
    assert site.check(channel="en").whole  # the book does not belong to a single channel
    assert site.check(repair=True).whole
    assert trouble(site.check()) == []


def test_days_that_are_not_the_clocks_and_books_that_were_moved_fit() -> None:
    world = World()
    for days in (0, 1, -1, 0, 2):
        world.clock.moment = FakeClock().moment + timedelta(days=max(days, 0), hours=12 * days)
        clear(world)
        world.ticks(4)
        assert trouble(Site(world).check()) == []
    assert len(world.keys_of("caps/")) > 1
    Site(world).context().operations.caps.correct("2026-01-01")
    assert trouble(Site(world).check()) == []
    clear(world)
    world.ticks(4)
    assert trouble(Site(world).check()) == []


def test_a_book_that_is_gone_between_two_others_is_made_again() -> None:
    world = World()
    for days in range(3):
        world.clock.moment = FakeClock().moment + timedelta(days=days)
        clear(world)
        world.ticks(6)
    _, middle, _ = world.keys_of("caps/")
    before = world.json(middle)
    world.bucket.delete(middle)
    assert [(it.code, it.where) for it in trouble(Site(world).check())] == [("day-book-missing", middle)]
    assert Site(world).check(repair=True).whole
    assert world.json(middle)["spent_usd"] == before["spent_usd"] > 0
    assert trouble(Site(world).check()) == []


def test_a_day_that_comes_after_its_book_was_moved_is_not_held_against_the_calls_that_were() -> None:
    world = World()
    for days, latest in ((1, "2026-01-01"), (0, ""), (1, "")):  # ahead, corrected, and the day itself
        world.clock.moment = FakeClock().moment + timedelta(days=days, hours=12)
        clear(world)
        world.ticks(6)
        if latest:
            Site(world).context().operations.caps.correct(latest)
    assert world.keys_of("caps/") == ["caps/2026-01-01.json", "caps/2026-01-02.json"]
    before = world.json("caps/2026-01-02.json")
    assert trouble(Site(world).check()) == []
    change(Site(world), "caps/2026-01-02.json", lambda it: it.update(spent_usd=9))  # a repair leaves the rest as it is
    assert Site(world).check(repair=True).whole
    assert world.json("caps/2026-01-02.json") == before


@pytest.mark.parametrize("answer", ["lost", "unknown", "refused", "rejected"])
@pytest.mark.parametrize("kind", ["write", "imagine", "upscale", "create"])
@pytest.mark.parametrize("rule", ["retry", "hold", "drop"])
def test_calls_of_every_outcome_fit_at_every_tick(kind: str, answer: str, rule: str) -> None:
    world = World(on_unknown_outcome=rule) if rule != "drop" else World(on_exhausted="mock", max_retries=1)
    world.vendors.plan(kind, answer, answer)
    for _ in range(8):
        world.tick()
        assert [*trouble(Site(world).check())] == []


def test_many_records_are_read_once_each_and_memory_stays() -> None:
    world, number = World(), 3000
    world.ticks(4)
    site = Site(world, MemoryBucket())
    book = read(site, BOOK)
    calls = [{"step": "content", "attempt": 1, "price_usd": 0.001, "outcome": "done"}]
    for at in range(number):
        name, moment = f"2025{at:08d}", stamp(world.clock.now() + timedelta(microseconds=at))
        record = {"generation_id": name, "outcome": "done", "ended_at_utc": moment}
        write(site, f"spend/{name}.json", {**record, "paid_calls": [{**calls[0], "requested_at_utc": moment}]})
    story = book["pipelines"]["story"]
    story["settled_usd"] = round(story["settled_usd"] + 0.001 * number, 6)
    write(site, BOOK, {**book, "spent_usd": story["settled_usd"]})
    site.bucket = CountingBucket(site.bucket)
    tracemalloc.start()
    report = site.check()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert trouble(report) == []
    assert report.looked_at["bills"] >= number
    assert site.bucket.counts["read"] < number + 60
    assert site.bucket.counts["list"] < 10
    assert peak < 8_000_000


@pytest.mark.parametrize(
    ("folder", "path", "value"),
    [
        (SPEND, ("paid_calls", 0, "task_id"), "\ud800"),
        (SPEND, ("paid_calls", 0, "counted_on"), "\ud800"),
        (SPEND, ("outcome",), ["done"]),
        ("config/config_gen.json", ("generation_id",), "\ud800"),
        (DOCUMENT, ("spend", "reserved_usd"), 10**400),
        (BOOK, ("spent_usd",), 10**400),
        ("runs/run-", ("events", 0, "payload", "attempt"), 10**30),
        ("runs/run-", ("events", 0, "payload", "attempt"), -(10**30)),
    ],
)
def test_no_value_however_odd_ends_the_check(folder: str, path: tuple[str | int, ...], value: object) -> None:
    site = Site(paid_world(), MemoryBucket())
    key = site.bucket.list(folder)[0].key

    def plant(document: Any) -> None:
        for name in path[:-1]:
            document = document[name]
        document[path[-1]] = value

    change(site, key, plant)
    assert site.check().looked_at["bills"]
    site.check(repair=True)
