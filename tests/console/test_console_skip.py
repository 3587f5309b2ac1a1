"""`skip`: in every state of a pipeline."""

import pytest
from acting_world import ID, STATES, TABLE, act, failed_run, papers, runs

from retake.console.retry import command as retry
from retake.console.skip import command as skip
from retake.errors import LeaseHeld
from retake.operations.port import Refusal


@pytest.mark.parametrize("name", TABLE)
def test_in_each_state_it_is_done_or_refused_with_a_way_on(name: str) -> None:
    world, refusal = STATES[name](), TABLE[name][1]
    before = world.everything()
    if refusal:
        with pytest.raises(Refusal, match=refusal):
            act(skip, world, run=ID)
        assert world.everything() == before, "a refusal changes nothing"
        return
    answer = act(skip, world, run=ID)
    assert (answer.exit_code, answer.document["done"]) == (0, "skip")
    end = "move the failed generation to the dead letters" if name.endswith("held") else "make the mock"
    assert end in answer.document["next_tick"]


def test_the_task_that_is_given_up_is_named() -> None:
    answer = act(skip, STATES["poll of the video failed"](), run=ID)
    assert "Warning: paid for and given up: task create-1." in papers(answer)


def test_the_pictures_that_go_with_a_skipped_upscale_are_named() -> None:
    answer = act(skip, STATES["upscale failed"](), run=ID)
    assert "Warning: paid for and given up: what task imagine-1 delivered." in papers(answer)


@pytest.mark.parametrize(
    ("on_exhausted", "end"), [("fail", "the generation ends as failed"), ("mock", "a mock takes its place")]
)
def test_what_follows_a_held_call_that_is_not_made_is_reported(on_exhausted: str, end: str) -> None:
    world = STATES["pictures held"]()
    world.settings = world.settings._replace(workflow=world.settings.workflow._replace(on_exhausted=on_exhausted))
    assert f"the imagine call of {ID} is not made: {end}." in papers(act(skip, world, run=ID))


def test_no_skip_is_advised_where_there_is_no_text() -> None:
    with pytest.raises(Refusal) as refused:
        act(retry, STATES["text exhausted"](), run=ID)
    assert "skip" not in str(refused.value)


def test_the_error_is_on_record_as_skipped() -> None:
    world = STATES["upscale exhausted"]()
    act(skip, world, run=ID)
    [run] = runs(world)
    world.tick()
    assert world.ended == ["done"]
    from retake.runs.bucket_ledger import BucketLedger

    events = BucketLedger(world.bucket, world.clock).events(run.run_id)
    assert "skipped" in [event.payload.get("code") for event in events]
    assert "ERR_TEMPORARY_UNAVAILABLE" in [event.payload.get("error_code") for event in events]


def test_while_a_tick_is_at_work_nothing_is_done() -> None:
    world = STATES["pictures failed"]()
    lease = world.bucket.lease("story", "host-a:17")
    before = world.everything()
    with pytest.raises(LeaseHeld, match="host-a:17"):
        act(skip, world, run=ID)
    assert world.everything() == before
    lease.release()


def test_a_generation_that_has_ended_has_nothing_to_skip() -> None:
    world = STATES["dead_lettered"]()
    before = world.everything()
    with pytest.raises(Refusal, match=f"cannot be skipped: it has failed, .*dead-letters requeue {ID}"):
        act(skip, world, run=ID)
    assert world.everything() == before


def test_a_run_of_another_pipeline_has_no_steps_to_skip() -> None:
    world = STATES["no generation"]()
    run = failed_run(world)
    before = world.everything()
    with pytest.raises(Refusal, match=f"run of music: only steps of a story can be skipped; cancel {run.run_id}"):
        act(skip, world, run=run.run_id)
    assert world.everything() == before
