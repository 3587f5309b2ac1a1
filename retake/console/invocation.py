"""Run a command: from its options to a CommandContext, and from its Answer to output and an exit code."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import wraps
from logging import getLogger
from typing import Any, TextIO

import click

from retake.clock import SystemClock, stamp
from retake.console import watch
from retake.console.answer import Answer, Sentence, Tone
from retake.console.command_context import CommandContext
from retake.console.group import AS_JSON, CHANNEL
from retake.console.rendering import complain, show
from retake.errors import RetakeError, naming_thread_shortage
from retake.exit_codes import ExitCode
from retake.logs import setup_logging
from retake.option_values import not_empty
from retake.output import not_written
from retake.retrying.time_limit import abandoned

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""The click settings of every command."""


def console_command(name: str) -> Callable[[Callable[..., Answer]], click.Command]:
    """Make a command from a function that takes a CommandContext and its options and returns an Answer. The command
    gets the options `--json` and `--channel`."""

    def decorate(work: Callable[..., Answer]) -> click.Command:
        def run(as_json: bool, channel: str | None, **options: Any) -> int:
            every_s = watch.seconds(click.get_current_context())
            if every_s is not None:
                return _watch(lambda context: work(context, **options), channel, every_s, as_json=as_json)
            context = CommandContext(dict(os.environ), channel=channel, as_text=not as_json)
            return execute(lambda: work(context, **options), as_json=as_json)

        return command_of(name, work, run)

    return decorate


def command_of(
    name: str, work: Callable[..., Answer], run: Callable[..., int], *more: Callable[[Any], Any]
) -> click.Command:
    """Make a command that calls `run` and exits with its result. Its help is that of `work`; its options are `--json`,
    `--channel`, `more`, and those that decorate `work`."""

    @wraps(work)
    def invoked(as_json: bool, channel: str | None, **options: Any) -> None:
        meta = click.get_current_context().meta
        sys.exit(run(as_json or bool(meta.get(AS_JSON)), channel or meta.get(CHANNEL), **options))

    own = list(getattr(invoked, "__click_params__", []))
    invoked.__click_params__ = []  # type: ignore[attr-defined]
    for option in (*reversed(more), with_channel, _WITH_JSON):
        option(invoked)
    invoked.__click_params__ += own  # type: ignore[attr-defined]
    return click.command(name, context_settings=CONTEXT)(invoked)


_WITH_JSON = click.option("--json", "as_json", is_flag=True, help="Answer with one JSON document.")
with_channel = click.option(
    "--channel", metavar="NAME", callback=not_empty, help="Only one of CHANNELS or PIPELINES, or music, or story."
)


def _watch(work: Callable[[CommandContext], Answer], channel: str | None, every_s: float, *, as_json: bool) -> int:
    """Answer repeatedly, each time in a new context, because settings may change and connections may be lost."""
    looks, screen = 0, sys.stdout

    def answer() -> Answer:
        nonlocal looks
        found = work(CommandContext(dict(os.environ), channel=channel, as_text=not as_json))
        if not as_json:
            watch.make_room(screen, first=not looks)
        looks += 1
        told = f"looked at {stamp(SystemClock().now())}, again every {every_s:g} s; Ctrl-C ends it"
        return found._replace(blocks=[*found.blocks, Sentence(told, Tone.FAINT)])

    return watch.repeated(lambda: execute(answer, as_json=as_json, indent=None, out=screen), every_s)


def execute(work: Callable[[], Answer], *, as_json: bool, indent: int | None = 2, out: TextIO | None = None) -> int:
    """Call `work`, show its answer, and return the exit code. An error that a person can fix is shown as a sentence,
    never a traceback; in JSON it is the document {"error", "exit_code"}. What `work` prints goes to stderr, since
    `out`, by default stdout, is for the answer: one of the PIPELINES may print. Raises the click.UsageError of `work`.
    """
    setup_logging(sys.stderr, human=True, level="WARNING")
    out = out or sys.stdout
    try:
        with naming_thread_shortage(), _without_prints():
            answer = work()
    except RetakeError as error:
        complain(str(error), sys.stderr)
        answer = Answer({"error": str(error), "exit_code": error.exit_code}, [], error.exit_code)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except click.UsageError:  # click shows it, with the command's usage
        raise
    except Exception:
        getLogger("retake.console").exception("this is a bug in Retake; nothing is lost")
        return ExitCode.BUG
    try:
        show(answer, out, as_json=as_json, indent=indent)
    except BrokenPipeError:  # nobody reads any more; click handles this
        raise
    except OSError as error:
        lost = not_written(error, out)
        complain(str(lost), sys.stderr)
        return lost.exit_code
    return answer.exit_code


@contextmanager
def _without_prints() -> Iterator[None]:
    """Send to stderr what is printed in the block, and also what is printed later if a call was abandoned in it."""
    with ExitStack() as until_the_end:
        until_the_end.enter_context(redirect_stdout(sys.stderr))
        try:
            yield
        finally:
            if abandoned():
                until_the_end.pop_all()
