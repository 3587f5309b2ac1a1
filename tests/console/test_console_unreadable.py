"""One unreadable ledger or channel is named, and hides none of the others."""

from pathlib import Path

import pytest
from click import Command
from reading_world import KEYS, World, ask, shown

from retake.console.cancel import command as cancel
from retake.console.command_context import CommandContext
from retake.console.errors import command as errors
from retake.console.report import command as report
from retake.console.runs import command as runs
from retake.console.show import command as show
from retake.console.spend import command as spend
from retake.errors import StateError, StorageError
from retake.exit_codes import ExitCode
from retake.music.settings import MusicSettings, ServiceSettings
from retake.operations.run_pages import runs_page
from retake.runs.listing import RunsWanted
from retake.testing.logs import CapturedLogs

ID = "20260101-0000"


@pytest.fixture
def context(tmp_path: Path) -> CommandContext:
    """Return a story with a run, beside music whose database is something else."""
    world = World()
    world.ticks(4)
    (tmp_path / "music.sqlite3").write_text("no database at all" * 10)
    music = MusicSettings(music=ServiceSettings(database=f"sqlite:{tmp_path}/music.sqlite3"))
    return CommandContext({}, clock=world.clock, bucket=world.bucket, settings=world.settings, keys=KEYS, music=music)


@pytest.mark.parametrize("command", [runs, errors])
def test_the_others_are_listed_and_the_unreadable_ledger_is_named(context: CommandContext, command: Command) -> None:
    given = {"statuses": (), "limit": 20, "pipeline": None} if command is runs else {"limit": 20}
    with CapturedLogs() as log:
        answer = ask(command, context, **given)
    assert answer.exit_code == ExitCode.BAD_STATE
    [told] = answer.document["unreadable"]
    assert told.startswith("the ledger of music is left out: the database at sqlite:")
    assert log.warnings == [told]
    if command is runs:
        assert ID in [it["task_id"] for it in answer.document["runs"]]


@pytest.mark.parametrize("command", [show, report])
def test_a_run_of_the_others_is_shown(context: CommandContext, command: Command) -> None:
    with CapturedLogs() as log:
        assert ask(command, context, run=ID).exit_code == ExitCode.OK
    assert "the ledger of music is left out" in log.warnings[0]
    with pytest.raises(StorageError, match="not a database"):  # it may be there
        ask(command, context, run="20260101-2359")


def test_the_list_of_the_dashboard_has_the_others_and_says_what_it_leaves_out(context: CommandContext) -> None:
    for text in ("", ID):
        page = runs_page(context.operations, RunsWanted(), 1, 50, text)
        assert ID in [run.task_id for run in page.listed.runs]
        [told] = page.listed.unreadable
        assert told.startswith("the ledger of music is left out: the database at sqlite:")
    only_music = context.operations.of(context.operations.pipelines[1:], named=True)
    with pytest.raises(StorageError, match="not a database"):
        runs_page(only_music, RunsWanted(), 1, 50)


def test_an_order_needs_all_ledgers(context: CommandContext) -> None:
    with pytest.raises(StorageError, match="not a database"):
        cancel.callback.__wrapped__(context, run=ID, yes=True)  # type: ignore[union-attr]


def test_what_the_others_have_paid_is_reported_and_that_it_is_not_all(context: CommandContext) -> None:
    answer = ask(spend, context)
    assert answer.exit_code == ExitCode.BAD_STATE
    assert answer.document["total"]["calls"] > 0
    assert "music is left out: the database at sqlite:" in shown(answer)


def test_where_nothing_can_be_read_that_is_the_error(context: CommandContext) -> None:
    alone = CommandContext(
        {}, channel="music", clock=context.clock, bucket=context.bucket, settings=context.settings, music=context.music
    )
    with pytest.raises(StorageError, match="not a database"):
        ask(runs, alone, statuses=(), limit=20, pipeline=None)
    with pytest.raises(StorageError, match="not a database"):
        ask(spend, alone)


def test_a_channel_with_an_invalid_document_hides_not_what_the_others_have_paid() -> None:
    world = World()
    world.ticks(4)
    everything = world.everything()
    for name in ("north", "south"):
        for key, data in everything.items():
            world.put(f"{name}/{key}", data)
    world.put("south/config/config_midjourney.json", b"{")
    world.settings = world.settings._replace(channels=("north", "south"))
    answer = ask(spend, world)
    [told] = answer.document["unreadable"]
    assert told.startswith("story/south is left out: ")
    assert {it["channel"] for it in answer.document["by_generation"]} == {"north"}
    world.settings = world.settings._replace(channels=("south",))
    with pytest.raises(StateError):
        ask(spend, world)
