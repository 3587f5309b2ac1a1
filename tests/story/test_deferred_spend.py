"""Without a cap the day's book learns at the end of each tick what the calls cost, and always agrees then."""

import json
import os
import random
from contextlib import suppress
from typing import Any

import pytest
from story_world import Channel, World

from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.bucket.wrappers import CountingBucket
from retake.clock import FakeClock
from retake.errors import StorageError
from retake.paid.caps import Caps
from retake.paid.day_book import Limits, Sums, decoded
from retake.retrying.state_store import Raw
from retake.story.documents import Step
from retake.story.operations import open_operations
from retake.story.settings import Settings
from retake.story.spending import prices

PRICE = prices(Settings())
ALL = pytest.approx(sum(PRICE.values()))
MIDJOURNEY = "config/config_midjourney.json"
TODAY, TOMORROW = "2026-01-01", "2026-01-02"
SEED = int(os.environ.get("DEFERRED_SEED") or random.SystemRandom().randrange(10**9))


def sums(world: World, day: str = TODAY, pipeline: str = "story") -> Sums:
    book: Raw = world.json(f"caps/{day}.json")
    return decoded(day, book).of(pipeline)


def waiting(**workflow: Any) -> World:
    """Return a generation whose pictures are ordered and not there yet."""
    world = World(**workflow)
    world.vendors.plan("fetch", "running")
    world.tick()
    assert world.vendors.billed == {"write": 1, "imagine": 1}
    return world


def with_cap(world: World, usd: float | None) -> None:
    """Change the cap between two ticks."""
    world.settings = world.settings._replace(workflow=world.settings.workflow._replace(daily_cap_usd=usd))


def cost(*steps: Step) -> Any:
    return pytest.approx(sum(PRICE[step] for step in steps))


@pytest.mark.parametrize(("cap", "changes"), [(None, 1), (100.0, 5)])
def test_without_a_cap_a_tick_writes_the_book_once(cap: float | None, changes: int) -> None:
    world, written = World(daily_cap_usd=cap), list[str]()
    counting = CountingBucket(world.bucket)
    around = counting.around
    counting.around = lambda operation, key, call: (written.append(f"{operation} {key}"), around(operation, key, call))[
        1
    ]  # type: ignore[method-assign, assignment]
    world.bucket = counting  # type: ignore[assignment]
    assert world.tick().ended == "done"
    assert written.count(f"write caps/{TODAY}.json") == changes
    assert (sums(world).settled, sums(world).open) == (ALL, {})


@pytest.mark.parametrize("outcome", ["refused", "unknown", "lost", "dies", "rejected", "key"])
@pytest.mark.parametrize("kind", ["write", "imagine", "upscale", "create"])
@pytest.mark.parametrize("held", ["retry", "hold"])
def test_after_each_tick_the_book_says_what_the_document_says(kind: str, outcome: str, held: str) -> None:
    world = World(on_unknown_outcome=held)
    world.vendors.plan(kind, outcome)
    for _ in range(6):
        world.tick()
        told = world.doc.spend
        assert (sums(world).settled, sums(world).reserved) == (
            pytest.approx(told.settled),
            pytest.approx(told.reserved),
        )


@pytest.mark.parametrize("number", range(1, 12))
def test_the_next_tick_updates_the_book_for_one_that_died(number: int) -> None:
    world = World()
    store = world.bucket
    world.bucket = FailingBucket(store, Fault(operation="write", key=MIDJOURNEY, number=number, times=99))  # type: ignore[assignment]
    with suppress(StorageError):
        world.tick()
    world.bucket = store
    world.ticks(3)
    told = world.doc.spend
    assert (sums(world).settled, sums(world).reserved) == (pytest.approx(told.settled), pytest.approx(told.reserved))


def test_a_book_that_could_not_be_written_is_reported_by_the_next_tick_that_pays() -> None:
    world = World()
    store = world.bucket
    world.vendors.plan("fetch", "running")
    world.bucket = FailingBucket(store, Fault(operation="write", key=f"caps/{TODAY}.json", number=1, times=99))  # type: ignore[assignment]
    world.tick()
    world.bucket = store
    assert not world.keys_of("caps/")
    world.tick()
    assert (sums(world).settled, sums(world).open) == (ALL, {})


def test_a_tick_that_a_failed_read_ended_has_updated_the_book_anyway() -> None:
    """Nothing has to be paid first, and no further tick is needed."""
    undisturbed, paid = World(), 0
    undisturbed.bucket = counting = FailingBucket(undisturbed.bucket)  # type: ignore[assignment]
    undisturbed.tick()
    reads = [key for operation, key in counting.operations if operation == "read"]
    for number, key in enumerate(reads, 1):
        world = World()
        world.bucket = FailingBucket(world.bucket, Fault(operation="read", number=number))  # type: ignore[assignment]
        with suppress(StorageError):
            world.tick()
        if world.vendors.billed and not key.startswith("caps/"):
            paid += 1
            told = world.doc.spend
            assert sums(world).spent == pytest.approx(told.settled + told.reserved), f"read {number}, of {key}"
    assert paid > 10


def test_lowering_a_flag_by_hand_updates_the_book_too() -> None:
    """The next tick does the same when it finds the flag of one that died."""
    world = World()
    store = world.bucket
    world.bucket = dying = FailingBucket(store, Fault(Crash, operation="read", key=f"caps/{TODAY}.json"))  # type: ignore[assignment]
    with pytest.raises(Crash):
        world.tick()
    dying.end_leases()
    world.bucket = store
    assert world.documents.public.processing_lock
    assert world.doc.spend.settled
    assert not world.keys_of("caps/")
    assert open_operations(world.settings, world.clock, bucket=store).pipelines[0].lower_flag()
    assert sums(world).settled == pytest.approx(world.doc.spend.settled)


def test_each_day_has_the_calls_that_were_made_on_it() -> None:
    world = waiting(mj_timeout_seconds=10**6)
    world.later(days=1)
    world.tick()
    assert world.ended == ["done"]
    assert sums(world).settled == cost(Step.CONTENT, Step.IMAGINE)
    assert sums(world, TOMORROW).settled == cost(Step.UPSCALE, Step.RUNWAY)


def test_a_day_counts_all_its_generations() -> None:
    world = World()
    world.tick()
    world.put("config/config_public.json", {"generation_id": [], "processing_lock": False})
    for key in world.keys_of("666/"):
        world.bucket.delete(key)
    world.tick()
    assert world.ended == ["done", "done"]
    assert sums(world).settled == pytest.approx(2 * sum(PRICE.values()))


@pytest.mark.parametrize("first", [None, 100.0])
def test_a_cap_that_is_set_or_lifted_between_two_ticks_counts_everything_once(first: float | None) -> None:
    world = waiting(daily_cap_usd=first)
    with_cap(world, 100.0 if first is None else None)
    world.tick()
    assert world.ended == ["done"]
    assert (sums(world).settled, sums(world).open) == (ALL, {})


def test_a_cap_that_is_set_later_counts_what_was_spent_before() -> None:
    world = waiting()
    with_cap(world, sum(PRICE.values()) - PRICE[Step.RUNWAY] / 2)
    tick = world.tick()
    assert "daily cap" in tick.why
    assert world.vendors.billed == {"write": 1, "imagine": 1, "upscale": 1}


def test_a_book_that_was_removed_is_made_from_the_document() -> None:
    world = waiting()
    world.bucket.delete(f"caps/{TODAY}.json")
    world.tick()
    assert world.ended == ["done"]
    assert (sums(world).settled, sums(world).open) == (ALL, {})


def test_a_held_call_of_a_document_that_was_removed_counts_as_billed() -> None:
    world = World(on_unknown_outcome="hold")
    world.vendors.plan("imagine", "unknown")
    world.tick()
    assert sums(world).reserved == PRICE[Step.IMAGINE]
    world.bucket.delete(MIDJOURNEY)
    world.ticks(2)
    assert sums(world).settled >= PRICE[Step.CONTENT] + PRICE[Step.IMAGINE]


def test_a_day_that_was_moved_takes_what_is_told_afterwards() -> None:
    world = waiting(mj_timeout_seconds=10**9)
    caps = Caps(world.bucket, FakeClock(), Limits())
    world.bucket.copy(f"caps/{TODAY}.json", "caps/2025-12-31.json")
    world.put("caps/2025-12-31.json", {"day": "2025-12-31", "spent_usd": 0, "pipelines": {}})
    caps.correct("2025-12-31")
    assert world.keys_of("caps/") == ["caps/2025-12-31.json"]
    world.tick()
    assert world.ended == ["done"]
    books = [decoded(key[5:15], world.json(key)).of("story").settled for key in world.keys_of("caps/")]
    assert sum(books) == ALL


def test_channels_share_a_day_and_keep_their_own_reservations() -> None:
    world = World()
    channels = [Channel(name, world) for name in ("en", "ru")]
    for channel in channels:
        channel.tick()
    assert [sums(world, pipeline=f"story/{name}").settled for name in ("en", "ru")] == [ALL, ALL]


def test_whatever_happens_nothing_is_counted_twice_or_not_at_all() -> None:
    """Random outcomes, days and caps; DEFERRED_SEED replays a run."""
    for turn in range(25):
        dice = random.Random(f"{SEED} {turn}")
        world = World(on_unknown_outcome=dice.choice(["retry", "hold"]), max_retries=3, mj_timeout_seconds=10**6)
        for kind in ("write", "imagine", "upscale", "create", "fetch", "poll"):
            outcomes = ["running", "error"] if kind in ("fetch", "poll") else ["refused", "unknown", "dies", "lost"]
            world.vendors.plan(kind, *[dice.choice(["done", *outcomes]) for _ in range(dice.randrange(4))])
        for _ in range(12):
            with_cap(world, dice.choice([None, None, 100.0]))
            if dice.random() < 0.1:
                world.later(days=1)
            world.tick()
            told, day = world.doc.spend, world.doc.spend.day
            if day:
                counted = sums(world, day)
                assert (counted.settled, counted.reserved) == (
                    pytest.approx(told.settled),
                    pytest.approx(told.reserved),
                ), f"DEFERRED_SEED={SEED}, turn {turn}"


@pytest.mark.parametrize("day", ["../x", "yesterday", "", "2026-13-01", "x" * 2000])
@pytest.mark.parametrize("cap", [None, 5])
def test_a_reservation_on_what_is_not_a_day_says_nothing(cap: float | None, day: str) -> None:
    world = World(daily_cap_usd=cap)
    kept = {"account": "a", "name": "a/b", "day": day, "fate": "open", "usd": 1, "billed_usd": 0.5, "deferred": True}
    world.put("config/config_midjourney.json", {"spend": {"reservation": kept}})
    assert world.tick().ended == "done"
    assert world.keys_of("caps/") == ["caps/2026-01-01.json"]


@pytest.mark.parametrize("billed", [None, "x", 10**400], ids=str)
def test_an_invalid_amount_ends_no_tick(billed: object) -> None:
    """A crash at each save of the document is followed by an edit of the reservation's billed amount."""
    edited = 0
    for number in range(1, 12):
        store = MemoryStore()
        fault = Fault(Crash, number=number, after=True, operation="write", key=MIDJOURNEY)
        world = World(dying := FailingBucket(MemoryBucket(store), fault))
        with suppress(Crash):
            world.tick()
        dying.end_leases()
        world.bucket = MemoryBucket(store)
        document = world.json(MIDJOURNEY)
        if "reservation" in document["spend"]:
            document["spend"]["reservation"]["billed_usd"] = billed
            world.put(MIDJOURNEY, json.dumps(document).encode())
            edited += 1
        world.later(hours=1)
        for _ in range(6):
            world.tick()
        assert world.ended
    assert edited > 5
