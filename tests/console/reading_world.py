"""Shared by the tests of the reading commands: a world, a context for commands, and the display of answers.

world = World()
world.ticks(8)
answer = ask(status, world)
assert "free" in shown(answer)
"""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import click
from schemas import check_answer, name_of, named_in
from story_world import KEYS, Heard, World

from retake.bucket import Bucket
from retake.console.answer import Answer
from retake.console.command_context import CommandContext
from retake.console.rendering import show

__all__ = ["CHECKOUT", "KEYS", "Heard", "World", "ask", "clear", "context_of", "in_terminal", "run_console", "shown"]

CHECKOUT = Path(__file__).parent.parent.parent


def context_of(world: World, bucket: Bucket | None = None, channel: str | None = None) -> CommandContext:
    return CommandContext(
        {}, channel=channel, clock=world.clock, bucket=bucket or world.bucket, settings=world.settings, keys=KEYS
    )


def ask(command: click.Command, context: CommandContext | World, **options: Any) -> Answer:
    """Return the command's answer, whose document is ready for JSON; its errors are raised."""
    work: Any = command.callback
    answer: Answer = work.__wrapped__(
        context if isinstance(context, CommandContext) else context_of(context), **options
    )
    check_answer(name_of(command), json.loads(json.dumps(answer.document)))
    return answer


def shown(answer: Answer) -> str:
    """Return the answer as shown in a pipe."""
    stream = StringIO()
    show(answer, stream, as_json=False)
    return stream.getvalue()


def clear(world: World) -> None:
    """Remove everything that is ready, as if the publisher had taken it."""
    for folder in ("444/", "555/", "666/"):
        for key in world.keys_of(folder):
            world.bucket.delete(key)


def finish(world: World, *plans: tuple[str, str]) -> None:
    """Let the vendors answer as planned, and tick until a generation has ended and is taken."""
    for kind, outcome in plans:
        world.vendors.plan(kind, outcome)
    ended = len(world.ended)
    while len(world.ended) == ended:
        world.tick()
    clear(world)


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "retake", *arguments]


def run_console(
    *arguments: str, env: Mapping[str, str], cwd: Path = CHECKOUT, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run `python -m retake …` in a process of its own, with its output in pipes."""
    done = subprocess.run(command_line(*arguments), env=dict(env), cwd=cwd, capture_output=True, timeout=120, **options)
    if "--json" in arguments and done.stdout and "encoding" not in options:
        check_answer(named_in(arguments), json.loads(done.stdout))
    return done


def in_terminal(*arguments: str, env: Mapping[str, str], width: int = 80) -> tuple[int, str]:
    """Run it on a terminal of that width; return the exit code and all output."""
    ours, theirs = pty.openpty()
    sized = {**env, "COLUMNS": str(width), "LINES": "40"}
    process = subprocess.Popen(
        command_line(*arguments), env=sized, cwd=CHECKOUT, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    parts: Sequence[bytes] = _read(ours)
    os.close(ours)
    return process.wait(), b"".join(parts).decode()


def _read(terminal: int) -> list[bytes]:
    parts = []
    with suppress(OSError):  # EIO: the other side is closed
        while select.select([terminal], [], [], 60)[0]:
            part = os.read(terminal, 65536)
            if not part:
                break
            parts.append(part)
    return parts
