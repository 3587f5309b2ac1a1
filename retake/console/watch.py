"""`--watch SECONDS`: repeat a command until Ctrl-C.

On a terminal each answer replaces the one before; in a pipe they follow each other, with --json one document per line.
A temporary error (an unreachable bucket) is shown and the command repeated; a lasting one (wrong settings, a bug) ends
it.
"""

import os
from collections.abc import Callable
from typing import Any, TextIO

import click

from retake.clock import Clock, SystemClock
from retake.exit_codes import ExitCode
from retake.option_values import Seconds

_FINAL = (ExitCode.BUG, ExitCode.CONFIG, ExitCode.INTERRUPTED)
_META_KEY = "retake.watch"
_CLEAR_SCREEN = "\x1b[H\x1b[2J\x1b[3J"


def _keep(ctx: click.Context, _: click.Parameter, value: float | None) -> None:
    ctx.meta[_META_KEY] = value


option: Callable[[Any], Any] = click.option(
    "--watch",
    type=Seconds(min=0.1, max=86_400),
    metavar="SECONDS",
    callback=_keep,
    expose_value=False,
    help="Look again every SECONDS seconds, until Ctrl-C.",
)
"""The option of a command that only reads."""


def seconds(ctx: click.Context) -> float | None:
    """Return the seconds between two looks, or None to look once."""
    value: float | None = ctx.meta.get(_META_KEY)
    return value


def repeated(look: Callable[[], int], every_s: float, *, clock: Clock | None = None, times: int | None = None) -> int:
    """Call `look`, which shows an answer and returns its exit code, every `every_s` seconds, `times` times or until
    Ctrl-C. Return the last exit code, or 130 after Ctrl-C."""
    clock, code = clock or SystemClock(), 0
    try:
        while True:
            code = look()
            times = None if times is None else times - 1
            if code in _FINAL or times == 0:
                return code
            clock.sleep(every_s)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def make_room(stream: TextIO, *, first: bool) -> None:
    """Clear a terminal before the next answer; elsewhere, write an empty line between answers."""
    if not stream.isatty():
        stream.write("" if first else "\n")
    elif os.environ.get("TERM", "dumb") != "dumb":
        stream.write(_CLEAR_SCREEN)
