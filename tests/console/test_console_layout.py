"""On a narrow terminal no time is broken, nothing is wider than the terminal, and nothing is lost."""

import re
from io import StringIO

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from reading_world import ask, shown
from test_console_runs import eventful

from retake.console.answer import Answer, Cell, Facts, Heading, Markdown, Sentence, Table
from retake.console.dead_letters import list_letters
from retake.console.layout import columns_of, fold, widths
from retake.console.rendering import show
from retake.console.report import command as report
from retake.console.runs import command as runs
from retake.console.show import command as show_run
from retake.console.status import command as status

ID = r"[a-z_-]*\d[0-9a-z_-]*"
TASK = "bf8ecb5c-1a19-579d-a350-b58ddd98a0ff"
TIME = r"20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d"


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def drawn(answer: Answer, width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the answer as a terminal shows it, without colours."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    show(answer, stream, as_json=False)
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_time_is_broken_and_no_line_is_too_wide(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = eventful()
    world.later(days=1)
    for answer in (
        ask(status, world),
        ask(runs, world, statuses=(), limit=20, pipeline=None),
        ask(show_run, world, run="20260101-0000"),
        ask(list_letters, world, limit=9),
        ask(report, world, run="20260101-0005"),
    ):
        text = drawn(answer, width, monkeypatch)
        assert max(columns_of(line) for line in text.splitlines()) <= width
        dates = len(re.findall(r"20\d\d-\d\d-\d\d(?!\d)", text))
        assert dates == len(re.findall(TIME, text)), text
        assert set(re.findall(TIME, shown(answer))) == set(re.findall(TIME, text))


@given(st.text(), st.integers(1, 60))
@example("\ue000", 1)  # was taken for the space within a time, and lost
@example("a\N{NO-BREAK SPACE}b 12:00:00", 1)
def test_folding_loses_nothing_and_keeps_to_the_width(text: str, width: int) -> None:
    words = " ".join(text.split())
    lines = fold(words, width)
    assert "".join("".join(lines).split()) == "".join(words.split())
    wide = [line for line in lines if columns_of(line) > max(width, 2) and not re.search(r"\d\d:\d\d", line)]
    assert not [line for line in wide if len(line) < 8 or not re.fullmatch(rf"{ID}[,;:.)]?", line)]  # an id by itself


def test_a_time_stays_whole_however_narrow_it_is() -> None:
    assert fold("at 2026-01-31 12:00:00 UTC, again", 10) == ["at", "2026-01-31 12:00:00 UTC,", "again"]


@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_an_id_stays_whole_so_that_it_can_be_copied(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ("asked", "step", "attempt", "outcome", "task", "price")
    row = ("2026-11-26T13:58:31Z", "imagine", "1", "accepted", TASK, "0.045")
    blocks = [Table(columns, [row, row]), Facts([("task", TASK)]), Sentence(f"task {TASK}, kept", indent=4)]
    assert drawn(Answer({}, blocks), width, monkeypatch).count(TASK) == 4


def test_show_has_the_tasks_of_paid_calls_beside_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(ask(show_run, eventful(), run="20260101-0000"), 80, monkeypatch)
    paid, tasks = text.partition("\nPaid: ")[2].split("\nTasks\n")
    assert "task" not in paid
    assert re.search(r"^imagine +3 +imagine-3$", tasks, re.MULTILINE), tasks


def test_no_word_is_broken_beside_a_sign_of_two_columns() -> None:
    assert fold("🎵 Bad #4: the cover is ready", 13) == ["🎵 Bad #4:", "the cover is", "ready"]


def test_a_table_without_room_becomes_blocks() -> None:
    assert widths([["when", "2026-01-31 12:00:00"], ["what", "a b c"]], 40) == [19, 5]
    assert widths([["when", "2026-01-31 12:00:00"], ["what", "x" * 60]], 40) == [19, 19]
    assert widths([["when", "2026-01-31 12:00:00"], ["what", "x" * 60]], 30) is None


def test_a_brief_cell_is_cut_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "word " * 40 + "end"
    answer = Answer({}, [Table(("id", "error"), [("x", Cell(long))], brief=("error",))])
    assert "end" not in drawn(answer, 80, monkeypatch)
    assert "…" in drawn(answer, 80, monkeypatch)
    assert long in shown(answer)


def test_a_brief_message_has_the_status_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    message = 'PiAPI was asked to start an upscale task and answered HTTP 500: "500: internal server error". Look at …'
    answer = Answer({}, [Table(("id", "error"), [("x", Cell(message))], brief=("error",))])
    assert "HTTP 500" in drawn(answer, 160, monkeypatch)


def test_dead_letters_are_listed_with_their_whole_message_in_a_pipe() -> None:
    world = eventful()
    document = world.json("dead_letters/20260101-0005/report.json")
    document["last_error"]["message"] = "why " * 100 + "end"
    world.put("dead_letters/20260101-0005/report.json", document)
    assert "why end" in shown(ask(list_letters, world, limit=9))


def test_a_report_is_markdown_in_a_pipe_and_rendered_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ask(report, eventful(), run="20260101-0005")
    assert shown(answer).startswith("# Incident report: story 20260101")
    text = drawn(answer, 80, monkeypatch)
    assert text.startswith("Incident report: story 20260101-0005\n")
    assert not re.search(r"^#|\*\*|^\||---|`|\\", text, re.MULTILINE)
    assert "banned prompt" in text
    raw = ask(report, eventful(), run="20260101-0005", as_markdown=True)
    assert "## Timeline" in drawn(raw, 80, monkeypatch)


def test_what_is_rendered_cannot_rule_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answer(
        {}, [Heading("x"), Markdown("a \x1b[31mred\x07 \u202e"), Facts([("a", "\x1b]0;t\x07")]), Sentence("\x9b2J")]
    )
    stream = Terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    show(answer, stream, as_json=False)
    assert "\x1b[31m" not in stream.getvalue()
    assert not set("\x07\x9b\u202e") & set(stream.getvalue())
