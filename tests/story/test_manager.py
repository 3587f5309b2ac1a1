"""A tick: the lease, the flag, the order of its steps, keys, and scripts that fail."""

import threading
from typing import Any

import pytest
from story_ticks import DOCUMENT, GEN, ID, ORDERED, PICTURES, PUBLIC, UPSCALED, WHOLE, Scripted, at, fill, group
from story_world import PAID, Heard

from retake.bucket import Lease
from retake.bucket.failing import FailingBucket, Fault
from retake.bucket.memory import MemoryBucket
from retake.errors import LeaseLost, SettingsError, StateError, StorageError
from retake.keys import Keys
from retake.story.documents import FAILURE_STATUS, Status, Step
from retake.ticking.tick import ScriptResult

# --- a successful tick ----------------------------------------------------------------------------------------------


def test_from_an_empty_bucket_one_tick_makes_a_whole_generation() -> None:
    world = Scripted()
    tick = world.tick()
    assert (tick.exit_code, tick.ended, tick.generation_id) == (0, "done", ID)
    assert world.keys_of("666/") == [f"666/{ID}.json", f"666/{ID}.mp4", f"666/{ID}.png"]
    assert [script for script, _ in world.runs] == [
        *("generate_content", "generate_media", "fetch_media", "generate_media", "fetch_media", "generate_media")
    ]
    assert {kind: world.vendors.billed[kind] for kind in PAID} == dict.fromkeys(PAID, 1)
    assert (world.generation_id, world.doc.blank, world.documents.public.processing_lock) == (None, True, False)
    assert [call["step"] for call in world.json(f"spend/{ID}.json")["paid_calls"]] == [
        *("content", "imagine", "upscale", "runway")
    ]


def test_scripts_are_told_the_generation_and_whether_a_mock_is_wanted() -> None:
    world = at(status="timed_out_mock_needed")
    world.tick()
    assert world.runs == [("generate_media", ["--generation_id", ID, "--use-mock"])]
    world = at(midjourney_task={"task_id": "t"})
    world.vendors.plan("fetch", "running")
    world.tick()
    assert world.runs == [("fetch_media", [])]


def test_while_midjourney_works_a_tick_asks_once_and_waits() -> None:
    world = at(midjourney_task={"task_id": "t", "requested_at_utc": ORDERED}, status="waiting_for_imagine")
    world.vendors.plan("fetch", "running", "running")
    for asked in (1, 2):
        tick = world.tick()
        assert (tick.exit_code, tick.ended, tick.resting) == (0, None, False)
        assert world.vendors.asked["fetch"] == asked


def test_the_next_generation_begins_in_the_next_tick() -> None:
    world = Scripted()
    world.ticks(2)
    assert world.ended == ["done", "done"]
    assert {key.partition(".")[0] for key in world.keys_of("666/") + world.keys_of("555/")} == {
        f"555/{ID}",
        "666/20260101-0001",
    }


@pytest.mark.parametrize("tasks", [2, 3])
def test_several_tasks_can_be_done_in_one_tick_each_with_an_id_of_its_own(tasks: int) -> None:
    world = Scripted(max_tasks_per_run=tasks)
    tick = world.tick()
    assert (tick.exit_code, tick.ended) == (0, "done")
    assert world.vendors.billed["create"] == tasks
    names = {key.rpartition("/")[2].partition(".")[0] for key in world.keys_of() if key.endswith(".mp4")}
    assert names == {f"20260101-000{n}" for n in range(tasks)}
    assert world.documents.public.processing_lock is False


def test_several_tasks_end_when_there_is_no_more_room() -> None:
    world = Scripted(max_tasks_per_run=9)
    tick = world.tick()
    assert (tick.exit_code, tick.why, tick.resting) == (0, "nothing to do", True)
    assert world.vendors.billed["create"] == 3


def test_the_first_failure_of_several_tasks_ends_the_tick() -> None:
    world = Scripted(max_tasks_per_run=3)
    world.vendors.plan("create", "ok", "rejected")
    tick = world.tick()
    assert (tick.exit_code, tick.ended, tick.generation_id) == (69, "failed", "20260101-0001")
    assert world.vendors.asked["create"] == 2


def test_ids_already_taken_are_passed_over() -> None:
    world = Scripted()
    for key in (f"archive/{ID}.json", "444/20260101-0001.png", "dead_letters/20260101-0002/report.json"):
        world.put(key, {})
    world.tick()
    assert f"666/20260101-0003.{WHOLE[0]}" in world.keys_of()


def test_what_is_published_while_one_task_is_done_is_tidied_up_before_the_next() -> None:
    world = Scripted(max_tasks_per_run=2)
    group(world, "444", "old")
    world.put(PUBLIC, {"generation_id": [], "empty": []})
    real_run = super(Scripted, world).run

    def publish() -> ScriptResult:
        world.put(PUBLIC, {**world.json(PUBLIC), "generation_id": ["old"]})
        return real_run("generate_content", ["--generation_id", ID], world.bucket.store.holders["story"][0])

    world.endings.append(publish)
    world.tick()
    assert world.json(PUBLIC)["generation_id"] == []
    assert "archive/old.mp4" in world.keys_of()


# --- nothing to do --------------------------------------------------------------------------------------------------


def test_with_a_ready_group_in_each_folder_there_is_nothing_to_do_and_nothing_changes() -> None:
    world = Scripted()
    world.put(PUBLIC, {"processing_lock": False, "empty": [], "generation_id": []})
    fill(world)
    before = world.everything()
    tick = world.tick()
    assert (tick.exit_code, tick.why, tick.resting) == (0, "nothing to do", True)
    assert world.everything() == before
    assert world.runs == []


def test_an_idle_tick_writes_nothing_at_all() -> None:
    world = Scripted(FailingBucket(MemoryBucket()))
    fill(world)
    world.put(PUBLIC, {"empty": []})
    began = len(world.bucket.operations)
    world.tick()
    assert {operation for operation, _ in world.bucket.operations[began:]} == {"lease", "read", "list"}


# --- the lease and the flag -----------------------------------------------------------------------------------------


def test_a_lease_held_elsewhere_is_not_an_error_and_nothing_is_touched() -> None:
    world = Scripted()
    lease = world.bucket.lease("story", "other:1")
    before = world.everything()
    tick = world.tick()
    assert (tick.exit_code, tick.resting) == (0, False)
    assert "other:1" in tick.why
    assert world.everything() == before
    lease.release()
    assert world.tick().ended == "done"


@pytest.mark.parametrize("trouble", ["lease", "read"])
def test_a_bucket_that_is_away_is_raised_and_the_lease_given_back(trouble: str) -> None:
    bucket = MemoryBucket()
    world = Scripted(FailingBucket(bucket, Fault(operation=trouble)))
    with pytest.raises(StorageError):
        world.tick()
    bucket.lease("story", "next").release()


def flag_seen(world: Scripted) -> list[bool]:
    """Return processing_lock as seen during each script."""
    seen: list[bool] = []
    run = world.run

    def looking(script: str, arguments: list[str], lease: Lease) -> ScriptResult:
        seen.append(world.documents.public.processing_lock)
        return run(script, arguments, lease)

    world.run = looking  # type: ignore[method-assign]
    world.tick()
    return seen


def test_the_flag_is_up_while_a_tick_works_and_down_after_it() -> None:
    world = Scripted()
    world.put(PUBLIC, {"generation_id": [], "theirs": 1})
    assert flag_seen(world) == [True] * 6
    assert world.json(PUBLIC) == {
        "generation_id": [],
        "theirs": 1,
        "processing_lock": False,
        "empty": [*world.settings.paths[3:6]],
    }


def test_the_flag_is_up_before_anything_else_is_written() -> None:
    world = Scripted(FailingBucket(MemoryBucket()))
    world.put(PUBLIC, {"generation_id": [], "empty": ["444/", "555/", "666/"]})
    began = len(world.bucket.operations)
    world.tick()
    written = [key for operation, key in world.bucket.operations[began:] if operation in ("write", "replace", "copy")]
    assert written[0] == written[-1] == PUBLIC
    assert GEN in written


@pytest.mark.parametrize("outcome", ["refused", "rejected", "key", "unknown", "dies"])
@pytest.mark.parametrize("kind", PAID)
def test_the_flag_is_down_after_every_kind_of_failure(kind: str, outcome: str) -> None:
    world = Scripted()
    world.vendors.plan(kind, outcome)
    world.tick()
    assert world.documents.public.processing_lock is False
    world.bucket.lease("story", "next").release()


def test_the_flag_is_down_after_an_error_in_the_middle_of_a_tick() -> None:
    world = at(generation=True)
    world.endings.append(lambda: world.put(GEN, b"nonsense") or ScriptResult(0))
    with pytest.raises(StateError):
        world.tick()
    assert world.json(PUBLIC)["processing_lock"] is False
    world.bucket.lease("story", "next").release()


def test_a_flag_that_a_crash_left_blocks_nothing_and_is_lowered() -> None:
    world = Scripted()
    fill(world)
    world.put(PUBLIC, {"processing_lock": True, "empty": []})
    with Heard() as log:
        assert world.tick().exit_code == 0
    assert world.json(PUBLIC) == {"processing_lock": False, "empty": []}
    assert any("did not finish" in warning for warning in log.warnings)
    world = at(generation=True)
    world.put(PUBLIC, {"processing_lock": True})
    world.vendors.plan("fetch", "running")
    world.tick()
    assert world.vendors.billed["imagine"] == 1
    assert world.documents.public.processing_lock is False


def test_a_flag_that_cannot_be_lowered_is_lowered_by_the_next_tick() -> None:
    bucket = MemoryBucket()
    world = Scripted(bucket)
    world.vendors.plan("fetch", *["running"] * 5)
    world.tick()
    world.bucket = FailingBucket(bucket, Fault(operation="replace", number=2, times=99))
    with Heard() as log:
        assert world.tick().exit_code == 0
    assert world.documents.public.processing_lock is True
    assert any("stays true" in record.getMessage() for record in log.records)
    world.bucket = bucket
    world.tick()
    assert world.documents.public.processing_lock is False


def test_a_lease_that_is_lost_while_a_script_runs_ends_the_tick_before_anything_is_written() -> None:
    world = at(generation=True)

    def lose() -> ScriptResult:
        world.bucket.store.end_leases()
        world.before = world.everything()
        return ScriptResult(75)

    world.endings.append(lose)
    with pytest.raises(LeaseLost):
        world.tick()
    assert world.everything() == world.before


def test_ticks_at_the_same_time_do_the_work_of_one() -> None:
    world = Scripted()
    start = threading.Barrier(4)
    codes: list[int] = []

    def tick() -> None:
        manager = world.manager()
        start.wait()
        codes.append(manager.tick().exit_code)

    threads = [threading.Thread(target=tick) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0] * 4
    ids = {key.partition(".")[0] for key in world.keys_of() if key.endswith(".mp4")}
    assert world.vendors.billed["create"] == len(ids)


# --- what must exist before anything is changed ---------------------------------------------------------------------


NO_KEYS = Keys(None, None, None)
NEEDS = [
    (Keys(None, "key", "key"), {"generation": True}, "json", "MIDJOURNEY"),
    (Keys(None, "key", "key"), {"midjourney_task": {"task_id": "t"}}, "json", "MIDJOURNEY"),
    (Keys(None, "key", "key"), {"midjourney_results": PICTURES}, "json", "MIDJOURNEY"),
    (Keys(None, "key", "key"), {"pending_call": {"step": "imagine"}}, "json", "MIDJOURNEY"),
    (Keys("key", None, "key"), {"midjourney_results": UPSCALED}, "json", "RUNWAY"),
    (Keys("key", None, "key"), {"runway_task": {"task_id": "t"}}, "json", "RUNWAY"),
    (Keys("key", "key", None), {}, "", "OPENAI"),
]


@pytest.mark.parametrize(("keys", "doc", "files", "name"), NEEDS, ids=str)
def test_without_the_key_of_the_next_step_nothing_is_changed(
    keys: Keys, doc: dict[str, Any], files: str, name: str
) -> None:
    world = at(files, **doc)
    world.keys = keys
    before = world.everything()
    with pytest.raises(SettingsError, match=name):
        world.tick()
    assert world.everything() == before
    assert world.runs == []


@pytest.mark.parametrize("keys", [NO_KEYS, *(needs[0] for needs in NEEDS[::3])], ids=str)
def test_no_generation_is_begun_and_nothing_tidied_up_while_any_key_is_missing(keys: Keys) -> None:
    world = Scripted()
    group(world, "666", "a")
    world.put(PUBLIC, {"generation_id": ["b"]})
    world.keys = keys
    before = world.everything()
    with pytest.raises(SettingsError):
        world.tick()
    assert world.everything() == before


def test_without_keys_what_needs_none_is_done() -> None:
    world = at("json png mp4")
    world.keys = NO_KEYS
    assert world.tick().ended == "done"
    world = at(status="timed_out_mock_needed")
    world.keys = NO_KEYS
    assert world.tick().ended == "done"


@pytest.mark.parametrize("key", [PUBLIC, GEN, DOCUMENT])
def test_while_a_document_makes_no_sense_nothing_but_its_copy_is_written(key: str) -> None:
    world = at(generation=True)
    world.put(PUBLIC, {"processing_lock": True})
    world.put(key, b"{nonsense")
    before = world.everything()
    for _ in range(2):
        with pytest.raises(StateError, match=key):
            world.tick()
    added = {name: data for name, data in world.everything().items() if name not in before}
    assert list(added.values()) == [b"{nonsense"]
    assert {name: data for name, data in world.everything().items() if name in before} == before


# --- scripts that die, hang, or go wrong ----------------------------------------------------------------------------


AT_EACH_STEP: dict[Step, tuple[str, dict[str, Any]]] = {
    Step.CONTENT: ("", {}),
    Step.IMAGINE: ("json", {"generation": True}),
    Step.FETCH: ("json", {"midjourney_task": {"task_id": "t"}, "status": "waiting_for_imagine"}),
    Step.UPSCALE: ("json", {"midjourney_results": PICTURES}),
    Step.RUNWAY: ("json", {"midjourney_results": UPSCALED}),
    Step.RUNWAY_POLL: ("json png", {"runway_task": {"task_id": "r"}, "status": "waiting_for_runway"}),
}


@pytest.mark.parametrize(
    "ending",
    [
        ScriptResult(-9),
        ScriptResult(-15, timed_out=True),
        ScriptResult(1),
        ScriptResult(70),
        ScriptResult(69),
        ScriptResult(0),
    ],
    ids=str,
)
@pytest.mark.parametrize("step", AT_EACH_STEP)
def test_a_script_that_dies_hangs_or_does_nothing_is_a_failure_of_its_step(step: Step, ending: ScriptResult) -> None:
    files, doc = AT_EACH_STEP[step]
    world = at(files, **doc)
    world.endings.append(ending)
    tick = world.tick()
    if step is Step.FETCH and ending == ScriptResult(0):
        assert (tick.exit_code, tick.why) == (0, "waiting for Midjourney")
        return
    assert tick.exit_code == 75
    assert world.doc.status is FAILURE_STATUS[step]
    error = world.doc.raw.get("last_error")
    assert error is not None
    assert (error["error_code"], error["correlation_id"]) == ("ERR_TEMPORARY_SCRIPT_DIED", ID)
    assert ("900 s" in error["message"]) is (ending.exit_code == -15)
    assert world.tick().why.startswith("attempt 1/3 for status")
    assert world.doc.retries == {step: 1}


@pytest.mark.parametrize("step", AT_EACH_STEP)
def test_a_step_whose_script_always_dies_runs_four_times_and_then_the_generation_fails(step: Step) -> None:
    files, doc = AT_EACH_STEP[step]
    world = at(files, **doc)
    world.endings.extend([ScriptResult(-9)] * 99)
    ticks = world.ticks(8)
    assert [tick.exit_code for tick in ticks] == [75, 0, 75, 0, 75, 0, 75, 69]
    assert len(world.runs) == 4
    assert world.json(f"dead_letters/{ID}/report.json")["failed_step"] == step


@pytest.mark.parametrize("code", [65, 75, 78])
@pytest.mark.parametrize("step", AT_EACH_STEP)
def test_a_script_that_could_not_even_begin_is_not_a_failed_attempt(step: Step, code: int) -> None:
    files, doc = AT_EACH_STEP[step]
    world = at(files, **doc)
    world.endings.append(ScriptResult(code))
    tick = world.tick()
    assert tick.exit_code == code
    assert world.doc.raw.get("status") == doc.get("status")
    assert world.doc.retries == {}


def test_a_script_that_could_not_begin_is_not_a_failed_attempt_in_the_tick_that_raised_the_flag_either() -> None:
    world = at("json")  # a crash lost `generation: true`
    world.endings.append(ScriptResult(75))
    tick = world.tick()
    assert (tick.exit_code, world.doc.status, world.doc.generation) == (75, None, True)


def test_a_script_that_was_stopped_by_a_signal_is_not_a_failed_attempt() -> None:
    world = at(generation=True)
    world.endings.append(ScriptResult(75, stopped=True))
    tick = world.tick()
    assert (tick.exit_code, world.doc.status, world.doc.retries) == (75, None, {})
    assert "signal" in tick.why


def test_a_script_that_dies_after_it_had_ordered_the_film_counts_against_the_polls_and_orders_no_second() -> None:
    world = at("json png", midjourney_results=UPSCALED)
    real_run = super(Scripted, world).run

    def half() -> ScriptResult:
        world.vendors.plan("poll", "error")
        lease = world.bucket.store.holders["story"][0]
        real_run("generate_media", ["--generation_id", ID], lease)
        return ScriptResult(-9)

    world.endings.append(half)
    world.tick()
    assert world.doc.status is Status.RUNWAY_POLL_FAILED
    world.ticks(2)
    assert world.ended == ["done"]
    assert world.vendors.billed["create"] == 1
