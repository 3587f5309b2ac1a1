"""The frame of the command line: help, options, exit codes, and documentation that agrees."""

import json
import re
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from threading import Event

import click
import pytest
from click.testing import CliRunner, Result
from reading_world import CHECKOUT, World, context_of
from waiting import eventually

from retake.console import invocation as frame
from retake.console.answer import Answer, Sentence
from retake.console.command import ACTING, READING, RUNNING, main
from retake.console.command_context import CommandContext
from retake.console.invocation import console_command, execute
from retake.errors import LeaseHeld, RunError, SettingsError, StateError, StorageError
from retake.images.api_command import api
from retake.images.worker_command import worker
from retake.music.command import main as music
from retake.retrying.time_limit import OutOfTime, abandoned, within
from retake.sandbox.__main__ import comfyui
from retake.sandbox.__main__ import main as sandbox
from retake.story.options import content, fetch, media
from retake.story.options import main as tick
from retake.story.work import main as work

DOC = (CHECKOUT / "docs" / "console.md").read_text("utf-8")


SERVICES = {"music serve", "images up", "images api", "images worker"}
"""Commands that run until they are stopped, with options of their own."""


def commands(group: click.Group = main, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command that looks or acts, by its path: "status", "dead-letters list"."""
    context = click.Context(group)
    for name in group.list_commands(context):
        if (group is main and name in RUNNING) or f"{path}{name}" in SERVICES:
            continue
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


def options(command: click.Command) -> set[str]:
    return {name for option in command.params if isinstance(option, click.Option) for name in option.opts}


def call(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(main, arguments, env={"RETAKE_CONFIG": None, "RETAKE_STORAGE_URL": None, **environ})


def test_help_names_every_command_and_loads_none() -> None:
    loaded = {name for name in sys.modules if name.startswith("retake.console.")}
    result = call("--help")
    assert result.exit_code == 0
    for name, words in {**READING, **ACTING, **RUNNING}.items():
        assert re.search(rf"^  {name}\s+{re.escape(words)}$", result.output, re.MULTILINE), name
    assert {name for name in sys.modules if name.startswith("retake.console.")} == loaded


def test_every_command_answers_in_json_and_for_one_channel() -> None:
    for path, command in commands():
        assert {"--json", "--channel"} <= options(command), path


def test_every_command_has_help() -> None:
    for path, command in commands():
        result = call(*path.split(), "-h")
        assert result.exit_code == 0, path
        assert command.help, path


def test_the_doc_has_a_section_for_every_command_and_no_other() -> None:
    told, known = re.findall(r"^## (.+)$", DOC, re.MULTILINE), [path for path, _ in commands()]
    missing = [path for path in known if path not in told]
    assert sorted(told) == sorted(known), f"docs/console.md: each command has a section of its name; missing: {missing}"


@pytest.mark.parametrize("path", [path for path, _ in commands()])
def test_the_doc_has_every_option_and_no_other(path: str) -> None:
    section = DOC.partition(f"\n## {path}\n")[2]
    section = re.split(r"^##? ", section, flags=re.MULTILINE)[0]
    told = set(re.findall(r"^- `(--[a-z-]+)", section, re.MULTILINE))
    command = dict(commands())[path]
    known = options(command) - {"--json", "--channel"}
    assert told == known, f"docs/console.md, {path}: a line that begins with - `--OPTION` for each option, and no other"


def test_the_doc_has_every_exit_code_of_the_help() -> None:
    codes = set(re.findall(r"^    (\d+) ", call("--help").output.replace("      ", "    "), re.MULTILINE))
    assert codes == set(re.findall(r"^\| (\d+) \|", DOC, re.MULTILINE))


def test_an_unknown_command_is_a_usage_error() -> None:
    assert call("statsu").exit_code == 2
    assert call("runs", "--status", "gone").exit_code == 2
    assert call("spend", "--days", "0").exit_code == 2
    assert call("show").exit_code == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("which key"), 78),
        (StateError("no sense"), 65),
        (RunError("no such run"), 65),
        (StorageError("away"), 75),
        (LeaseHeld("held by a:1"), 75),
    ],
)
def test_an_error_is_a_sentence_and_an_exit_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> Answer:
        raise error

    assert execute(work, as_json=False) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"error: {error}\n")
    assert execute(work, as_json=True) == code
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": str(error), "exit_code": code}
    assert err == f"error: {error}\n"


def test_a_bug_keeps_its_traceback_and_ends_with_70(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> Answer:
        raise ZeroDivisionError

    assert execute(work, as_json=False) == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_what_nobody_reads_any_more_is_not_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Gone())
    with pytest.raises(BrokenPipeError):  # click turns it into a quiet end of the process
        execute(lambda: Answer({}, [Sentence("x")]), as_json=True)


def test_a_command_is_a_function_of_a_desk() -> None:
    @console_command("sample")
    @click.option("--twice", is_flag=True)
    def sample(context: CommandContext, twice: bool) -> Answer:
        """A sample."""
        return Answer(
            {"channel": context.channel, "twice": twice}, [Sentence(f"{context.channel}")], 65 if twice else 0
        )

    result = CliRunner().invoke(sample, ["--channel", "en", "--json", "--twice"])
    assert result.exit_code == 65
    assert json.loads(result.output) == {"channel": "en", "twice": True}
    assert CliRunner().invoke(sample, ["--channel", "ru"]).output == "ru\n"


_NAMED = (
    "dead-letters show, dead-letters requeue, dead-letters drop, breaker probe, breaker reset, alerts show, alerts ack"
)
_ARGUMENTS = {
    **{path: ["ID"] for path in [*_NAMED.split(", "), "alerts close"]},
    "alerts report": ["daily"],
    "rollback": ["run-1", "--to", "imagine"],
    "mode set": ["1"],
    **{f"music {name}": ["7"] for name in ("show", "retry", "cancel")},
    "music resolve": ["7", "--again"],
    **{f"robots {name}": ["NR.NSI.1"] for name in ("show", "play")},
    **{f"images dead {name}": ["0000"] for name in ("requeue", "drop")},
}


def test_settings_that_are_not_there_are_reported_by_every_command(tmp_path: Path) -> None:
    for path, _ in commands():
        if path == "doctor":
            continue
        words = [*path.split(), *({"show", "report", "retry", "skip", "cancel"} & {path} and ["run-1"])]
        words += _ARGUMENTS.get(path, [])
        result = call(*words, RETAKE_CONFIG=str(tmp_path / "none.json"))
        assert result.exit_code == 78, (path, result.output)
        assert "there is no such settings file" in result.output


def test_an_invalid_channel_is_reported() -> None:
    world = World()
    world.settings = world.settings._replace(channels=("en",))
    with pytest.raises(SettingsError, match="CHANNELS \\(en"):
        assert context_of(world, channel="de").operations
    with pytest.raises(SettingsError, match="no CHANNELS"):
        assert context_of(World(), channel="de").operations


def test_the_context_opens_nothing_that_is_not_asked_for() -> None:
    assert CommandContext({}).channel is None
    assert frame.CONTEXT["help_option_names"] == ["-h", "--help"]


def test_no_line_of_help_is_wider_than_a_terminal() -> None:
    running = (tick, content, media, fetch, music, api, worker, work, sandbox, comfyui)
    for command in (main, *running, *dict(commands()).values()):
        told = CliRunner().invoke(command, ["--help"], terminal_width=80)
        assert told.exit_code == 0
        assert [line for line in told.output.splitlines() if len(line) > 80] == [], command.name


def test_what_a_pipeline_prints_is_no_part_of_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> Answer:
        click.echo("a poem is described")
        return Answer({"pipelines": 1}, [])

    assert execute(work, as_json=True) == 0
    found = capsys.readouterr()
    assert (json.loads(found.out), found.err) == ({"pipelines": 1}, "a poem is described\n")


def test_what_a_pipeline_that_hangs_prints_later_is_no_part_of_it_either(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # put back after the test
    go_on = Event()

    def work() -> Answer:
        with pytest.raises(OutOfTime):
            within(0.01, lambda: go_on.wait(60))
        return Answer({"pipelines": 1}, [])

    try:
        assert execute(work, as_json=True) == 0
        click.echo("it is still trying")
    finally:
        go_on.set()
        eventually(lambda: abandoned() == 0)  # it would affect the next test, too
    found = capsys.readouterr()
    assert (json.loads(found.out), "it is still trying" in found.err) == ({"pipelines": 1}, True)
