"""A command for several ids at once: each is done as if it had been named alone, and its result told."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from logging import getLogger
from typing import Any, NamedTuple

import click

from retake.console.answer import Answer, Block, Heading, Line, Tone
from retake.console.command_context import CONTEXT, CommandContext, answered
from retake.console.group import AS_JSON, CHANNEL
from retake.errors import RetakeError

_GRAVITY = (0, 65, 69, 75, 78, 70, 130)
"""Exit codes, the gravest last."""


class Item(NamedTuple):
    """One thing to be done: which id, in which of the CHANNELS."""

    name: str
    channel: str | None


def command_for_each(
    name: str, argument: str, metavar: str, all_of: Callable[[CommandContext], Iterable[Item]] | None = None
) -> Callable[[Callable[..., Answer]], click.Command]:
    """Make a command of a function that takes a CommandContext, one id as `argument`, and its own options. The command
    takes one id or more; with `all_of`, also --all. One id is answered as such, several with a result each and the gravest of
    their exit codes."""

    def decorate(work: Callable[..., Answer]) -> click.Command:
        @wraps(work)
        def run(as_json: bool, channel: str | None, **options: Any) -> None:
            context = click.get_current_context()
            as_json = as_json or bool(context.meta.get(AS_JSON))
            channel = channel or context.meta.get(CHANNEL)
            names: tuple[str, ...] = options.pop(argument)
            every = bool(options.pop("every", False))
            if bool(names) == every:
                raise click.UsageError(f"Name {metavar}{', or say --all' if all_of else ''}." if not every else
                                       f"Name {metavar} or say --all, not both.")  # fmt: skip

            def answer() -> Answer:
                desk = CommandContext(dict(os.environ), channel=channel)
                if not every and len(names) == 1:
                    return work(desk, **{argument: names[0]}, **options)
                items = [*all_of(desk)] if every and all_of else [Item(it, channel) for it in dict.fromkeys(names)]
                return each(items, lambda it: work(_desk_for(desk, it), **{argument: it.name}, **options))

            sys.exit(answered(answer, as_json=as_json))

        own = list(getattr(run, "__click_params__", []))
        run.__click_params__ = []  # type: ignore[attr-defined]
        options = [
            click.option("--json", "as_json", is_flag=True, help="Answer with one JSON document."),
            click.option("--channel", metavar="NAME", help="Only this one of the CHANNELS."),
            click.argument(argument, metavar=f"{metavar}...", nargs=-1),
        ]
        if all_of:
            options.append(click.option("--all", "every", is_flag=True, help="All that there are, the oldest first."))
        for option in options:
            option(run)
        run.__click_params__ += own  # type: ignore[attr-defined]
        return click.command(name, context_settings=CONTEXT)(run)

    return decorate


def each(items: Sequence[Item], work: Callable[[Item], Answer]) -> Answer:
    """Do each; the results of all. What goes wrong with one is told, and the next is done. After Ctrl-C the rest is
    told as not done."""
    results: list[Mapping[str, Any]] = []
    blocks: list[Block] = []
    code, stopped = 0, False
    for item in items:
        try:
            answer = _not_done() if stopped else work(item)
        except RetakeError as error:
            answer = _failed(str(error), error.exit_code)
        except KeyboardInterrupt:
            answer, stopped = _failed("interrupted by Ctrl-C; `status` says how it stands", 130), True
        except Exception:
            getLogger("retake.console").exception("%s: this is a bug in Retake; nothing is lost", item.name)
            answer = _failed("a bug in Retake; the traceback is in the log", 70)
        shown = f"{item.channel}: {item.name}" if item.channel else item.name
        results.append({"id": item.name, "channel": item.channel, "exit_code": answer.exit_code, **answer.document})
        blocks += [Heading(shown), *answer.blocks]
        code = max(code, answer.exit_code, key=lambda it: _GRAVITY.index(it) if it in _GRAVITY else len(_GRAVITY))
    done = sum(result["exit_code"] == 0 for result in results)
    blocks.append(Heading(f"{done} of {len(results)} done." if results else "There is nothing to be done."))
    return Answer({"results": results, "done": done, "exit_code": code}, blocks, code)


def _failed(message: str, exit_code: int) -> Answer:
    return Answer({"error": message, "exit_code": exit_code}, [Line(f"error: {message}", Tone.BAD)], exit_code)


def _not_done() -> Answer:
    return _failed("not done: interrupted before it", 130)


def _desk_for(desk: CommandContext, item: Item) -> CommandContext:
    return desk if item.channel == desk.channel else CommandContext(desk.environ, channel=item.channel)
