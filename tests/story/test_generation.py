"""The beginning and the end of a generation: ids, dead letters, spending records, and crashes in between."""

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from story_world import World

from retake.bucket import Bucket
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket
from retake.errors import LeaseLost
from retake.story.documents import Status
from retake.story.generation import TakenIds, begin, dead_letter, finish, new_id, requeue
from retake.story.operations import open_operations
from retake.story.settings import FilePaths
from retake.story.store import DocumentStore
from retake.story.tidy import tidy_plan

NOW = datetime(2026, 1, 1, 9, 30, tzinfo=UTC)
ID = "20260101-0900"
GEN, DOCUMENT = "config/config_gen.json", "config/config_midjourney.json"
CALLS = [{"step": "content", "outcome": "done"}]


def opened(bucket: Bucket) -> DocumentStore:
    store = DocumentStore(bucket, FilePaths(), bucket.lease("story", "test"), World().clock)
    store.read()
    return store


def world_with(files: str = "", gen: dict[str, Any] | None = None, **doc: Any) -> World:
    world = World()
    world.put(GEN, {"generation_id": ID, **(gen or {})})
    world.put(DOCUMENT, doc)
    for suffix in files.split():
        world.put(f"666/{ID}.{suffix}", f"the {suffix}".encode())
    return world


def each_death(prepare: Callable[[], World], work: Callable[[DocumentStore], object]) -> Any:
    """Yield the world after `work` died before or after each of its accesses to the bucket."""
    counted = FailingBucket(prepare().bucket)
    store = opened(counted)
    began = len(counted.operations)
    work(store)
    for number in range(began + 1, len(counted.operations) + 1):
        for after in (False, True):
            world = prepare()
            dying = FailingBucket(world.bucket, Fault(Crash, number=number, after=after))
            store = opened(dying)
            with pytest.raises(Crash):
                work(store)
            world.bucket.store.end_leases()
            yield f"{'after' if after else 'before'} {counted.operations[number - 1]}", world


# --- ids --------------------------------------------------------------------------------------------------------------


def test_an_id_is_the_present_minute_in_utc() -> None:
    assert new_id(NOW, ()) == "20260101-0930"
    assert new_id(NOW.astimezone(timezone(timedelta(hours=-10))), ()) == "20260101-0930"


def test_an_id_that_is_taken_gives_way_to_the_next_free_minute() -> None:
    assert new_id(NOW, {"20260101-0930", "20260101-0931", "20260101-0933"}) == "20260101-0932"
    eve = datetime(2025, 12, 31, 23, 59, tzinfo=UTC)
    assert new_id(eve, {"20251231-2359"}) == "20260101-0000"


@given(st.datetimes(timezones=st.just(UTC), max_value=datetime(9000, 1, 1)), st.sets(st.integers(0, 30)))
def test_an_id_is_never_one_that_is_taken(now: datetime, minutes: set[int]) -> None:
    taken = {new_id(now + timedelta(minutes=minute), ()) for minute in minutes}
    assert new_id(now, taken) not in taken


def test_every_id_with_a_file_a_dead_letter_or_a_record_of_its_calls_is_taken() -> None:
    world = World()
    for key in ("444/a.json", "555/b.png", "666/c.mp4", "archive/d.json", "dead_letters/e/report.json", "spend/f.json"):
        world.put(key, {})
    for key in ("666/g.part.json", "archive/h.png", "archive/i.mp4", "dead_letters/j/j.png", "555/k", "444/l/m.json"):
        world.put(key, {})
    for key in ("archive/x0.json", "dead_letters/x0/report.json", "dead_letters/before-x/config_midjourney.json"):
        world.put(key, {})
    store = opened(world.bucket)
    taken = TakenIds(store, tidy_plan(store).staged)
    assert [name for name in "abcdefghijklmnopqrstuvwxyz" if name in taken] == list("abcdefghijkl")


# --- beginning --------------------------------------------------------------------------------------------------------


def test_a_generation_begins_with_a_clean_document_and_its_id_last() -> None:
    world = world_with(gen={"generation_id": None, "warned": ["x"]}, retries={"content": 2}, theirs=1)
    bucket = FailingBucket(world.bucket)
    begin(opened(bucket), ID, capped=False)
    assert [key for operation, key in bucket.operations if operation == "write"] == [DOCUMENT, GEN]
    assert world.json(GEN) == {"generation_id": ID, "warned": ["x"]}
    assert (world.doc.retries, world.doc.blank, world.doc.raw["theirs"]) == ({}, True, 1)


@pytest.mark.parametrize("capped", [False, True])
def test_an_empty_document_is_clean_but_a_cap_needs_its_account(capped: bool) -> None:
    world = world_with(gen={"generation_id": None})
    world.bucket.delete(DOCUMENT)
    bucket = FailingBucket(world.bucket)
    begin(opened(bucket), ID, capped=capped)
    assert [key for operation, key in bucket.operations if operation == "write"] == [*[DOCUMENT][:capped], GEN]
    assert world.json(GEN)["generation_id"] == ID
    if capped:
        assert world.json(DOCUMENT)["spend"]["reservation"]["account"] == ID


def test_paid_work_of_no_generation_is_kept_among_the_dead_letters() -> None:
    task = {"task_id": "paid", "task_type": "imagine"}
    world = world_with(gen={"generation_id": None}, midjourney_task=task)
    begin(opened(world.bucket), ID, capped=False)
    kept = world.json(f"dead_letters/before-{ID}/config_midjourney.json")
    assert kept["midjourney_task"] == task
    assert world.doc.blank


def test_what_was_paid_for_no_generation_stays_on_record_though_nothing_is_left_of_it() -> None:
    """A person has removed the id from config_gen.json after the order of the pictures had failed."""
    calls = [{"step": "imagine", "price_usd": 0.045, "outcome": "unknown"}]
    world = world_with(gen={"generation_id": None}, status="imagine_trigger_failed", paid_calls=calls)
    begin(opened(world.bucket), ID, capped=False)
    assert world.json(f"dead_letters/before-{ID}/config_midjourney.json")["paid_calls"] == calls
    assert not world.doc.paid_calls


@pytest.mark.parametrize("status", [None, "content_failed"])
def test_a_document_without_paid_work_is_not_kept(status: str | None) -> None:
    world = world_with(gen={"generation_id": None}, status=status)
    begin(opened(world.bucket), ID, capped=False)
    assert world.keys_of("dead_letters/") == []


def test_a_generation_that_is_among_the_dead_letters_is_not_kept_there_twice() -> None:
    world = World()
    world.vendors.plan("upscale", *["rejected"])
    world.tick()
    assert world.ended == ["failed"]
    world.vendors.plan("fetch", "running")
    world.tick()
    assert world.generation_id is not None
    assert {key.split("/")[1] for key in world.keys_of("dead_letters/")} == {"20260101-0000"}


# --- ending well ------------------------------------------------------------------------------------------------------


def test_a_finished_generation_leaves_a_clean_document_no_id_and_a_record_of_what_was_spent() -> None:
    world = world_with("json png mp4", gen={"failed_in_a_row": 2, "theirs": 1}, paid_calls=CALLS, note="kept")
    finish(opened(world.bucket), NOW)
    assert world.json(GEN) == {"generation_id": None, "theirs": 1}
    assert (world.doc.blank, world.doc.paid_calls, world.doc.raw["note"]) == (True, [], "kept")
    assert world.json(f"spend/{ID}.json") == {
        "generation_id": ID,
        "outcome": "done",
        "ended_at_utc": "2026-01-01T09:30:00Z",
        "paid_calls": CALLS,
    }


def test_where_nothing_was_paid_for_there_is_no_record() -> None:
    world = world_with("json png mp4")
    finish(opened(world.bucket), NOW)
    assert world.keys_of("spend/") == []


def test_a_finish_that_died_is_finished_by_the_next_tick() -> None:
    def prepare() -> World:
        return world_with("json png mp4", paid_calls=CALLS)

    for where, world in each_death(prepare, lambda store: finish(store, NOW)):
        world.vendors.plan("write", "key")
        for _ in range(2):
            if world.generation_id == ID:
                world.tick()
        assert world.generation_id != ID, where
        assert world.json(f"spend/{ID}.json")["paid_calls"] == CALLS, where
        assert {key.partition(".")[0].partition("/")[2] for key in world.keys_of() if key[0] in "4569"} <= {ID}


# --- ending badly -----------------------------------------------------------------------------------------------------


FAILED = {
    "status": "task_failed_max_retries",
    "failed_step": "upscale",
    "retries": {"upscale": 3, "imagine": 1},
    "retry_count": 3,
    "last_error": {"message": "HTTP 500", "error_class": "A"},
    "midjourney_results": {"task_id": "i", "task_type": "imagine"},
    "paid_calls": CALLS,
    "theirs": {"kept": 1},
}


def dead_lettered(files: str = "json png", **gen: Any) -> tuple[World, int]:
    world = world_with(files, gen=gen, **FAILED)
    return world, dead_letter(opened(world.bucket), NOW)


def test_a_dead_letter_holds_the_files_the_document_and_a_report() -> None:
    world, _ = dead_lettered()
    letter_folder = f"dead_letters/{ID}/"
    names = (f"{ID}.json", f"{ID}.png", "config_midjourney.json", "report.json")
    assert world.keys_of(letter_folder) == [f"{letter_folder}{name}" for name in names]
    assert world.bucket.read(f"{letter_folder}{ID}.png")[0] == b"the png"
    assert world.json(f"{letter_folder}config_midjourney.json") == FAILED
    assert world.json(f"{letter_folder}report.json") == {
        "generation_id": ID,
        "failed_at_utc": "2026-01-01T09:30:00Z",
        "failed_step": "upscale",
        "last_error": FAILED["last_error"],
        "retries": FAILED["retries"],
        "paid_calls": CALLS,
        "files": [f"{ID}.json", f"{ID}.png"],
    }
    assert world.keys_of("666/") == []
    assert world.json(f"spend/{ID}.json")["outcome"] == "failed"


def test_failed_generations_are_counted_until_one_ends_well() -> None:
    assert dead_lettered()[1] == 1
    world, failed = dead_lettered(failed_in_a_row=4, warned=["x"])
    assert failed == 5
    error = {"error_class": "A", "message": "HTTP 500"}
    last = {"generation_id": ID, "step": "upscale", "error": error}
    assert world.json(GEN) == {"generation_id": None, "failed_in_a_row": 5, "last_failure": last, "warned": ["x"]}


def test_dead_lettering_that_died_is_finished_by_the_next_tick_and_nothing_is_lost() -> None:
    def prepare() -> World:
        return world_with("json png mp4", **FAILED)

    for where, world in each_death(prepare, lambda store: dead_letter(store, NOW)):
        if world.generation_id:
            world.tick()
        assert world.generation_id is None, where
        assert world.documents.gen.failed_in_a_row == 1, where
        letter_folder = f"dead_letters/{ID}/"
        assert {key.removeprefix(letter_folder) for key in world.keys_of(letter_folder)} == {
            *(f"{ID}.json", f"{ID}.png", f"{ID}.mp4", "config_midjourney.json", "report.json")
        }, where
        assert world.json(f"{letter_folder}report.json")["files"] == [f"{ID}.json", f"{ID}.mp4", f"{ID}.png"], where
        assert world.bucket.read(f"{letter_folder}{ID}.mp4")[0] == b"the mp4"
        assert world.json(f"{letter_folder}config_midjourney.json") == FAILED, where
        assert world.keys_of("666/") == [], where


@pytest.mark.parametrize("last", ["copy", "report.json"])
def test_dead_lettering_whose_lease_is_lost_deletes_nothing(last: str) -> None:
    world = world_with("json png", **FAILED)
    store = world.bucket.store

    def lose(step: str, key: str) -> None:
        if step == last or key.endswith(last):
            store.end_leases()

    with pytest.raises(LeaseLost):
        dead_letter(opened(MemoryBucket(store, meanwhile=lose)), NOW)
    assert world.keys_of("666/") == [f"666/{ID}.json", f"666/{ID}.png"]
    assert world.generation_id == ID


def test_texts_that_cannot_be_encoded_do_not_keep_a_generation_from_its_end() -> None:
    world = world_with("json", **{**FAILED, "last_error": {"message": "\ud800"}})
    store = opened(world.bucket)
    dead_letter(store, NOW)
    assert world.json(f"dead_letters/{ID}/report.json")["last_error"] == {"message": "\ud800"}
    assert json.loads(world.bucket.read(f"dead_letters/{ID}/config_midjourney.json")[0])["last_error"] == {
        "message": "\ud800"
    }


def test_a_failed_document_stays_for_people_to_see_until_the_next_generation_begins() -> None:
    world, _ = dead_lettered()
    assert world.doc.status is Status.TASK_FAILED_MAX_RETRIES
    assert world.doc.raw["retry_count"] == 3


# --- coming back ------------------------------------------------------------------------------------------------------

NEXT, LATER = "20260101-0931", "20260101-0932"
ORPHANED = [{"step": "imagine", "price_usd": 0.045, "requested_at_utc": "2026-01-01T08:00:00Z", "outcome": "accepted"}]
PENDING = {"step": "upscale", "price_usd": 0.01, "requested_at_utc": "2026-01-01T08:01:00Z"}
PAID = [{"step": "content", "price_usd": 0.016, "requested_at_utc": "2026-01-01T09:00:00Z", "outcome": "done"}]


def beside_a_letter(**present: Any) -> Callable[[], World]:
    """Return a world with nothing under way and the dead letter of ID; `present` replaces the document of ID."""

    def prepare() -> World:
        world = world_with("json png", **{**FAILED, "paid_calls": PAID})
        dead_letter(opened(world.bucket), NOW)
        world.bucket.store.end_leases()
        if present:
            world.put(DOCUMENT, present)
        return world

    return prepare


NOBODYS = beside_a_letter(
    generation=True, midjourney_results={"task_id": "i"}, paid_calls=ORPHANED, pending_call=PENDING
)


def billed(world: World) -> dict[str, int]:
    """Return the number of bills for each step, in all that counts as spent."""
    [story] = open_operations(world.settings, world.clock, bucket=world.bucket).pipelines
    bills = story.paid_since("2026-01-01").bills
    return Counter(call["step"] for bill in bills for call in bill.calls)


def begun_next(world: World, generation_id: str = NEXT) -> None:
    begin(opened(world.bucket), generation_id, capped=False)
    world.bucket.store.end_leases()


def requeued_again(world: World) -> None:
    requeue(opened(world.bucket), ID)
    world.bucket.store.end_leases()


ONCE = {"content": 1}
ONCE_WITH_NOBODYS = {"content": 1, "imagine": 1, "upscale": 1}


@pytest.mark.parametrize(
    ("prepare", "once"),
    [(beside_a_letter(), ONCE), (NOBODYS, ONCE_WITH_NOBODYS)],
    ids=["after its failure", "beside work of nobody's"],
)
@pytest.mark.parametrize("goes_on", [begun_next, requeued_again], ids=["begin", "requeue"])
def test_whatever_follows_a_requeue_that_died_each_call_is_billed_once(
    prepare: Callable[[], World], once: dict[str, int], goes_on: Callable[[World], None]
) -> None:
    for where, world in each_death(prepare, lambda store: requeue(store, ID)):
        if world.generation_id is None:
            goes_on(world)
        assert billed(world) == once, where
        assert len({key.split("/")[1] for key in world.keys_of("dead_letters/before-")}) == len(once) // 2, where


@pytest.mark.parametrize("goes_on", [lambda world: begun_next(world, LATER), requeued_again], ids=["begin", "requeue"])
def test_whatever_follows_a_beginning_that_died_each_call_is_billed_once(goes_on: Callable[[World], None]) -> None:
    for where, world in each_death(NOBODYS, lambda store: begin(store, NEXT, capped=False)):
        if world.generation_id is None:
            goes_on(world)
        assert billed(world) == ONCE_WITH_NOBODYS, where


def test_a_requeued_generation_whose_id_is_taken_away_is_kept_and_billed_once() -> None:
    world = beside_a_letter()()
    requeued_again(world)
    more = {**PAID[0], "step": "upscale"}
    world.put(DOCUMENT, {**world.json(DOCUMENT), "paid_calls": [*PAID, more]})
    world.put(GEN, {})
    begun_next(world)
    assert billed(world) == {"content": 1, "upscale": 1}
    assert world.json(f"dead_letters/before-{NEXT}/config_midjourney.json")["midjourney_results"]["task_id"] == "i"


def test_a_requeued_generation_whose_id_is_taken_away_is_kept_though_it_has_no_calls_of_its_own() -> None:
    """Its results are nowhere else: the letter went when it was requeued."""
    world = beside_a_letter()()
    requeued_again(world)
    world.put(GEN, {})
    begun_next(world)
    assert billed(world) == {"content": 1}
    assert world.json(f"dead_letters/before-{NEXT}/config_midjourney.json")["midjourney_results"]["task_id"] == "i"
