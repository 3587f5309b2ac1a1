"""Commands for several ids: each is handled as if it were the only one, and has its own result."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from retake.console.answer import Answer, Block, Heading, Sentence, Tone
from retake.console.command_context import CommandContext
from retake.console.invocation import command_of, execute
from retake.operations import several
from retake.operations.several import Item

__all__ = ["Item", "command_for_each", "each"]


def command_for_each(
    name: str, argument: str, metavar: str, all_of: Callable[[CommandContext], Iterable[Item]] | None = None
) -> Callable[[Callable[..., Answer]], click.Command]:
    """Make a command from a function that takes a CommandContext, one id as `argument`, and its options.

    The command takes one or more ids; with `all_of`, also --all. The answer for one id is that of the function; for
    several it has a result for each, and the most severe of their exit codes.
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

            return execute(answer, as_json=as_json)

        more = [click.argument(argument, metavar=f"{metavar}...", nargs=-1)]
        if all_of:
            more.append(click.option("--all", "every", is_flag=True, help="All of them, the oldest first."))
        return command_of(name, work, run, *more)

    return decorate


def each(items: Sequence[Item], work: Callable[[Item], Answer]) -> Answer:
    """Call `work` for each item, and return all results. An error affects only its item. After Ctrl-C the remaining
    items are not done."""
    answers = several.each(items, work, _failed)
    document = several.several_document(items, answers)
    blocks: list[Block] = []
    for item, answer in zip(items, answers, strict=True):
        blocks += [Heading(f"{item.channel}: {item.name}" if item.channel else item.name), *answer.blocks]
    blocks.append(Heading(f"{document['done']} of {len(items)} done." if items else "There is nothing to do."))
    return Answer(document, blocks, document["exit_code"])


def _failed(message: str, exit_code: int) -> Answer:
    return Answer({"error": message, "exit_code": exit_code}, [Sentence(f"error: {message}", Tone.BAD)], exit_code)


def _context_for(context: CommandContext, item: Item) -> CommandContext:
    return context if item.channel == context.channel else CommandContext(context.environ, channel=item.channel)
