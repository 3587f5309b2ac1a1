"""A group of commands: what all of them share, whatever is called and however it is misspelt."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from retake.console.answer import Answer
from retake.console.rendering import show

AS_JSON = "retake.json"
CHANNEL = "retake.channel"
"""What options before the command's name are kept as, in the context's `meta`, which its commands see."""

_MAX_HELP_LENGTH = 1000
"""Characters that no sentence of help has."""


class CommandGroup(click.Group):
    """Commands by name. A name that is misspelt is answered with those that are like it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            ctx.fail(f"No such command {name!r}.{_suggestion(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each with its whole first sentence, which click would cut at the edge of the terminal."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, it.get_short_help_str(limit=_MAX_HELP_LENGTH)) for name, it in commands if it])


class RootGroup(CommandGroup):
    """The outermost group: a usage error is told in JSON too, where that was asked for."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        asked = _asks_for_json(args)
        with usage_errors(as_json=asked):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta["retake.usage_in_json"] = asked
        return context

    def invoke(self, ctx: click.Context) -> Any:
        with usage_errors(as_json=bool(ctx.meta.get("retake.usage_in_json"))):
            return super().invoke(ctx)


@contextmanager
def usage_errors(*, as_json: bool) -> Iterator[None]:
    """Answer a usage error with {"error", "exit_code"} on stdout too, where JSON was asked for."""
    try:
        yield
    except click.UsageError as error:
        if as_json:
            document = {"error": error.format_message(), "exit_code": error.exit_code}
            show(Answer(document, [], error.exit_code), sys.stdout, as_json=True)
        raise


def _asks_for_json(args: Sequence[str]) -> bool:
    """Whether JSON is asked for, on a command line that may be invalid otherwise."""
    return "--json" in (args[: args.index("--")] if "--" in args else args)


def _suggestion(name: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    found = get_close_matches(name.lower(), known, n=3, cutoff=0.6) or [it for it in known if it.startswith(name)]
    return f" Did you mean {' or '.join(found)}?" if found else ""
