"""A command for several ids: each is handled as if it had been named alone, and has its own result."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import getLogger
from typing import Any, NamedTuple

import click

from retake.console.answer import Answer, Block, Heading, Sentence, Tone
from retake.console.command_context import CommandContext
from retake.console.invocation import answered, command_of
from retake.errors import RetakeError
from retake.exit_codes import ExitCode, most_severe

_BY_SEVERITY = (
    ExitCode.INTERRUPTED,
    ExitCode.BUG,
    ExitCode.CONFIG,
    ExitCode.TRY_LATER,
    ExitCode.FAILED,
    ExitCode.BAD_STATE,
    ExitCode.OK,
)
"""Of several results; a refusal weighs least, since nothing was changed."""


class Item(NamedTuple):
    """One thing to be done: which id, in which of the CHANNELS."""

    name: str
    channel: str | None


def command_for_each(
    name: str, argument: str, metavar: str, all_of: Callable[[CommandContext], Iterable[Item]] | None = None
) -> Callable[[Callable[..., Answer]], click.Command]:
    """Make a command of a function that takes a CommandContext, one id as `argument`, and its own options.

    The command takes one id or more; with `all_of`, also --all. One id is answered as by any command, several with a
    result each and the most severe of their exit codes.
    """

    def decorate(work: Callable[..., Answer]) -> click.Command:
        def run(as_json: bool, channel: str | None, **options: Any) -> int:
            names: tuple[str, ...] = options.pop(argument)
            every = bool(options.pop("every", False))
            if bool(names) == every:
                raise click.UsageError(f"Name {metavar} or say --all, not both." if every else
                                       f"Name {metavar}{', or say --all' if all_of else ''}.")  # fmt: skip

            def answer() -> Answer:
                context = CommandContext(dict(os.environ), channel=channel)
                if not every and len(names) == 1:
                    return work(context, **{argument: names[0]}, **options)
                items = [*all_of(context)] if every and all_of else [Item(it, channel) for it in dict.fromkeys(names)]
                return each(items, lambda it: work(_context_for(context, it), **{argument: it.name}, **options))

            return answered(answer, as_json=as_json)

        more = [click.argument(argument, metavar=f"{metavar}...", nargs=-1)]
        if all_of:
            more.append(click.option("--all", "every", is_flag=True, help="All that there are, the oldest first."))
        return command_of(name, work, run, *more)

    return decorate


def each(items: Sequence[Item], work: Callable[[Item], Answer]) -> Answer:
    """Do each, and return the results of all. An error ends one item only. After Ctrl-C the rest is not done."""
    results: list[Mapping[str, Any]] = []
    blocks: list[Block] = []
    stopped = False
    for item in items:
        try:
            answer = _failed("not done: interrupted before it", ExitCode.INTERRUPTED) if stopped else work(item)
        except RetakeError as error:
            answer = _failed(str(error), error.exit_code)
        except KeyboardInterrupt:
            stopped = True
            answer = _failed("interrupted by Ctrl-C; `status` says how it stands", ExitCode.INTERRUPTED)
        except Exception:
            getLogger("retake.console").exception("%s: this is a bug in Retake; nothing is lost", item.name)
            answer = _failed("a bug in Retake; the traceback is in the log", ExitCode.BUG)
        shown = f"{item.channel}: {item.name}" if item.channel else item.name
        results.append({"id": item.name, "channel": item.channel, "exit_code": answer.exit_code, **answer.document})
        blocks += [Heading(shown), *answer.blocks]
    code = most_severe((result["exit_code"] for result in results), _BY_SEVERITY)
    done = sum(result["exit_code"] == ExitCode.OK for result in results)
    blocks.append(Heading(f"{done} of {len(results)} done." if results else "There is nothing to be done."))
    return Answer({"results": results, "done": done, "exit_code": code}, blocks, code)


def _failed(message: str, exit_code: int) -> Answer:
    return Answer({"error": message, "exit_code": exit_code}, [Sentence(f"error: {message}", Tone.BAD)], exit_code)


def _context_for(context: CommandContext, item: Item) -> CommandContext:
    return context if item.channel == context.channel else CommandContext(context.environ, channel=item.channel)
