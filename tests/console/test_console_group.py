"""What the outermost command accepts, and its answers to nonsense."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from reading_world import CHECKOUT, command_line, in_terminal

from retake import __version__
from retake.clock import FakeClock
from retake.console.command import main
from retake.console.watch import repeated


def call(*arguments: str, storage: Path | None = None) -> Result:
    environ = {"RETAKE_CONFIG": None, "RETAKE_STORAGE_URL": f"file:{storage}" if storage else None}
    return CliRunner().invoke(main, arguments, env=environ)


@pytest.mark.parametrize(
    "words",
    [
        ["--json", "statsu"],
        ["statsu", "--json"],
        ["status", "--json", "--nope"],
        ["runs", "--json", "--since", "x"],
        ["show", "--json"],
        ["dead-letters", "lst", "--json"],
        ["--json"],
        ["--nope", "--json"],
    ],
)
def test_a_usage_error_is_a_document_too_where_json_is_asked_for(words: list[str]) -> None:
    result = call(*words)
    assert result.exit_code == 2
    told = json.loads(result.stdout)
    assert (sorted(told), told["exit_code"]) == (["error", "exit_code"], 2)
    assert told["error"]
    assert "Usage:" in result.stderr


def test_without_json_a_usage_error_leaves_stdout_empty() -> None:
    result = call("show", "--", "--json", "too many")
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["statsu"], "status"),
        (["STATUS"], "status"),
        (["deadletters"], "dead-letters"),
        (["dead-letters", "reque"], "requeue"),
        (["breaker", "rest"], "reset"),
    ],
)
def test_a_misspelt_command_is_answered_with_the_one_that_may_be_meant(words: list[str], meant: str) -> None:
    assert f"Did you mean {meant}" in call(*words).stderr


def test_what_is_like_no_command_gets_no_suggestion() -> None:
    assert "Did you mean" not in call("xyzzy").stderr


def test_options_may_stand_before_the_command(tmp_path: Path) -> None:
    result = call("--json", "status", storage=tmp_path)
    assert (result.exit_code, json.loads(result.stdout)["healthy"]) == (0, True)
    result = call("--json", "--channel", "en", "status", storage=tmp_path)
    assert result.exit_code == 78
    assert "CHANNELS" in json.loads(result.stdout)["error"]


def test_the_status_of_one_channel_names_it_as_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"CHANNELS": ["en", "ru"], "STORAGE": {"url": f"file:{tmp_path}/bucket"}}))
    result = CliRunner().invoke(main, ["status", "--channel", "ru"], env={"RETAKE_CONFIG": str(file)})
    assert result.stdout.startswith("ru: no generation is under way\n")


@pytest.mark.parametrize("words", [["--channel", "en", "web"], ["--json", "web"]])
def test_what_the_dashboard_has_no_use_for_is_refused(words: list[str]) -> None:
    result = call(*words)
    assert (result.exit_code, "web serves all channels, and has no --json" in result.stderr) == (2, True)


@pytest.mark.parametrize("group", ["dead-letters", "breaker", "alerts", "mode", "music", "images", "robots"])
def test_the_help_of_a_group_cuts_no_sentence(group: str) -> None:
    listed = call(group, "--help").output.partition("Commands:")[2]
    assert listed
    assert "..." not in listed
    assert max(map(len, listed.splitlines())) <= 80


def test_the_version_is_reported() -> None:
    assert call("--version").output == f"retake {__version__}\n"


def test_runs_on_nothing_say_what_to_do(tmp_path: Path) -> None:
    result = call("runs", storage=tmp_path)
    assert (result.exit_code, "make run" in result.stdout) == (0, True)
    assert json.loads(call("runs", "--json", storage=tmp_path).stdout) == {"runs": [], "unreadable": []}


@pytest.mark.parametrize(
    "words",
    [
        ["--channel", "", "status"],
        ["cancel", "x", "--channel", " "],
        ["runs", "--pipeline", ""],
        ["runs", "--error", ""],
        ["kpi", "--plot", ""],
        ["kpi", "--prometheus", ""],
        ["breaker", "show", ""],
        ["alerts", "test", ""],
        ["tick", "--channel", ""],
    ],
)
def test_an_empty_value_is_not_taken_for_none(words: list[str], tmp_path: Path) -> None:
    result = call(*words, storage=tmp_path)
    assert (result.exit_code, "it is empty" in result.stderr) == (2, True)


def test_a_picture_of_figures_is_named_as_what_it_is(tmp_path: Path) -> None:
    for name in ("week.jpg", "week.png.svg"):
        result = call("kpi", "--plot", str(tmp_path / name), storage=tmp_path)
        assert (result.exit_code, "FILE.png" in result.stderr) == (2, True)
    for name in ("week.png", "WEEK.PNG", "week"):
        call("kpi", "--plot", str(tmp_path / name), storage=tmp_path)
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("words", [["status", "--watch"], ["tick", "--until-done", "--interval"]])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_what_is_not_a_number_of_seconds_is_refused(words: list[str], value: str, tmp_path: Path) -> None:
    result = call(*words, value, storage=tmp_path)
    assert (result.exit_code, result.stdout) == (2, "")


# --- status --watch ---------------------------------------------------------------------------------------------------


def test_a_watch_looks_again_after_each_pause() -> None:
    clock, looks = FakeClock(), []
    began = clock.now()
    codes = iter([0, 69, 75, 0])

    def look() -> int:
        looks.append((clock.now() - began).total_seconds())
        return next(codes)

    assert repeated(look, 5, clock=clock, times=4) == 0
    assert looks == [0, 5, 10, 15]


@pytest.mark.parametrize("final", [70, 78, 130])
def test_a_watch_ends_with_what_does_not_pass(final: int) -> None:
    codes = iter([0, final, 0])
    assert repeated(lambda: next(codes), 5, clock=FakeClock()) == final


def test_ctrl_c_in_a_pause_ends_a_watch_with_130() -> None:
    class Impatient(FakeClock):
        def sleep(self, seconds: float) -> None:
            raise KeyboardInterrupt

    assert repeated(lambda: 0, 5, clock=Impatient()) == 130


def environ(bucket: Path) -> dict[str, str]:
    return {**os.environ, "RETAKE_STORAGE_URL": f"file:{bucket}", "NO_COLOR": "1", "TERM": "xterm"}


@pytest.mark.parametrize("as_json", [False, True])
def test_in_a_pipe_looks_follow_one_another_until_ctrl_c(tmp_path: Path, as_json: bool) -> None:
    words = ["status", "--watch", "0.1", *(["--json"] if as_json else [])]
    lines: list[str] = []
    with subprocess.Popen(
        command_line(*words), cwd=CHECKOUT, env=environ(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            while sum(("next tick" in line) or ('"healthy": true' in line) for line in lines) < 2:
                lines.append(process.stdout.readline().decode())
                assert lines[-1], process.communicate()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, b"")
    assert not any("\x1b" in line for line in lines)
    if as_json:
        assert all(json.loads(line)["healthy"] for line in lines), "one document per line"
    else:
        assert any(re.match(r"looked at 20.*, again every 0.1 s; Ctrl-C ends it", line) for line in lines)


def test_a_watch_that_cannot_work_ends_at_once(tmp_path: Path) -> None:
    environment = {**environ(tmp_path), "RETAKE_CONFIG": str(tmp_path / "none.json")}
    code, text = in_terminal("status", "--watch", "60", env=environment)
    assert (code, "no such settings file" in text) == (78, True)
