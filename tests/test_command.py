"""The command `retake`: what it passes to which program, and how little a tick loads."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from retake.story.command import script_command

ROOT = Path(__file__).parent.parent
SCRIPTS = {
    "tick": "b2_storage_manager.py",
    "content": "generate_content.py",
    "media": "generate_media.py",
    "fetch": "fetch_media.py",
}


def run(*words: str | Path, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    kept: Mapping[str, str] = {name: value for name, value in os.environ.items() if not name.startswith("RETAKE_")}
    env = {**kept, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run([sys.executable, *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_command_has_the_options_of_its_script(name: str) -> None:
    of_command, of_script = run("-m", "retake", name, "--help"), run(SCRIPTS[name], "--help")
    assert of_command.stdout.partition("\n")[0] == f"Usage: python -m retake {name} [OPTIONS]"
    assert of_command.stdout.partition("\n")[2] == of_script.stdout.partition("\n")[2]
    assert (of_command.returncode, of_script.returncode) == (0, 0)


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("arguments", [["--nope"], ["--generation_id", "20260101-0000"], []])
def test_a_command_ends_as_its_script_does(tmp_path: Path, name: str, arguments: list[str]) -> None:
    """Without settings, the exit code is 78 for correct options and 2 for wrong ones."""
    command, script = (
        run("-m", "retake", name, *arguments, cwd=tmp_path),
        run(ROOT / SCRIPTS[name], *arguments, cwd=tmp_path),
    )
    assert command.returncode == script.returncode
    assert command.returncode in (2, 78)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("option", [["--json"], ["--channel", "en"]])
def test_options_before_the_name_are_not_lost_in_silence(name: str, option: list[str]) -> None:
    ran = run("-m", "retake", *option, name)
    assert ran.returncode == 2
    assert f"the options of {name} go after its name" in ran.stderr


def test_a_tick_of_a_checkout_runs_the_scripts_beside_the_package() -> None:
    for script in ("generate_content", "generate_media", "fetch_media"):
        assert script_command(None, script) == [sys.executable, str(ROOT / f"{script}.py")]
        assert script_command("/srv", script) == [sys.executable, f"/srv/{script}.py"]


def test_a_tick_of_an_installed_package_runs_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retake.data.checkout", lambda: None)
    commands = {SCRIPTS[name].removesuffix(".py"): name for name in ("content", "media", "fetch")}
    for script, name in commands.items():
        assert script_command(None, script) == [sys.executable, "-P", "-m", "retake", name]


def test_a_tick_without_options_loads_nothing_of_the_console(tmp_path: Path) -> None:
    ticked = run("-X", "importtime", "-m", "retake", "tick", cwd=tmp_path)
    loaded = set(re.findall(r"^import time:.*\| +(\S+)$", ticked.stderr, flags=re.MULTILINE))
    assert ticked.returncode == 78
    assert "retake.story.command" in loaded
    heavy = ("click", "rich", "requests", "PIL", "retake.console", "retake.sandbox", "retake.data")
    heavy += ("aio_pika", "aiormq", "asyncio", "dotenv", "fastapi", "redis", "retake.rabbit", "retake.serving")
    heavy += ("ast", "base64", "dataclasses", "inspect", "pythonjsonlogger", "uuid")
    assert [name for name in loaded if name.startswith(heavy) and name not in of_logging()] == []


def of_logging() -> set[str]:
    """Return the modules that Python's own logging loads; from 3.14 on these include dataclasses and inspect."""
    return set(run("-c", "import logging, sys; print(*sys.modules)").stdout.split())


def test_a_tick_compiles_no_annotation() -> None:
    """`NamedTuple` compiles annotations written as text, and the first one costs as much as ten such classes."""
    code = (
        "import sys; sys.addaudithook(lambda event, of: event == 'compile' and of[1] == '<string>' and print(of[0]));"
    )
    compiled = run("-c", f"{code} import retake.story.command").stdout.splitlines()
    assert compiled
    ours = [it for it in compiled if not ("dataclasses" in of_logging() and "__dataclass_" in it)]
    assert [it for it in ours if not it.startswith("b'lambda _cls, ")] == []


@pytest.mark.parametrize("command", ["robots list", "robots list --json", "--help", "tick --help"])
def test_a_closed_stdout_takes_nothing_and_a_full_one_is_reported(command: str) -> None:
    began = [sys.executable, "-m", "retake", *command.split()]
    closed = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *began], cwd=ROOT, stderr=subprocess.PIPE, timeout=60, check=False
    )
    assert (closed.returncode, closed.stderr) == (0, b"")
    with open("/dev/full", "wb") as disk:
        full = subprocess.run(began, cwd=ROOT, stdout=disk, stderr=subprocess.PIPE, timeout=60, check=False)
    assert full.returncode == 75
    assert full.stderr.endswith(b" could not be written: No space left on device\n")
    assert full.stderr.count(b"\n") == 1


def test_a_script_in_a_fork_of_the_installed_command_warns_of_nothing() -> None:
    """The installed `retake` has loaded `retake.__main__`, which the fork runs again."""
    code = "import retake.__main__; from retake.story.command import _installed_script as it; it('fetch', ['--help'])"
    done = run("-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ")


def test_an_error_that_cannot_be_told_keeps_its_exit_code(tmp_path: Path) -> None:
    nowhere = {**os.environ, "RETAKE_CONFIG": str(tmp_path / "none.json")}
    began = [sys.executable, "-m", "retake", "status"]
    with open("/dev/full", "wb") as disk:
        full = subprocess.run(began, cwd=ROOT, env=nowhere, stderr=disk, timeout=60, check=False)
    assert full.returncode == 78
