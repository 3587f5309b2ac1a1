"""The commands that show, in worlds in which several things are unusual at once: none of them ends as a bug.

RETAKE_SEED=N makes other worlds.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from mixed_worlds import ID, MIXTURES, Mixture, mixed, named
from rich.cells import cell_len
from schemas import check_answer, commands, named_in

from retake.console import doctor
from retake.console.answer import Answer
from retake.console.command_context import CommandContext
from retake.console.invocation import execute
from retake.exit_codes import ExitCode
from retake.operations.finding import ok

WIDTH = 80
COMMANDS = commands()
LINES = (
    *("status", "runs", "runs --status failed --limit 1", "errors", "spend", "spend --days 3650", "kpi", "check"),
    *("doctor --offline", "dead-letters list", "alerts list --all", "mode show", "breaker show", "music list"),
)

OF_RECORDS = ("show", "report", "errors")
"""Their documents have records of errors as they were found, which other programs may have written."""

RAW = ("dead-letters show", "check")
"""Their texts have some of it as it was found, and some in lines of any length."""

NO_TEXT = re.compile(r"\b(None(?! of them|:)|nan|inf|Traceback)\b")
"""What no text says; it would be a value that nobody expected."""


class Terminal(StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("mixture", MIXTURES, ids=map(str, range(len(MIXTURES))))
def test_whatever_comes_together_each_command_answers(
    mixture: Mixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(doctor, "ffmpeg_check", lambda settings: ok("ffmpeg", "takes longer than all the others"))
    context, lines = mixed(mixture, tmp_path), [*LINES, f"show {ID}", f"report {ID}"]
    for line in lines:  # to which those about what is listed are added
        name, work = named_in(line.split()), of(line, context)
        told = f"{line} of {named(mixture)}"
        code, written = shown(work, as_json=True)
        document = json.loads(written)
        assert code != ExitCode.BUG, f"{told}: {capsys.readouterr().err}"
        if name not in OF_RECORDS or "foreign" not in mixture.values():
            check_answer(name, document)
        assert shown(work, as_json=False, at=told, raw=name in RAW)[0] == code, told
        lines += about(line, document)
    capsys.readouterr()


def of(line: str, context: CommandContext) -> Callable[[], Answer]:
    """Return what calls the command of a line, once for the answer that it has."""
    name = named_in(line.split())
    command, words, answers = COMMANDS[name], line.split()[len(name.split()) :], list[Answer]()
    options = command.make_context(name, words).params
    work: Any = command.callback

    def once() -> Answer:
        if not answers:
            given = {option: value for option, value in options.items() if option not in ("as_json", "channel")}
            answers.append(work.__wrapped__(context, **given))
        return answers[0]

    return once


def shown(work: Callable[[], Answer], *, as_json: bool, at: str = "", raw: bool = False) -> tuple[int, str]:
    """Return the exit code, and what is written on a terminal: printable characters alone, in lines that fit."""
    with redirect_stdout(Terminal()) as written:
        code = execute(work, as_json=as_json)
    text = written.getvalue()
    assert text.replace("\n", "").isprintable(), at
    if not (as_json or raw):
        assert not NO_TEXT.search(text), f"{at}: {text}"
        assert [line for line in text.splitlines() if cell_len(line) > WIDTH] == [], at
    return code, text


def about(line: str, document: Any) -> Iterator[str]:
    """Yield the commands about some of what a list has."""
    for listing, key, ids, commands_of in (
        ("runs", "runs", ("run_id",), ("show", "report")),
        ("dead-letters list", "dead_letters", ("channel", "id"), ("dead-letters show",)),
        ("alerts list --all", "alerts", ("id",), ("alerts show",)),
        ("music list", "pipelines", ("id",), ("music show",)),
    ):
        found = document.get(key, []) if line == listing else []
        for it in found[:: max(1, len(found) // 3)]:
            name = "/".join(str(it[part]) for part in ids if it[part])
            yield from (f"{command} {name}" for command in commands_of)
