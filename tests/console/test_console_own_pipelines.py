"""The commands, with a pipeline of your own that PIPELINES names beside the story."""

from typing import Any

import click
import pytest
from own_poems import NAMED, POEM
from reading_world import KEYS, World, ask, shown

from retake.bucket import ANY, Bucket
from retake.console import check, dead_letters, doctor, errors, rollback, runs, show, spend, status
from retake.console.answer import Answer
from retake.console.cancel import command as cancel
from retake.console.command_context import CommandContext
from retake.console.retry import command as retry
from retake.console.unlock import command as unlock
from retake.errors import SettingsError
from retake.exit_codes import ExitCode
from retake.operations.port import Refusal
from retake.retrying.dead_letters import DeadLetters
from retake.runs import open_ledger


def about(world: World, channel: str | None = None, **pipelines: str) -> CommandContext:
    settings = world.settings._replace(pipelines=pipelines or NAMED)
    return CommandContext({}, channel=channel, clock=world.clock, bucket=world.bucket, settings=settings, keys=KEYS)


def asked(world: World, command: click.Command, channel: str | None = None, **options: Any) -> Answer:
    return ask(command, about(world, channel), **options)


def part(world: World) -> Bucket:
    return world.bucket.part("poems/")


def recorded(world: World) -> str:
    ledger = open_ledger(None, part(world), world.clock)
    return ledger.create_for_task(POEM, f"{POEM}#1", actor="cron", pipeline="poems", worker="w").run_id


def test_it_is_shown_beside_the_story_and_alone() -> None:
    world = World()
    part(world).write("poem.json", b'{"stuck": true}', ANY)
    both = asked(world, status.command)
    assert [it["pipeline"] for it in both.document["pipelines"]] == ["story", "poems"]
    assert (both.exit_code, "poems: the muse is silent: retry poem-1" in shown(both)) == (ExitCode.FAILED, True)
    alone = asked(world, status.command, "poems")
    assert [it["pipeline"] for it in alone.document["pipelines"]] == ["poems"]
    assert shown(alone).startswith("poems: poem-1: rhyming\n")


def test_the_story_is_named_story_if_there_are_no_channels() -> None:
    world = World()
    part(world).write("poem.json", b'{"stuck": true}', ANY)
    alone = asked(world, status.command, "story")
    assert [it["pipeline"] for it in alone.document["pipelines"]] == ["story"]
    several = world.settings._replace(pipelines=NAMED, channels=("de", "fr"))
    with pytest.raises(SettingsError, match=r"'story' is none of the CHANNELS and PIPELINES \(de, fr, poems\)"):
        _ = CommandContext({}, channel="story", bucket=world.bucket, settings=several, keys=KEYS).operations


def test_without_pipelines_nothing_is_told_of_them() -> None:
    world = World()
    named = CommandContext({}, clock=world.clock, bucket=world.bucket, settings=world.settings, keys=KEYS)
    assert [it["pipeline"] for it in ask(status.command, named).document["pipelines"] if "pipeline" in it] == []
    with pytest.raises(SettingsError, match="'poems' is named as the channel, but the settings have no CHANNELS"):
        _ = CommandContext({}, channel="poems", bucket=world.bucket, settings=world.settings, keys=KEYS).operations


def test_a_name_that_is_misspelt_is_told_with_those_that_there_are() -> None:
    with pytest.raises(SettingsError, match=r"'poem' is none of the CHANNELS and PIPELINES \(poems\)"):
        asked(World(), status.command, "poem")


def test_its_runs_their_history_and_what_they_cost_are_told() -> None:
    world = World()
    run_id = recorded(world)
    assert [
        it["run_id"] for it in asked(world, runs.command, statuses=(), pipeline=None, limit=20).document["runs"]
    ] == [run_id]
    told = asked(world, show.command, run=POEM).document
    assert (told["step"], told["paid_usd"], len(told["timeline"])) == ("rhyme", 0.25, 2)
    today = asked(world, spend.command).document["today"]
    assert [it["name"] for it in today["pipelines"]] == ["story", "poems"]
    assert asked(world, errors.command, limit=5).document["errors"] == []


def test_orders_about_it_are_carried_out_or_refused_with_the_reason() -> None:
    world = World()
    part(world).write("poem.json", b'{"stuck": true}', ANY)
    assert asked(world, retry, run=POEM).document["what"] == "the muse sings again"
    with pytest.raises(Refusal, match="the poem is not stuck"):
        asked(world, retry, run=POEM)
    with pytest.raises(Refusal, match="poems takes no order to cancel"):
        asked(world, cancel, "poems", run=POEM, yes=True)


def test_only_it_knows_the_steps_to_which_it_can_be_rolled_back() -> None:
    world = World()
    with pytest.raises(Refusal, match="rolling poem-1 back to verse gives up the rhyme"):
        asked(world, rollback.command, run=POEM, step="verse", yes=False)
    assert asked(world, rollback.command, run=POEM, step="verse", yes=True).document["done"] == "rollback"
    with pytest.raises(Refusal, match="poems takes no order to rollback"):
        asked(world, rollback.command, run=POEM, step="rhyme", yes=True)


def test_its_dead_letters_are_listed_with_its_name() -> None:
    world = World()
    DeadLetters(part(world), world.clock).put("poem-0", "poem", {}, {"message": "no rhyme"})
    assert [line.split()[:2] for line in shown(asked(world, dead_letters.list_letters, limit=9)).splitlines()[1:]] == [
        ["poem-0", "poems"],
    ]  # fmt: skip
    with pytest.raises(Refusal, match="poem-0: poems takes no order to requeue"):
        asked(world, dead_letters.requeue_letter, letter_id="poems/poem-0")
    done = asked(world, dead_letters.drop_letter, letter_id="poems/poem-0", yes=True).document
    assert done["what"] == "the dead letter poem-0 is dropped"


def test_its_lease_is_broken_by_its_name() -> None:
    world = World()
    part(world).lease("poems", "elsewhere:1")
    done = asked(world, unlock, "poems", yes=True).document
    assert (done["pipeline"], done["held_by"]) == ("poems", "elsewhere:1")


def test_check_and_doctor_look_at_it() -> None:
    world = World()
    recorded(world)
    part(world).write("poem.json", b"{}", ANY)
    assert asked(world, check.command, "poems", media=False, repair=False).exit_code == 0
    checks = asked(world, doctor.command, "poems", offline=True, test_request=False).document["checks"]
    assert [it["check"] for it in checks if it["check"] in ("poems", "key midjourney", "prompts", "day's book")] == [
        "poems", "day's book",
    ]  # fmt: skip
    part(world).write("poem.json", b"{", ANY)
    told = asked(world, doctor.command, "poems", offline=True, test_request=False)
    faults = [it["check"] for it in told.document["checks"] if it["verdict"] == "fault"]
    assert (told.exit_code, "poems" in faults) == (ExitCode.FAILED, True)
    assert asked(world, check.command, "poems", media=False, repair=False).exit_code == ExitCode.TRY_LATER


def test_one_that_cannot_be_loaded_is_told_by_status_and_ends_what_is_about_it_alone() -> None:
    world = World()
    told = ask(status.command, about(world, poems="own_poems:Prose"))
    needs = [it["needs"] for it in told.document["pipelines"]]
    assert needs[0] == []
    assert needs[1][0].startswith('PIPELINES.poems: "own_poems:Prose" cannot be used: ')
    with pytest.raises(SettingsError, match=r"PIPELINES\.poems"):
        ask(status.command, about(world, "poems", poems="own_poems:Prose"))
    found = ask(doctor.command, about(world, "poems", poems="own_poems:Prose"), offline=True, test_request=False)
    assert (found.exit_code, [it["check"] for it in found.document["checks"] if it["verdict"] == "fault"]) == (
        ExitCode.CONFIG, ["pipelines"],
    )  # fmt: skip
