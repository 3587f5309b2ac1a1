"""A rollback discards what a step and later ones made, keeps it aside, and repeats the step: in every state."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from operator_states import CALLS, ID, IMAGINED, PAID, STATES, VIDEO_TASK, each_death, state
from story_ticks import PICTURES, PUBLIC, UPSCALED, Scripted
from story_world import World
from test_operator import operator, runs, to_its_end

from retake.bucket import Bucket
from retake.errors import LeaseHeld
from retake.operations.events import REMARK, STEP_DONE
from retake.operations.port import Refusal, Verb
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.states import FINAL
from retake.story.documents import PAID_STEPS, Status
from retake.story.generation import finish
from retake.story.settings import LEASE
from retake.story.store import DocumentStore
from retake.strict_json import parse

UPSCALE_CALL = {"step": "upscale", "attempt": 1, "price_usd": 0.01, "outcome": "accepted", "task_id": "upscale-1"}
VIDEO_CALL = {"step": "runway", "attempt": 1, "price_usd": 0.5, "outcome": "accepted", "task_id": "create-1"}
ALL_CALLS = [*CALLS, UPSCALE_CALL, VIDEO_CALL]

ENOUGH = {
    "video there": state("json png mp4", paid_calls=ALL_CALLS),
    "mock after the video": state("json png", status="timed_out_mock_needed", paid_calls=ALL_CALLS),
    "video ordered": state(
        "json png", midjourney_results=UPSCALED, runway_task=VIDEO_TASK, status="waiting_for_runway",
        paid_calls=ALL_CALLS, skipped=[{"step": "upscale"}], retries={"runway_poll": 2, "imagine": 1},
    ),
}  # fmt: skip
WORLDS = {**STATES, **ENOUGH}

LATER = "comes later, and has made nothing"
GONE = "is not on record"
TABLE: dict[str, tuple[str, str, str, str]] = {
    # state: the results of a rollback to content, imagine, upscale and runway; "" is done, "=" has nothing to do
    "text next": ("=", LATER, LATER, LATER),
    "text unasked": ("not known yet",) * 4,
    "text held": ("Resolve it first: retry",) * 4,
    "text failed": ("", LATER, LATER, LATER),
    "text exhausted": ("", LATER, LATER, LATER),
    "text refused for the key": ("", LATER, LATER, LATER),
    "pictures next": ("", "=", LATER, LATER),
    "pictures unasked": ("not known yet",) * 4,
    "pictures held": ("Resolve it first: retry",) * 4,
    "pictures failed": ("", "", LATER, LATER),
    "pictures exhausted": ("", "", LATER, LATER),
    "pictures refused for the key": ("", "", LATER, LATER),
    "pictures awaited": ("", "", LATER, LATER),
    "poll of the pictures failed": ("", "", LATER, LATER),
    "pictures there": ("", "", "=", LATER),
    "upscale held": ("Resolve it first: retry",) * 4,
    "upscale failed": ("", "", "", LATER),
    "upscale awaited": ("", "", "", LATER),
    "upscale there": ("", "", "", "="),
    "video held": ("Resolve it first: retry",) * 4,
    "video failed": ("", "", "", ""),
    "video failed without a text": ("", "has no text", "has no text", "has no text"),
    "video awaited": ("", "", "", ""),
    "poll of the video failed": ("", "", "", ""),
    "mock next": ("", "", GONE, GONE),
    "all files there": ("", "", GONE, GONE),
    "finished, but for its id": ("is finished and what it cost is on record",) * 4,
    "failed for good": ("dead-letters requeue .* resumes it, and it can be rolled back",) * 4,
    "cancelled, not dead_lettered": ("was cancelled, and the next tick moves it",) * 4,
    **dict.fromkeys(ENOUGH, ("",) * 4),
}
CASES = [(name, str(step), row[number]) for name, row in TABLE.items() for number, step in enumerate(PAID_STEPS)]
DONE = [(name, step) for name, step, refusal in CASES if not refusal]
FILES = {"content": set[str](), "imagine": {"json"}, "upscale": {"json"}, "runway": {"json", "png"}}
NEXT = {"content": "write", "imagine": "imagine", "upscale": "upscale", "runway": "create"}


def rolled_back(world: World, step: str) -> None:
    hands = operator(world)
    hands.carry_out(Verb.ROLLBACK, ID, hands.planned(Verb.ROLLBACK, ID, step).lost, step)


def letters(world: World) -> list[str]:
    return sorted({key.split("/")[1] for key in world.keys_of("dead_letters/")})


@pytest.mark.parametrize(("name", "step", "refusal"), CASES)
def test_in_each_state_it_is_done_or_refused_with_a_way_on(name: str, step: str, refusal: str) -> None:
    world = WORLDS[name]()
    before = world.everything()
    if refusal and refusal != "=":
        with pytest.raises(Refusal, match=refusal):
            rolled_back(world, step)
        assert world.everything() == before, "a refusal changes nothing"
        return
    operator(world).planned(Verb.ROLLBACK, ID, step)
    assert world.everything() == before, "a plan changes nothing"
    rolled_back(world, step)
    if refusal == "=":
        assert world.everything() == before
        return
    assert {key.rpartition(".")[2] for key in world.keys_of(f"666/{ID}.")} <= FILES[step]
    assert (world.doc.status, world.doc.discard) == (None, frozenset())
    assert not world.json(PUBLIC)["processing_lock"]
    assert not world.bucket.store.holders.get("story")


@pytest.mark.parametrize(("name", "step"), DONE)
def test_what_was_made_is_kept_and_what_was_paid_stays_on_record(name: str, step: str) -> None:
    world = WORLDS[name]()
    doc, files = world.doc, {key: world.bucket.read(key)[0] for key in world.keys_of(f"666/{ID}.")}
    rolled_back(world, step)
    [letter] = letters(world)
    assert letter.startswith(f"{ID}-{step}-")
    assert parse(world.bucket.read(f"dead_letters/{letter}/config_midjourney.json")[0]) == doc.raw
    for key, data in files.items():
        kept = f"dead_letters/{letter}/{key.rpartition('/')[2]}"
        assert key in world.keys_of("666/") or world.bucket.read(kept)[0] == data
    report = world.json(f"dead_letters/{letter}/report.json")
    assert report["tasks_in_flight"] == [task.task_id for task in (doc.task, doc.runway_task) if task]
    assert (report["kind"], report["rolled_back"]["to"], report["generation_id"]) == ("rollback", step, ID)
    assert world.doc.paid_calls == doc.paid_calls
    assert [it["letter"] for it in world.doc.rolled_back] == [letter]


@pytest.mark.parametrize(("name", "step"), DONE)
def test_the_next_tick_takes_the_step_again_and_the_generation_ends(name: str, step: str) -> None:
    world = WORLDS[name]()
    rolled_back(world, step)
    paid = world.vendors.billed.copy()
    world.tick()
    assert world.vendors.billed[NEXT[step]] > paid[NEXT[step]]
    to_its_end(world)
    assert len(world.keys_of(f"666/{ID}.")) == 3
    [run] = runs(world)
    assert run.status in FINAL


@pytest.mark.parametrize(("name", "step"), DONE)
def test_said_twice_it_is_done_once(name: str, step: str) -> None:
    world = WORLDS[name]()
    rolled_back(world, step)
    once = world.everything()
    rolled_back(world, step)
    assert world.everything() == once


@pytest.mark.parametrize(("name", "step"), DONE)
def test_while_a_tick_is_at_work_nothing_is_done(name: str, step: str) -> None:
    world = WORLDS[name]()
    lease, before = world.bucket.lease("story", "host-a:17"), world.everything()
    with pytest.raises(LeaseHeld, match="host-a:17"):
        rolled_back(world, step)
    assert world.everything() == before
    lease.release()


def each_death_rolling_back(name: str, step: str) -> Iterator[tuple[str, Scripted]]:
    lost = operator(WORLDS[name]()).planned(Verb.ROLLBACK, ID, step).lost
    return each_death(WORLDS[name], lambda *there: operator(*there).carry_out(Verb.ROLLBACK, ID, lost, step))


SWEPT = ("text failed", "upscale awaited", "video there", "video ordered", "mock after the video", "video failed")


@pytest.mark.parametrize(("name", "step"), [it for it in DONE if it[0] in SWEPT])
def test_one_that_died_is_finished_by_the_next_tick_or_was_never_begun(name: str, step: str) -> None:
    whole, done = WORLDS[name](), WORLDS[name]()
    rolled_back(done, step)
    for where, world in each_death_rolling_back(name, step):
        if not world.doc.rolled_back:
            assert world.doc == whole.doc, where
            assert {key: world.bucket.read(key)[0] for key in world.keys_of("666/")} == {
                key: whole.bucket.read(key)[0] for key in whole.keys_of("666/")
            }, where
            rolled_back(world, step)  # a second order is the same one
        assert letters(world) == letters(done), where
        for key in done.keys_of("dead_letters/"):
            assert key.endswith("report.json") or world.bucket.read(key)[0] == done.bucket.read(key)[0], where
        paid = world.vendors.billed.copy()
        world.tick()
        assert world.vendors.billed[NEXT[step]] > paid[NEXT[step]], where
        to_its_end(world)
        assert len(world.keys_of(f"666/{ID}.")) == 3, where
        assert not world.documents.public.processing_lock, where
        [run] = runs(world)
        remarks = [it.payload for it in BucketLedger(world.bucket, world.clock).events(run.run_id) if it.kind == REMARK]
        assert [it["step"] for it in remarks if it["code"] == "rolled_back"] == [step], where


def test_a_dry_run_after_a_death_knows_of_the_files_that_are_given_up() -> None:
    for where, world in each_death_rolling_back("video there", "runway"):
        if world.doc.rolled_back:
            assert "order the video" in world.manager().dry_run()[0], where


def test_what_a_finish_that_died_has_put_on_record_is_not_replaced() -> None:
    refused = 0
    for where, world in each_death(WORLDS["video there"], finish_in):
        with suppress(Refusal):
            rolled_back(world, "runway")
            continue
        refused += 1
        to_its_end(world)
        assert world.json(f"spend/{ID}.json")["paid_calls"] == ALL_CALLS, where
    assert refused


def finish_in(world: World, bucket: Bucket) -> None:
    lease = bucket.lease(LEASE, "host-a:17")
    store = DocumentStore(bucket, world.settings.paths, lease, world.clock)
    store.read()
    finish(store, world.clock.now())


def test_what_is_given_up_is_not_brought_back_by_the_letter_that_a_requeue_left_when_it_died() -> None:
    def cancelled() -> Scripted:
        world = WORLDS["video ordered"]()
        hands = operator(world)
        hands.carry_out(Verb.CANCEL, ID, hands.planned(Verb.CANCEL, ID).lost)
        return world

    left = 0
    for where, world in each_death(cancelled, lambda *there: operator(*there).requeue(ID)):
        if world.generation_id != ID:
            continue
        left += bool(world.keys_of(f"dead_letters/{ID}/"))
        rolled_back(world, "upscale")
        world.vendors.plan("upscale", "rejected")
        while not world.ended:
            world.tick()
        operator(world).requeue(ID)
        assert world.keys_of("666/") == [f"666/{ID}.json"], where
    assert left


# --- the ledger -------------------------------------------------------------------------------------------------------


def events(world: World) -> list[tuple[str, Any, str]]:
    [run] = runs(world)
    found = BucketLedger(world.bucket, world.clock).events(run.run_id)
    return [
        (str(it.payload.get("code") or "done"), it.payload.get("step"), str(it.payload["actor"]))
        for it in found
        if it.kind in (REMARK, STEP_DONE)
    ]


def test_the_ledger_has_it_by_the_operator_and_what_is_made_once_more() -> None:
    world = World(runway_polling_timeout=1.0)
    world.vendors.plan("poll", "running")
    while world.doc.runway_task is None and not world.ended:
        world.tick()
    world_id = world.generation_id
    assert world_id
    hands = operator(world)
    hands.carry_out(Verb.ROLLBACK, world_id, hands.planned(Verb.ROLLBACK, world_id, "upscale").lost, "upscale")
    while not world.ended:
        world.tick()
    [run] = BucketLedger(world.bucket, world.clock).of_task(world_id)
    found = BucketLedger(world.bucket, world.clock).events(run.run_id)
    told = [
        (it.payload.get("code") or "done", it.payload.get("step"), it.payload["actor"])
        for it in found
        if it.kind in (REMARK, STEP_DONE)
    ]
    assert told == [
        ("done", "content", "cron"),
        ("done", "imagine", "cron"),
        ("done", "upscale", "cron"),
        ("rollback", None, "operator"),
        ("rolled_back", "upscale", "operator"),
        ("done", "upscale", "cron"),
        ("done", "runway", "cron"),
    ]
    assert world.vendors.billed == {"write": 1, "imagine": 1, "upscale": 2, "create": 2}
    calls = world.json(f"spend/{world_id}.json")["paid_calls"]
    assert [call["step"] for call in calls].count("upscale") == 2


def test_after_a_mock_the_video_counts_as_the_vendors() -> None:
    world = WORLDS["mock after the video"]()
    rolled_back(world, "runway")
    to_its_end(world)
    assert ("done", "runway", "cron") in events(world)
    assert ("done", "mock", "cron") not in events(world)


# --- which results a step begins from ---------------------------------------------------------------------------------


def test_a_result_that_was_rolled_back_is_not_begun_from_again() -> None:
    world = WORLDS["video there"]()
    rolled_back(world, "upscale")
    doc = world.doc
    world.put("config/config_midjourney.json", doc.updated(status=Status.TIMED_OUT_MOCK_NEEDED.value,
                                                           midjourney_results={}).raw)  # fmt: skip
    with pytest.raises(Refusal, match="what the upscale made is not on record"):
        rolled_back(world, "runway")


def test_the_choice_of_a_picture_asks_for_the_links_that_are_not_on_record() -> None:
    world = WORLDS["video there"]()
    world.settings = world.settings._replace(image=world.settings.image._replace(pick="vision"))
    rolled_back(world, "upscale")
    assert world.doc.results is not None
    assert world.doc.results.link_expired
    world.tick()
    [pick] = [call for call in world.json(f"spend/{ID}.json")["paid_calls"] if call.get("call") == "pick"]
    assert pick["outcome"] == "done"


NO_ID = {"step": "imagine", "attempt": 2, "price_usd": 0.045, "outcome": "unknown"}
MOCKED = {"status": "timed_out_mock_needed"}


@pytest.mark.parametrize(
    ("step", "calls", "doc", "task_id"),
    [
        ("upscale", CALLS, {"retries": {"upscale": 1}}, "imagine-1"),
        ("upscale", CALLS, {"retries": {"content": 1}}, None),
        ("upscale", [*CALLS, UPSCALE_CALL], {}, "imagine-1"),
        ("upscale", [*CALLS, NO_ID, UPSCALE_CALL], {}, "imagine-1"),
        ("upscale", [PAID, NO_ID, UPSCALE_CALL], {}, None),
        ("runway", [*CALLS, UPSCALE_CALL], {"retries": {"runway_poll": 1}}, "upscale-1"),
        ("runway", [*CALLS, UPSCALE_CALL], {"midjourney_results": PICTURES}, None),
    ],
)
def test_a_step_begins_from_what_is_known_to_be_delivered(
    step: str, calls: list[dict[str, Any]], doc: dict[str, Any], task_id: str | None
) -> None:
    world = state("json", paid_calls=calls, **MOCKED, **doc)()
    if task_id is None:
        with pytest.raises(Refusal, match=GONE):
            rolled_back(world, step)
        return
    rolled_back(world, step)
    assert world.doc.results is not None
    assert (world.doc.results.task_id, world.doc.results.link_expired) == (task_id, True)


def test_the_choice_of_a_picture_stays_until_the_upscale_is_taken_again() -> None:
    for step, results, kept in (("runway", UPSCALED, 2), ("upscale", PICTURES, None)):
        world = state("json png", paid_calls=ALL_CALLS, midjourney_results={**results, "picked": 2}, **MOCKED)()
        rolled_back(world, step)
        assert world.doc.raw["midjourney_results"].get("picked") == kept


def test_each_rollback_gives_up_what_the_previous_one_left() -> None:
    world = state("json png", midjourney_results=UPSCALED, paid_calls=[PAID, IMAGINED, UPSCALE_CALL, VIDEO_CALL],
                  runway_task=VIDEO_TASK)()  # fmt: skip
    hands = operator(world)
    assert "1 paid call (0.500 USD)" in hands.planned(Verb.ROLLBACK, ID, "runway").lost
    rolled_back(world, "runway")
    assert "results of 1 paid call (0.010 USD)" in hands.planned(Verb.ROLLBACK, ID, "upscale").lost
    rolled_back(world, "upscale")
    assert hands.planned(Verb.ROLLBACK, ID, "imagine").lost == "results of 1 paid call (0.045 USD)"


def test_a_rollbacks_letter_cannot_be_requeued_and_can_be_dropped() -> None:
    world = WORLDS["video ordered"]()
    rolled_back(world, "upscale")
    [letter] = letters(world)
    with pytest.raises(Refusal, match="is what a rollback gave up"):
        operator(world).requeue(letter)
    operator(world).drop(letter)
    assert letters(world) == []
