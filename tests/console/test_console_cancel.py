"""`cancel`: in every state of a pipeline, and on runs of other pipelines."""

import pytest
from acting_world import ID, STATES, TABLE, act, papers, runs

from retake.console.cancel import command as cancel
from retake.errors import LeaseHeld
from retake.operations.port import Refusal
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run import StaleRun
from retake.runs.states import FINAL, RunStatus, Trigger


@pytest.mark.parametrize("name", TABLE)
def test_in_each_state_it_is_done_or_refused_with_a_way_on(name: str) -> None:
    world, refusal = STATES[name](), TABLE[name][2]
    before = world.everything()
    if refusal:
        with pytest.raises(Refusal, match=refusal):
            act(cancel, world, run=ID, yes=True)
        assert world.everything() == before, "a refusal changes nothing"
        return
    answer = act(cancel, world, run=ID, yes=True)
    assert (answer.exit_code, answer.document["done"]) == (0, "cancel")
    assert answer.document["next_tick"] == "the next tick: begin a new generation"
    [run] = runs(world)
    assert (run.status, run.run_id) == (RunStatus.CANCELLED, answer.document["run"])
    assert world.generation_id is None


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if not row[2]])
def test_something_paid_for_is_not_given_up_without_a_yes(name: str) -> None:
    world = STATES[name]()
    doc, before = world.doc, world.everything()
    if not (doc.paid_calls or doc.pending):
        act(cancel, world, run=ID, yes=False)
        assert world.generation_id is None
        return
    with pytest.raises(Refusal, match=r"cancelling .* gives up .*paid call.*Pass --yes") as told:
        act(cancel, world, run=ID, yes=False)
    for task in (doc.task, doc.runway_task):
        assert task is None or task.task_id in str(told.value)
    assert world.everything() == before


def test_the_paid_task_in_flight_is_named() -> None:
    answer = act(cancel, STATES["video awaited"](), run=ID, yes=True)
    assert "task create-1 in flight, whose result is not fetched" in papers(answer)


def test_while_a_tick_is_at_work_nothing_is_done() -> None:
    world = STATES["video awaited"]()
    lease = world.bucket.lease("story", "host-a:17")
    before = world.everything()
    with pytest.raises(LeaseHeld, match="host-a:17"):
        act(cancel, world, run=ID, yes=True)
    assert world.everything() == before
    lease.release()


def test_a_generation_that_has_ended_cannot_be_cancelled() -> None:
    world = STATES["dead_lettered"]()
    before = world.everything()
    with pytest.raises(Refusal, match="cannot be cancelled: it has failed"):
        act(cancel, world, run=ID, yes=True)
    assert world.everything() == before


WAYS = {
    RunStatus.QUEUED: [],
    RunStatus.RUNNING: [Trigger.WORKER_CLAIM],
    RunStatus.INTERRUPTED: [Trigger.WORKER_CLAIM, Trigger.PROCESS_RESTART],
    RunStatus.SUCCEEDED: [Trigger.WORKER_CLAIM, Trigger.COMPLETED],
    RunStatus.FAILED: [Trigger.WORKER_CLAIM, Trigger.NON_RETRYABLE_ERROR],
    RunStatus.CANCELLED: [Trigger.CANCEL_COMMAND],
}


@pytest.mark.parametrize("status", WAYS)
def test_a_run_of_another_pipeline_is_cancelled_unless_it_has_ended(status: RunStatus) -> None:
    world = STATES["no generation"]()
    ledger = BucketLedger(world.bucket, world.clock)
    run = ledger.create_for_task("cover-7", "cover-7#1", actor="worker", pipeline="music")
    for trigger in WAYS[status]:
        run = ledger.move(run, trigger, actor="worker", worker="w1" if trigger is Trigger.WORKER_CLAIM else None)
    before = world.everything()
    if status in FINAL:
        with pytest.raises(Refusal, match=rf"has already ended \({status}\)"):
            act(cancel, world, run=run.run_id, yes=False)
        assert world.everything() == before
        return
    answer = act(cancel, world, run=run.run_id, yes=False)
    assert answer.document["run"]["status"] == "cancelled"
    if status is RunStatus.RUNNING:
        assert "w1, which has it, learns of this" in papers(answer)
        with pytest.raises(StaleRun):
            ledger.heartbeat(run)
        with pytest.raises(StaleRun):
            ledger.move(run, Trigger.COMPLETED, actor="worker")
