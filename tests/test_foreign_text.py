"""Foreign text cannot control a terminal, break a line or hide in one, whichever way it is printed."""

import json
import logging
import sys
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.bucket import Entry
from retake.clock import SystemClock
from retake.console import markdown
from retake.console.answer import Answer, Block, Cell, Facts, Heading, Raw, Sentence, Table
from retake.console.rendering import complain, show
from retake.errors import Code, PollFailed
from retake.foreign_text import json_lines, one_line, several_lines
from retake.logs import alert, bind, relay, setup_logging
from retake.story.command import Options, manage
from retake.story.progress import Watch
from retake.story.runner import StoryRunner
from retake.story.settings import Settings
from retake.vendors.answers import quote

SIGNS = [
    *("\x00", "\x07", "\x08", "\x0b", "\x0d", "\x1b", "\x7f", "\u0080", "\u0085", "\u009b", "\u009d", "\u00ad"),
    *("\u061c", "\u180e", "\u200b", "\u200e", "\u200f", "\u2028", "\u2029", "\u202a", "\u202d", "\u202e"),
    *("\u2060", "\u2066", "\u2069", "\ufeff", "\ufff9", "\ud800", "\udfff", "\U000e0041"),
]
HOSTILE = "a cat\x1b]0;pwned\x07" + "".join(f"<{sign}>" for sign in SIGNS) + "\r\x1b[2J[bold]end"
SCRIPTS = "שלום, עולם · مرحبا بالعالم · 猫が歩く · Привет · नमस्ते · 😀 é"
BUCKET = "file:bucket"


def is_harmless(text: str) -> bool:
    return not set(text) & set(SIGNS) - {"\x0a"}


@given(st.text())
def test_what_is_shown_is_printable(text: str) -> None:
    assert one_line(text).isprintable()
    assert all(line.isprintable() for line in several_lines(text).split("\n"))
    assert several_lines(text).count("\n") == text.count("\n")


@given(st.recursive(st.none() | st.integers() | st.text(), lambda it: st.lists(it) | st.dictionaries(st.text(), it)))
def test_json_stays_the_same_value(value: object) -> None:
    for indent in (None, 2):
        text = json_lines(json.dumps(value, ensure_ascii=False, indent=indent))
        assert json.loads(text) == value
        assert all(line.isprintable() for line in text.split("\n"))


def test_every_script_stays_readable() -> None:
    assert one_line(SCRIPTS) == several_lines(SCRIPTS) == json_lines(SCRIPTS) == SCRIPTS


# --- where text is printed ----------------------------------------------------------------------------------------


class Terminal(StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn colours off, so that every escape sequence in the output is foreign."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")


def logged(*, human: bool) -> str:
    stream = StringIO()
    setup_logging(stream, human=human, environ={})
    log = logging.getLogger("retake.test")
    with bind(generation=HOSTILE, step=HOSTILE):
        octets = HOSTILE.encode("utf-8", "replace")
        log.warning("%s", HOSTILE, extra={"note": HOSTILE, "nested": {HOSTILE: [HOSTILE, octets]}})
        for error in (ValueError(HOSTILE), PollFailed(Code.NETWORK, HOSTILE)):
            log.error(HOSTILE, stack_info=True, exc_info=error)
        alert("word", HOSTILE, fact=HOSTILE)
        relay(HOSTILE)
    setup_logging(None, human=True)
    return stream.getvalue()


@pytest.mark.parametrize("human", [True, False])
def test_a_log_line_rules_no_terminal(human: bool) -> None:
    text = logged(human=human)
    assert is_harmless(text)
    assert "pwned" in text
    if not human:
        lines = text.split("\n")[:-1]
        assert len(lines) == 5, "no record begins in the middle of another"
        assert json.loads(lines[0])["message"].encode("utf-16", "surrogatepass") == HOSTILE.encode(
            "utf-16", "surrogatepass"
        )


def blocks() -> list[Block]:
    facts, table = Facts([(HOSTILE, Cell(HOSTILE))]), Table((HOSTILE,), [(HOSTILE,)])
    return [Heading(HOSTILE), Sentence(HOSTILE), facts, table, Raw(f"# {HOSTILE}\n\n{HOSTILE}\n")]


@pytest.mark.parametrize("stream", [StringIO(), Terminal()], ids=["pipe", "terminal"])
def test_an_answer_for_people_rules_no_terminal(stream: StringIO) -> None:
    show(Answer({}, blocks()), stream, as_json=False)
    complain(HOSTILE, stream)
    assert is_harmless(stream.getvalue())
    assert "pwned" in stream.getvalue()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_an_answer_for_programs_rules_no_terminal_and_says_the_same(encoding: str) -> None:
    raw = BytesIO()
    stream = TextIOWrapper(raw, encoding=encoding)
    show(Answer({HOSTILE: [HOSTILE]}, []), stream, as_json=True)
    text = raw.getvalue().decode(encoding)
    assert is_harmless(text)
    assert json.loads(text) == {HOSTILE: [HOSTILE]}


def test_a_page_has_none_of_it_and_no_markup() -> None:
    hostile = HOSTILE + "<script>|`*_[a](http://b)"
    for text in (markdown.text(hostile), markdown.code(hostile), *markdown.table(["a"], [[markdown.text(hostile)]])):
        assert is_harmless(text)
        assert "\n" not in text
    assert "\\<script\\>" in markdown.text(hostile)
    assert "&#124;" in markdown.text(hostile)


def test_a_vendors_words_in_a_message_have_none_of_it() -> None:
    assert quote(HOSTILE).isprintable()


class Listing:
    """A bucket that lists one file with a hostile name."""

    url = BUCKET

    def list(self, prefix: str) -> list[Any]:
        return [Entry(prefix + HOSTILE, 7, 0.0)] if prefix.startswith("666/") else []


@pytest.mark.parametrize("terminal", [True, False])
def test_the_display_and_the_account_of_until_done_rule_no_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, account = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    clock = SystemClock()
    watch = Watch(Settings(), Listing(), clock, terminal=terminal)  # type: ignore[arg-type]
    watch._generation_id = HOSTILE
    watch._events = [(clock.now(), f"upscale failed: {HOSTILE}\n{HOSTILE}: retried")]
    with watch:
        if watch._live:
            watch._live.refresh()
    watch.print_account(account, None)
    setup_logging(None, human=True)
    assert "pwned" in account.getvalue()
    assert is_harmless(account.getvalue().replace("\r\n", "\n"))
    ours = shown.getvalue().replace("\x1b[?25l", "").replace("\x1b[?25h", "")  # the cursor, hidden and shown again
    assert is_harmless(ours)


def test_a_dry_run_rules_no_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(StoryRunner, "dry_run", lambda self, orders: [f"would retry ({HOSTILE})", "would move"])
    assert manage(str(tmp_path), Options(dry_run=True)) == 0
    setup_logging(None, human=True)
    out = capsys.readouterr().out
    assert is_harmless(out)
    assert len(out.splitlines()) == 2
