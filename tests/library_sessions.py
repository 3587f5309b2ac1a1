"""The console sessions of docs/library.md: their commands, the output on the page, and the real output."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "library.md"
KILLED = "Killed"
"""Ends what the page shows of a program that is killed once it has printed that much."""


class Shown(NamedTuple):
    """A command, and the output that the page shows for it."""

    command: str
    lines: list[str]


def environment(**more: str) -> dict[str, str]:
    """Return the environment for the programs, without proxies and without the settings of the test run's caller."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "TZ": "UTC", **more}


def start(arguments: Sequence[str], folder: Path, **more: str) -> subprocess.Popen[str]:
    """Start a program of examples/ in `folder`, with stdout and stderr piped."""
    program, *options = arguments
    command = [sys.executable, str(ROOT / "examples" / program), *options]
    outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=folder, env=environment(**more), text=True, **outputs)  # type: ignore[call-overload,no-any-return]


def sessions() -> Iterator[list[Shown]]:
    """Yield the console blocks of the page."""
    for block in re.findall(r"^```console\n(.*?)^```", PAGE.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL):
        parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
        yield [Shown(lines[0], lines[1:]) for lines in (part.splitlines() for part in parts)]


def played(session: Sequence[Shown], folder: Path) -> list[Shown]:
    """Run the commands of a session in order; return their output."""
    found, code = [], 0
    for shown in session:
        if shown.command == "echo $?":
            found.append(Shown(shown.command, [str(code)]))
            continue
        python, program, *options = shlex.split(shown.command)
        assert (python, program.partition("/")[0]) == ("python", "examples"), shown.command
        with start([program.partition("/")[2], *options], folder) as process:
            assert process.stdout
            lines = []
            if KILLED in shown.lines:
                lines = [process.stdout.readline().rstrip("\n") for _ in shown.lines[:-1]]
                process.send_signal(signal.SIGKILL)
            lines += process.stdout.read().splitlines()
            code = process.wait(60)
        found.append(Shown(shown.command, [*lines, *([KILLED] if code == -signal.SIGKILL else [])]))
    return found


def timeless(lines: Sequence[str]) -> list[str]:
    """Return the lines without times and process ids."""
    changing = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z|\d+ s ago|\S+:\d+(?= had run-)"
    return [re.sub(changing, "…", line) for line in lines]
