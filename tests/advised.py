"""Find and run the `retake` commands that messages and documents tell the reader to type.

commands_in("no attempt is left; retake music resolve 7 VIDEO_ID, or 7 --again")
    → ["music", "resolve", "7", "VIDEO_ID"], ["music", "resolve", "7", "--again"]
"""

import re
from collections.abc import Iterator
from typing import Any

import click

from retake.console.command import main
from retake.console.command_context import CommandContext

_BEGINNING = re.compile(r"\bretake (?=[a-z])")
_ARGUMENT = re.compile(r"[A-Z_]{2,}|N|[\w-]*\d[\w-]*|NR\.NSI\.\d")
"""Words that can only be arguments: placeholders and ids."""


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield the words of each command in a text, without `retake`.

    Prose after a command ends it, unless the text is itself a command line. An alternative ("or 7 --again") takes its
    names from the command before it.
    """
    if text.startswith("python -m retake ") and ", or " not in text:
        yield text.split()[3:]
        return
    for found in _BEGINNING.finditer(text):
        first, *others = text[found.end() :].split(", or ")
        words = _words(main, first)
        yield words
        names = [word for word in words if not _ARGUMENT.fullmatch(word) and not word.startswith("-")]
        for other in others:
            if _ARGUMENT.match(other):
                yield [*names, *_words(_command(names), other)]
            elif main.get_command(click.Context(main), other.partition(" ")[0]):
                yield _words(main, other)


def parsed(words: list[str]) -> tuple[click.Command, dict[str, Any]]:
    """Return the command and its parameters. Raises click.UsageError if the command does not accept the words."""
    command: click.Command = main
    rest = words
    while isinstance(command, click.Group) and rest:
        name, *rest = rest
        if name.startswith("-"):
            option = _option(command, name)
            if option is None:
                raise click.NoSuchOption(name)
            rest = rest if option.is_flag else rest[1:]
            continue
        found = command.get_command(click.Context(command), name)
        if found is None:
            raise click.UsageError(f"No such command {name!r}.")
        command = found
    if isinstance(command, click.Group):
        return command, {}
    with command.make_context(command.name, [it for it in rest if it != "--help"]) as context:
        return command, context.params


def take(words: list[str], context: CommandContext) -> None:
    """Carry out a command; its errors are passed on."""
    command, parameters = parsed(words)
    work: Any = command.callback
    given = {name: value for name, value in parameters.items() if name not in ("as_json", "channel")}
    work.__wrapped__(context, **(given | ({"yes": True} if "yes" in given else {})))


def _words(command: click.Command, text: str) -> list[str]:
    words: list[str] = []
    tokens = iter(text.split())
    for token in tokens:
        word = token.rstrip(".,;:)`")
        if isinstance(command, click.Group) and not word.startswith("-"):
            found = command.get_command(click.Context(command), word)
            words.append(word)
            if found is None:  # reported by `parsed`
                break
            command = found
        elif word.startswith("--"):
            words.append(word)
            option = _option(command, word)
            if option and not option.is_flag:
                words.append(next(tokens, "").rstrip(".,;:)`"))
        elif _ARGUMENT.fullmatch(word):
            words.append(word)
        else:
            break
        if word != token:
            break
    return words


def _option(command: click.Command, name: str) -> click.Option | None:
    # Not `get_params`: the command would cache the help option of this context and lose -h for good.
    options = (it for it in command.params if isinstance(it, click.Option))
    return next((it for it in options if name in it.opts), None)


def _command(names: list[str]) -> click.Command:
    command: click.Command = main
    for name in names:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found
        command = found
    return command
