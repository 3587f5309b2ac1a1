"""`retry`: in every state of a pipeline, on ended runs, and on runs of other pipelines."""

from datetime import timedelta

import pytest
from acting_world import ID, STATES, TABLE, World, act, failed_run, papers, runs

from retake.clock import stamp
from retake.console.retry import command as retry
from retake.console.skip import command as skip
from retake.errors import LeaseHeld, RunError
from retake.operations.port import Refusal
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run import UnknownRun
from retake.runs.states import RunStatus, Trigger


@pytest.mark.parametrize("name", TABLE)
def test_in_each_state_it_is_done_or_refused_with_a_way_on(name: str) -> None:
    world, refusal = STATES[name](), TABLE[name][0]
    before = world.everything()
    if refusal:
        with pytest.raises(Refusal, match=refusal):
            act(retry, world, run=ID)
        assert world.everything() == before, "a refusal changes nothing"
        return
    answer = act(retry, world, run=ID)
    assert answer.exit_code == 0
    assert answer.document["generation_id"] == ID
    assert answer.document["run"] == runs(world)[-1].run_id
    assert papers(answer).startswith("Done: ")
    assert "The next tick" in papers(answer)


def test_what_it_says_will_happen_next_is_what_the_next_tick_does() -> None:
    world = STATES["pictures failed"]()
    answer = act(retry, world, run=ID)
    assert answer.document["next_tick"] == "the next tick: order the pictures (the text is ready)"
    world.tick()
    assert world.vendors.billed["imagine"] == 1


def test_a_held_call_is_made_again_with_a_warning() -> None:
    answer = act(retry, STATES["video held"](), run=ID)
    assert "paid for twice" in papers(answer)
    assert "paid for twice" in answer.document["warning"]


@pytest.mark.parametrize("command", [retry, skip])
def test_what_waits_for_a_breaker_is_told_which_and_what_lets_one_call_through(command: object) -> None:
    world = STATES["pictures there"]()
    world.settings = world.settings._replace(breaker=world.settings.breaker._replace(failures=3))
    until = world.clock.now() + timedelta(seconds=world.settings.breaker.open_seconds)
    world.put("breakers/midjourney.json", {"open_until": stamp(until)})
    ahead = rf"cancel {ID}\. midjourney has failed too often: open until .*: breaker probe midjourney$"
    with pytest.raises(Refusal, match=ahead):
        act(command, world, run=ID)


@pytest.mark.parametrize("how", ["id", "beginning", "generation"])
def test_a_run_is_found_by_its_id_the_beginning_of_it_or_its_generation(how: str) -> None:
    world = STATES["pictures failed twice"]()
    act(retry, world, run=ID)
    [run] = runs(world)
    world.vendors.plan("imagine", "refused")
    world.tick()
    text = {"id": run.run_id, "beginning": run.run_id[:9], "generation": ID}[how]
    with pytest.raises(Refusal, match="no attempt is left"):  # found, and the third attempt is used up
        act(retry, world, run=text)


@pytest.mark.parametrize("text", ["20200101-0000", "run-0000", "", "../x", "run-", "x" * 300, "é/«»", "run-../x"])
def test_what_nobody_knows_is_stated(text: str) -> None:
    world = STATES["pictures failed"]()
    before = world.everything()
    with pytest.raises(UnknownRun, match="no run and no generation"):
        act(retry, world, run=text)
    assert world.everything() == before


def test_the_candidates_for_an_ambiguous_name_are_listed() -> None:
    world = STATES["dead_lettered"]()
    failed = [failed_run(world), *runs(world)]
    with pytest.raises(RunError, match="may mean several") as told:
        act(retry, world, run="run-")
    assert all(run.run_id in str(told.value) for run in failed)


def test_while_a_tick_is_at_work_nothing_is_done() -> None:
    world = STATES["pictures failed"]()
    lease = world.bucket.lease("story", "host-a:17")
    before = world.everything()
    with pytest.raises(LeaseHeld, match="host-a:17") as told:
        act(retry, world, run=ID)
    assert told.value.exit_code == 75
    assert world.everything() == before
    lease.release()


# --- ended generations ------------------------------------------------------------------------------------------------


def test_a_failed_generation_is_resumed_where_it_failed() -> None:
    world = STATES["dead_lettered"]()
    answer = act(retry, world, run=runs(world)[0].run_id)
    assert answer.document["done"] == "requeue"
    assert world.generation_id == ID
    assert [run.status for run in runs(world)] == [RunStatus.FAILED, RunStatus.QUEUED], "it waits for a manager"
    world.tick()
    assert world.ended[-1] == "done"
    assert world.vendors.billed == {"upscale": 1, "create": 1}


def test_a_failed_generation_waits_for_the_one_under_way() -> None:
    world = STATES["dead_lettered"]()
    world.vendors.plan("fetch", "running")
    world.tick()
    before = world.everything()
    with pytest.raises(Refusal, match=f"generation {world.generation_id} is under way, one at a time"):
        act(retry, world, run=ID)
    assert world.everything() == before


def test_a_former_run_of_a_generation_under_way_is_refused() -> None:
    world = STATES["dead_lettered"]()
    act(retry, world, run=ID)
    first, second = runs(world)
    before = world.everything()
    with pytest.raises(Refusal, match=f"an earlier run .* {second.run_id}"):
        act(retry, world, run=first.run_id)
    assert world.everything() == before


def succeeded() -> World:
    world = STATES["all files there"]()
    world.tick()
    return world


def cancelled() -> World:
    from retake.console.cancel import command as cancel

    world = STATES["pictures failed"]()
    act(cancel, world, run=ID, yes=True)
    return world


def dropped() -> World:
    from retake.console.dead_letters import drop_letter

    world = STATES["dead_lettered"]()
    act(drop_letter, world, letter_id=ID, yes=True)
    return world


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (succeeded, "has succeeded, and there is nothing to do"),
        (cancelled, f"was cancelled, and it is among the dead letters: dead-letters requeue {ID}"),
        (dropped, "has failed, and its dead letter was dropped"),
    ],
)
def test_what_has_ended_otherwise_is_refused(make: object, why: str) -> None:
    world = make()  # type: ignore[operator]
    before = world.everything()
    with pytest.raises(Refusal, match=why):
        act(retry, world, run=ID)
    assert world.everything() == before


# --- other pipelines --------------------------------------------------------------------------------------------------


def test_a_failed_run_of_another_pipeline_is_queued_again_once() -> None:
    world = STATES["no generation"]()
    failed = failed_run(world)
    answer = act(retry, world, run=failed.run_id)
    again = act(retry, world, run=failed.run_id)
    assert again.document["run"] == answer.document["run"], "a second order returns the same run"
    first, second = runs(world, "cover-7")
    assert (first.status, second.status, second.attempt) == (RunStatus.FAILED, RunStatus.QUEUED, 2)
    assert second.pipeline == "music"
    [created] = BucketLedger(world.bucket, world.clock).events(second.run_id)
    assert created.payload["actor"] == "operator"
    assert "A worker of music" in papers(answer)


MOVES = {
    RunStatus.QUEUED: [],
    RunStatus.RUNNING: [Trigger.WORKER_CLAIM],
    RunStatus.SUCCEEDED: [Trigger.WORKER_CLAIM, Trigger.COMPLETED],
    RunStatus.INTERRUPTED: [Trigger.WORKER_CLAIM, Trigger.PROCESS_RESTART],
    RunStatus.CANCELLED: [Trigger.CANCEL_COMMAND],
}


@pytest.mark.parametrize("status", MOVES)
def test_a_run_of_another_pipeline_that_did_not_fail_is_refused(status: RunStatus) -> None:
    world = STATES["no generation"]()
    ledger = BucketLedger(world.bucket, world.clock)
    run = ledger.create_for_task("cover-7", "cover-7#1", actor="worker", pipeline="music")
    for trigger in MOVES[status]:
        run = ledger.move(run, trigger, actor="worker")
    before = world.everything()
    with pytest.raises(Refusal, match=f"{run.run_id} of music is {status}"):
        act(retry, world, run=run.run_id)
    assert world.everything() == before


def test_a_task_that_is_being_tried_again_already_is_not_queued_twice() -> None:
    world = STATES["no generation"]()
    failed = failed_run(world)
    ledger = BucketLedger(world.bucket, world.clock)
    other = ledger.create_for_task("cover-7", "cover-7#2", actor="worker", pipeline="music")
    with pytest.raises(Refusal, match=other.run_id):
        act(retry, world, run=failed.run_id)


@pytest.mark.parametrize(
    ("end", "way"), [(Trigger.NON_RETRYABLE_ERROR, "retry {}"), (Trigger.COMPLETED, "there is nothing to retry")]
)
@pytest.mark.parametrize("by", ["operator", "worker"])
def test_a_former_run_is_not_retried_and_the_last_one_is_named(by: str, end: Trigger, way: str) -> None:
    """What has succeeded since would be done and paid for again; what has failed again would not be queued."""
    world = STATES["no generation"]()
    failed = failed_run(world)
    ledger = BucketLedger(world.bucket, world.clock)
    if by == "operator":
        act(retry, world, run=failed.run_id)
    else:
        ledger.create_for_task("cover-7", "cover-7#2", actor="worker", pipeline="music")
    last = ledger.move(runs(world, "cover-7")[-1], Trigger.WORKER_CLAIM, actor="worker", worker="w1")
    last = ledger.move(last, end, actor="worker", error_code="ERR_BUSINESS_X" if "{}" in way else None)
    before = world.everything()
    with pytest.raises(
        Refusal, match=f"earlier run of cover-7; the latest one is {last.run_id}.*{way.format(last.run_id)}"
    ):
        act(retry, world, run=failed.run_id)
    assert world.everything() == before
