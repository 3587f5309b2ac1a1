"""The base of groups of commands: suggestions for misspelt names, and usage errors as JSON."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from retake.console.answer import Answer
from retake.console.rendering import show
from retake.exit_codes import ExitCode

AS_JSON = "retake.json"
CHANNEL = "retake.channel"
"""The keys in the context's `meta` of the options before the command's name, which the commands read."""

_MAX_HELP_LENGTH = 1000
"""Characters, more than any sentence of help has."""


class CommandGroup(click.Group):
    """A group of commands that answers a misspelt name with similar ones."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            ctx.fail(f"No such command {name!r}.{_suggestion(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with its whole first sentence, which click would truncate."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, it.get_short_help_str(limit=_MAX_HELP_LENGTH)) for name, it in commands if it])


class RootGroup(CommandGroup):
    """The outermost group. It answers usage errors in JSON too if --json was given, and ends with 130 at Ctrl-C (click
    would end with 1)."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        asked = _asks_for_json(args)
        with usage_errors(as_json=asked):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta["retake.usage_in_json"] = asked
        return context

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with usage_errors(as_json=bool(ctx.meta.get("retake.usage_in_json"))):
                return super().invoke(ctx)
        except KeyboardInterrupt:  # while the command is loaded; commands handle it themselves
            sys.exit(ExitCode.INTERRUPTED)
        except click.Abort:  # Ctrl-C, or the end of the input, at a question
            click.echo(err=True)
            sys.exit(ExitCode.INTERRUPTED)


@contextmanager
def usage_errors(*, as_json: bool) -> Iterator[None]:
    """With `as_json`, also write a usage error as {"error", "exit_code"} to stdout."""
    try:
        yield
    except click.UsageError as error:
        if as_json:
            document = {"error": error.format_message(), "exit_code": error.exit_code}
            show(Answer(document, [], error.exit_code), sys.stdout, as_json=True)
        raise


def _asks_for_json(args: Sequence[str]) -> bool:
    """Return whether a command line, which may be invalid, asks for JSON."""
    return "--json" in (args[: args.index("--")] if "--" in args else args)


def _suggestion(name: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    found = get_close_matches(name.lower(), known, n=3, cutoff=0.6) or [it for it in known if it.startswith(name)]
    return f" Did you mean {' or '.join(found)}?" if found else ""
