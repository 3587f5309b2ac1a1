"""Ctrl-C at any moment before a paid call can be under way ends cleanly with 130."""

import signal
import socket
import subprocess
import sys

import pytest
from cron_machine import CHECKOUT, MANAGER, Machine
from s3_server import KEYS

COMMANDS = [
    [MANAGER],
    [MANAGER, "--dry-run"],
    ["generate_content.py", "--help"],
    ["generate_media.py", "--generation_id", "20260101-0930"],
    ["fetch_media.py"],
    ["-m", "retake", "status"],
]

INTERRUPTED = """
import runpy, sys
module, sys.argv = sys.argv[1], sys.argv[2:]

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
sys.path.insert(0, ".")
if sys.argv[0] == "-m":
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A program that runs a command, and presses Ctrl-C when it imports a certain module."""


@pytest.mark.parametrize("module", ["retake.settings", "retake.errors", "retake.bucket.directory"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_ctrl_c_while_a_command_loads_is_a_clean_130(machine: Machine, command: list[str], module: str) -> None:
    if "--help" in command and module != "retake.errors":
        pytest.skip("help loads no bucket")
    interrupted_at(machine, command, module)


@pytest.mark.parametrize("module", ["retake.console.status", "retake.console.layout", "retake.operations.status"])
def test_ctrl_c_while_the_console_looks_for_its_command_is_a_clean_130(machine: Machine, module: str) -> None:
    interrupted_at(machine, ["-m", "retake", "status"], module)


@pytest.mark.parametrize(
    ("command", "module"),
    [
        (["-m", "retake.music.demo"], "sqlalchemy"),
        (["-m", "retake.music.demo"], "retake.logs"),
        (["-m", "retake.sandbox"], "retake.sandbox.sandbox"),
        (["-m", "retake.sandbox"], "click"),
        (["-m", "retake.sandbox", "comfyui"], "retake.sandbox.comfyui_orders"),
    ],
)
def test_ctrl_c_while_a_demo_or_a_sandbox_loads_is_a_clean_130(
    machine: Machine, command: list[str], module: str
) -> None:
    interrupted_at(machine, command, module)


def interrupted_at(machine: Machine, command: list[str], module: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module, *command],
        cwd=CHECKOUT,
        env=machine.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 130, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Aborted" not in ended.stderr


def test_ctrl_c_while_something_is_waited_for_is_a_clean_130(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a bucket that does not answer
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        machine.env |= {**KEYS, "RETAKE_STORAGE_URL": f"s3://films/retake?endpoint={endpoint}&region=eu"}
        manager = machine.start(MANAGER)
        with silent.accept()[0]:
            manager.send_signal(signal.SIGINT)
    run = machine.finish(manager)
    assert run.exit_code == 130
    assert run.said("interrupted")
