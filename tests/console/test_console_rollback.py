"""`rollback`: previewed, carried out with --yes, and refused with a way forward."""

import json

import pytest
from acting_world import ID, STATES, World, act, failed_run, papers, runs
from click.testing import CliRunner

from retake.console.rollback import command as rollback
from retake.operations.port import Refusal
from retake.runs.run import UnknownRun


def test_without_a_yes_what_would_be_lost_is_reported_and_nothing_is_changed() -> None:
    world = STATES["video awaited"]()
    before = world.everything()
    said = r"rolling .* back to upscale gives up .*\.png and task create-1 in flight.*Pass --yes"
    with pytest.raises(Refusal, match=said) as told:
        act(rollback, world, run=ID, step="upscale", yes=False)
    assert told.value.exit_code == 65
    assert world.everything() == before


def test_what_would_be_given_up_is_one_list() -> None:
    world = World()
    world.vendors.plan("fetch", "running")
    world.tick()
    with pytest.raises(Refusal, match=r"gives up \S+\.json, results of 2 paid calls .* and task imagine-2 in flight"):
        act(rollback, world, run=ID, step="content", yes=False)


@pytest.mark.parametrize("named", ["generation", "beginning", "run", "beginning of a run"])
def test_a_run_is_named_as_everywhere(named: str) -> None:
    world = STATES["pictures awaited"]()
    world.vendors.plan("fetch", "running")
    world.tick()
    [run] = runs(world)
    name = {"generation": ID, "beginning": ID[:11], "run": run.run_id}.get(named, run.run_id[:10])
    answer = act(rollback, world, run=name, step="imagine", yes=True)
    assert answer.document["done"] == "rollback"
    assert answer.document["generation_id"] == ID


def test_it_says_what_was_done_and_what_the_next_tick_does() -> None:
    world = STATES["upscale awaited"]()
    answer = act(rollback, world, run=ID, step="upscale", yes=True)
    text = papers(answer)
    assert f"{ID} is rolled back to upscale" in text
    assert f"dead_letters/{ID}-upscale-" in text
    assert "task upscale-1 in flight" in text
    assert answer.document["next_tick"].startswith("the next tick: order the upscale")
    [run] = runs(world)
    assert (run.status, answer.document["run"]) == ("queued", run.run_id)
    again = act(rollback, world, run=ID, step="upscale", yes=True)
    assert "nothing to roll back" in papers(again)


def test_what_is_not_under_way_is_refused_with_a_way_on() -> None:
    with pytest.raises(Refusal, match=r"cannot be rolled back: .*dead-letters requeue .*, and then it can be"):
        act(rollback, STATES["dead_lettered"](), run=ID, step="content", yes=True)
    with pytest.raises(UnknownRun):
        act(rollback, STATES["no generation"](), run=ID, step="content", yes=True)
    world = STATES["no generation"]()
    with pytest.raises(Refusal, match="only a story can be rolled back"):
        act(rollback, world, run=failed_run(world).run_id, step="content", yes=True)


@pytest.mark.parametrize("arguments", [[ID], [ID, "--to", "fetch"], ["--to", "content"]])
def test_an_invalid_step_is_a_usage_error(arguments: list[str]) -> None:
    assert CliRunner().invoke(rollback, arguments).exit_code == 2


def test_its_dead_letter_is_listed_as_what_it_is() -> None:
    from retake.console.dead_letters import list_letters, requeue_letter, show_letter

    world = STATES["video awaited"]()
    act(rollback, world, run=ID, step="imagine", yes=True)
    [letter] = act(list_letters, world, limit=9).document["dead_letters"]
    assert (letter["ended"], letter["kind"], letter["step"]) == ("rolled back", "rollback", "imagine")
    shown = act(show_letter, world, letter_id=letter["id"])
    assert "create-1" in papers(shown)
    assert shown.document["requeue"]["possible"] is False
    with pytest.raises(Refusal, match="cannot be requeued"):
        act(requeue_letter, world, letter_id=letter["id"])
    assert json.dumps(shown.document)
