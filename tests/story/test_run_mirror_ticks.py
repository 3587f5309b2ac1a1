"""Generations as their runs record them: over ticks, with failures, crashes, an operator, and edits by hand."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from mortal import MortalWorld
from story_runs import assert_whole, ledger_of, memory_of, runs_of, told
from story_shapes import shaped
from story_ticks import GEN, ID, PUBLIC, UPSCALED, at, group
from story_world import World

from retake.bucket.failing import FailingBucket, Fault
from retake.bucket.memory import MemoryBucket
from retake.errors import Code, Refused, StorageError, error_record
from retake.runs.run import ERROR
from retake.runs.states import RunStatus, Trigger
from retake.story.decision import Act, Action
from retake.story.documents import Step
from retake.story.run_mirror import RunMirror
from retake.ticking.tick import Orders

BEGUN = ["queued cron", "running cron"]
CLEAN = [
    *BEGUN,
    *("run.step.done: content", "run.step.done: imagine", "run.step.done: upscale", "run.step.done: runway"),
    "succeeded cron",
]


# --- generations, from their events alone -----------------------------------------------------------------------------


def all_told(world: World) -> list[str]:
    """Return the record of the first generation."""
    [run, *_] = sorted(ledger_of(world).runs(), key=lambda it: it.created_at)
    return told(world, run.task_id)


def test_a_generation_without_a_fault_is_reported_from_beginning_to_end() -> None:
    world = World()
    assert world.tick().ended == "done"
    assert all_told(world) == CLEAN
    [run] = ledger_of(world).runs()
    assert (run.status, run.attempt, run.pipeline, run.error_code) == (RunStatus.SUCCEEDED, 1, "story", None)
    assert run.idempotency_key == f"{run.task_id}#1"


def test_over_many_ticks_the_same_is_reported() -> None:
    world = World()
    world.vendors.plan("fetch", "running", "ok", "running")
    world.vendors.plan("poll", "running")
    while not world.ended:
        world.tick()
    assert all_told(world) == CLEAN


def test_the_worker_of_a_run_is_the_manager() -> None:
    world = World()
    world.vendors.plan("fetch", "running")
    world.tick()
    assert world.generation_id
    [run] = runs_of(world, world.generation_id)
    assert run.worker == "test"


def test_a_step_that_fails_is_scheduled_and_then_running_again_as_the_next_attempt() -> None:
    world = World()
    world.vendors.plan("upscale", "refused")
    seen: list[tuple[str, int]] = []
    while not world.ended:
        world.tick()
        [run] = ledger_of(world).runs()
        seen.append((run.status, run.attempt))
    assert seen == [("retry_scheduled", 1), ("running", 2), ("succeeded", 2)]
    assert all_told(world) == [
        *BEGUN,
        *("run.step.done: content", "run.step.done: imagine"),
        *("retry_scheduled cron", "run.error: ERR_TEMPORARY_UNAVAILABLE", "running cron"),
        *("run.step.done: upscale", "run.step.done: runway", "succeeded cron"),
    ]


def test_when_a_step_is_tried_again_stands_on_its_run() -> None:
    world = World()
    world.vendors.plan("upscale", "refused")
    world.tick()
    [run] = ledger_of(world).runs()
    assert run.next_retry_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert run.error_code == "ERR_TEMPORARY_UNAVAILABLE"
    error = next(event for event in ledger_of(world).events(run.run_id) if event.kind == ERROR)
    assert error.payload == world.doc.raw.get("last_error")


def test_what_always_fails_ends_as_failed_with_each_of_its_errors() -> None:
    world = World(max_retries=1)
    world.vendors.plan("imagine", *["refused"] * 9)
    while not world.ended:
        world.tick()
    assert all_told(world) == [
        *BEGUN,
        *("run.step.done: content", "retry_scheduled cron", "run.error: ERR_TEMPORARY_UNAVAILABLE", "running cron"),
        *("failed cron", "run.error: ERR_TEMPORARY_UNAVAILABLE"),
    ]


def test_what_no_retry_can_mend_ends_as_failed_at_once() -> None:
    world = World()
    world.vendors.plan("imagine", "rejected")
    world.tick()
    assert all_told(world)[-2:] == ["failed cron", "run.error: ERR_BUSINESS_REJECTED"]


def test_what_a_person_must_mend_is_scheduled_until_it_is_tried_again() -> None:
    world = World()
    world.vendors.plan("imagine", "key")
    world.tick()
    [run] = ledger_of(world).runs()
    assert (run.status, run.next_retry_at) == (RunStatus.RETRY_SCHEDULED, datetime(2026, 1, 1, 1, tzinfo=UTC))
    world.later(hours=1)
    world.tick()
    assert all_told(world)[3:6] == ["retry_scheduled cron", "run.error: ERR_CRITICAL_UNAUTHORIZED", "running cron"]


def test_a_mock_for_used_up_attempts_is_reported_and_the_run_succeeds() -> None:
    world = World(max_retries=0, on_exhausted="mock")
    world.vendors.plan("imagine", "refused")
    while not world.ended:
        world.tick()
    assert all_told(world) == [
        *BEGUN,
        *("run.step.done: content", "run.error: ERR_TEMPORARY_UNAVAILABLE", "run.note: mock_instead"),
        *("run.step.done: mock", "succeeded cron"),
    ]


def test_a_call_that_may_have_been_billed_twice_is_reported() -> None:
    world = World()
    world.vendors.plan("create", "unknown")
    while not world.ended:
        world.tick()
    assert all_told(world).count("run.note: possible_duplicate") == 1


# --- the operator ----------------------------------------------------------------------------------------------------


def test_a_held_call_stays_running_until_the_operator_resolves_it() -> None:
    world = World(on_unknown_outcome="hold")
    world.vendors.plan("imagine", "lost")
    world.ticks(3)
    [run] = ledger_of(world).runs()
    assert run.status is RunStatus.RUNNING
    assert all_told(world)[2:] == ["run.step.done: content", "run.note: held", "run.error: ERR_TEMPORARY_NETWORK"]
    world.tick(Orders(resolve="skip"))
    assert all_told(world)[5:] == ["run.note: resolve", "run.note: unknown_outcome", "failed operator"]


def test_a_hold_that_the_operator_lifts_is_running_by_the_operator() -> None:
    world = World()
    world.vendors.plan("imagine", "key")
    world.tick()
    world.vendors.plan("fetch", "running")
    world.tick(Orders(resume=True))
    assert all_told(world)[5:] == ["run.note: resume", "running operator"]


def test_a_retake_is_a_run_of_its_own_with_the_next_attempt() -> None:
    world = World(max_retries=0)
    world.vendors.plan("upscale", "refused")
    world.tick()
    world.tick()
    generation_id = world.keys_of("dead_letters/")[0].split("/")[1]
    world.tick(Orders(retake=generation_id))
    first, second = runs_of(world, generation_id)
    assert (first.status, first.attempt) == (RunStatus.FAILED, 1)
    assert (second.status, second.attempt, second.idempotency_key) == (RunStatus.SUCCEEDED, 2, f"{generation_id}#2")
    events = told(world, generation_id)
    assert events[events.index("queued operator") :] == [
        *("queued operator", "running operator", "run.note: retake"),
        *("run.step.done: upscale", "run.step.done: runway", "succeeded operator"),
    ]
    assert_whole(world)


def full_house() -> World:
    """Return a world with no room for another generation."""
    world = World()
    for folder, name in (("444", "20250101-0001"), ("555", "20250101-0002"), ("666", "20250101-0003")):
        group(world, folder, name)
    return world


def test_an_order_where_nothing_is_under_way_opens_no_ledger() -> None:
    world = full_house()
    world.put(GEN, {"generation_id": None, "failed_in_a_row": 3})
    assert world.tick(Orders(resume=True)).resting
    assert world.keys_of("runs/") == []


# --- documents from before, or edited by hand -------------------------------------------------------------------------


def test_a_generation_of_an_older_program_gets_its_run_with_the_first_tick() -> None:
    world = at(midjourney_results=UPSCALED)
    world.tick()
    assert told(world, ID) == [*BEGUN, *CLEAN[2:3], *CLEAN[4:]]


def test_a_finished_or_failed_one_of_an_older_program_does_too() -> None:
    done = at(files="json png mp4")
    done.tick()
    assert told(done, ID) == [*BEGUN, "run.step.done: content", "run.step.done: runway", "succeeded cron"]
    failed = at(status="task_failed_max_retries")
    failed.tick()
    assert told(failed, ID) == [*BEGUN, "run.step.done: content", "failed cron"]


def test_attempts_that_were_granted_by_hand_after_the_end_are_a_run_of_their_own() -> None:
    world = World(max_retries=0)
    world.vendors.plan("upscale", "refused")
    world.tick()
    assert [run.status for run in ledger_of(world).runs()] == [RunStatus.FAILED]
    world.settings = world.settings._replace(workflow=world.settings.workflow._replace(max_retries=3))
    while not world.ended:
        world.tick()
    assert world.ended == ["done"]
    assert [run.status for run in sorted(ledger_of(world).runs(), key=lambda run: run.attempt)] == [
        RunStatus.FAILED,
        RunStatus.SUCCEEDED,
    ]
    assert_whole(world)


def test_the_run_of_a_generation_whose_documents_were_removed_is_given_up_when_the_next_one_begins() -> None:
    world = World()
    world.vendors.plan("fetch", "running")
    world.tick()
    first = str(world.generation_id)
    world.put(GEN, {"generation_id": None})
    world.put("config/config_midjourney.json", {})
    world.bucket.delete(f"666/{first}.json")
    world.later(minutes=1)
    while not world.ended:
        world.tick()
    assert told(world, first)[-2:] == ["run.note: abandoned", "cancelled recovery"]
    assert_whole(world, but={"day-sum-wrong"})  # the record of what was paid is gone with the documents


def test_a_step_that_failed_again_by_hand_is_reported_though_it_stays_scheduled() -> None:
    world = World()
    world.vendors.plan("upscale", "refused")
    world.tick()
    again = error_record(
        Refused(Code.RATE_LIMIT, "HTTP 429"), now=world.clock.now(), robot_id="r", correlation_id="c", retry_count=0
    )
    world.put("config/config_midjourney.json", {**world.doc.raw, "last_error": again})
    world.settings = world.settings._replace(workflow=world.settings.workflow._replace(critical_retry_minutes=60))
    world.tick()
    errors = [line for line in all_told(world) if line.startswith("run.error")]
    assert errors == ["run.error: ERR_TEMPORARY_UNAVAILABLE", "run.error: ERR_TEMPORARY_RATE_LIMIT"]


# --- crashes ----------------------------------------------------------------------------------------------------------


def test_a_tick_that_died_is_an_interruption_and_recovery_takes_the_run_up_again() -> None:
    world = World()
    world.vendors.plan("fetch", "running")
    world.tick()
    world.put(PUBLIC, {**world.documents.public.raw, "processing_lock": True})
    world.vendors.plan("fetch", "running")
    world.tick()
    assert all_told(world)[-2:] == ["interrupted recovery", "running recovery"]
    [run] = ledger_of(world).runs()
    assert (run.resumes, run.attempt) == (1, 1)


def test_a_tick_that_died_while_a_retry_was_scheduled_interrupted_nothing() -> None:
    world = World()
    world.vendors.plan("upscale", "refused")
    world.tick()
    world.put(PUBLIC, {**world.documents.public.raw, "processing_lock": True})
    world.tick()
    assert "interrupted recovery" not in all_told(world)


def wounded(prepare: Callable[[MortalWorld], None], **workflow: Any) -> MortalWorld:
    world = MortalWorld(**{"max_retries": 1, **workflow})
    prepare(world)
    return world


def one_fails(world: MortalWorld) -> None:
    world.vendors.plan("upscale", "refused")


def all_fail(world: MortalWorld) -> None:
    world.vendors.plan("upscale", *["refused"] * 9)


def key_refused(world: MortalWorld) -> None:
    world.vendors.plan("imagine", "key")
    world.interval_s = 2000.0


@pytest.mark.parametrize("prepare", [one_fails, all_fail, key_refused])
@pytest.mark.parametrize("what", ["write runs/", "write config/config_midjourney.json", "write config/config_gen.json"])
@pytest.mark.parametrize("after", [False, True])
def test_a_death_between_the_documents_and_the_run_is_healed_by_the_next_tick(
    prepare: Callable[[MortalWorld], None], what: str, after: bool
) -> None:
    world = wounded(prepare)
    assert world.live()
    points = [number for number, done in enumerate(world.fate.log, 1) if done.startswith(what)]
    assert points
    for point in points:
        world = wounded(prepare)
        world.live(point, after=after)
        world.tick()  # asserts that run and documents agree
        assert_whole(world)
        while not world.ended:
            world.tick()
        assert_whole(world)
        assert all(run.ended for run in ledger_of(world).runs())


def test_a_store_that_fails_before_the_first_write_to_the_ledger_costs_nothing() -> None:
    world = World(bucket=FailingBucket(MemoryBucket(), Fault(operation="write", number=3, times=99)))  # type: ignore[arg-type]
    with pytest.raises(StorageError):
        world.tick()
    assert not world.vendors.billed


def test_a_run_that_somebody_moved_in_between_is_read_again() -> None:
    world = World()
    world.vendors.plan("fetch", "running")
    world.tick()
    lease = world.bucket.lease("story", "test")
    ledger = world.manager()._mirror(lease)._ledger
    chronicle = RunMirror(ledger, "story", world.clock, actor="cron", worker="test")
    documents = world.documents._replace(files=frozenset({"json"}))
    chronicle.sync(documents, Action(Act.FETCH, Step.FETCH, ""))
    [run] = ledger.runs()
    ledger.move(run, Trigger.PROCESS_RESTART, actor="recovery")
    chronicle.sync(documents, Action(Act.FAIL, Step.FETCH, ""))
    lease.release()
    assert all_told(world)[-2:] == ["running recovery", "failed cron"]


# --- many pipelines ---------------------------------------------------------------------------------------------------


def test_the_runs_of_a_channel_are_called_after_it() -> None:
    world = World()
    ledger, documents = ledger_of(world), shaped()
    RunMirror(ledger, "story/north", world.clock, actor="cron", worker="w").sync(
        documents, Action(Act.WRITE, Step.CONTENT, "")
    )
    [run] = ledger.runs()
    assert (run.pipeline, run.task_id, run.idempotency_key) == ("story/north", "north/a", "north/a#1")


def test_two_generations_in_one_tick_have_separate_runs() -> None:
    world = World(max_tasks_per_run=2)
    world.tick()
    runs = ledger_of(world).runs()
    assert [run.status for run in runs] == [RunStatus.SUCCEEDED] * 2
    assert all(told(world, run.task_id) == CLEAN for run in runs)


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_an_idle_tick_asks_no_ledger() -> None:
    world = full_house()
    bucket = FailingBucket(memory_of(world))
    world.bucket = bucket  # type: ignore[assignment]
    assert world.tick().resting
    assert not [key for _, key in bucket.operations if key.startswith("runs/")]


def test_a_tick_that_waits_for_a_vendor_writes_nothing_to_the_ledger() -> None:
    world = World()
    world.vendors.plan("fetch", *["running"] * 9)
    world.tick()
    bucket = FailingBucket(memory_of(world))
    world.bucket = bucket  # type: ignore[assignment]
    world.tick()
    assert [it for it, key in bucket.operations if key.startswith("runs/")] == ["read"]


def test_a_clean_generation_makes_two_changes_to_the_ledger() -> None:
    bucket = FailingBucket(MemoryBucket())
    world = World(bucket=bucket)  # type: ignore[arg-type]
    assert world.tick().ended == "done"
    written = [key for it, key in bucket.operations if it in ("write", "delete") and key.startswith("runs/")]
    assert len([key for key in written if key.startswith("runs/run-")]) == 2
    assert len(written) <= 8
