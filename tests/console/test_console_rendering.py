"""The display of answers: aligned in a pipe, one document as JSON, and never able to control the terminal."""

import json
from io import BytesIO, StringIO, TextIOWrapper

from hypothesis import given
from hypothesis import strategies as st

from retake.console.answer import Answer, Block, Cell, Facts, Heading, Raw, Sentence, Table, Tone
from retake.console.rendering import columns_of, complain, plain, show

TABLE = Table(("name", "n"), [("short", "1"), (Cell("quite long", Tone.BAD), "1000")], ("n",))


def written(blocks: list[Block], encoding: str = "utf-8", *, as_json: bool = False) -> bytes:
    raw = BytesIO()
    stream = TextIOWrapper(raw, encoding=encoding)
    show(Answer({"text": "«ключ» → ✓"}, blocks), stream, as_json=as_json)
    stream.detach()
    return raw.getvalue()


def test_a_table_in_a_pipe_is_aligned_and_has_no_colours() -> None:
    assert list(plain([TABLE])) == ["NAME           N", "short          1", "quite long  1000"]


def test_facts_stand_below_one_another() -> None:
    assert list(plain([Facts([("lease", "free"), ("spent today", "1")])])) == ["lease        free", "spent today  1"]


def test_a_heading_has_room_above_it_but_for_the_first() -> None:
    assert list(plain([Heading("One"), Sentence("x", indent=2), Heading("Two")])) == ["One", "  x", "", "Two"]


def test_a_wide_character_takes_two_columns() -> None:
    assert columns_of("人物") == 4
    assert columns_of("e\u0301") == 1
    lines = list(plain([Table(("a", "b"), [("人物", "x"), ("abcd", "y")])]))
    assert lines[1] == "人物  x"
    assert lines[2] == "abcd  y"


@given(st.text())
def test_no_text_can_rule_the_terminal_or_end_a_line(text: str) -> None:
    blocks: list[Block] = [Heading(text), Sentence(text), Facts([(text, text)]), Table((text,), [(text,)])]
    for line in plain(blocks):
        assert all(sign.isprintable() for sign in line), repr(line)


def test_raw_text_keeps_its_lines() -> None:
    assert list(plain([Raw("# One\n\n- two\n")])) == ["# One", "", "- two"]


def test_a_stream_without_our_signs_gets_plainer_ones() -> None:
    assert written([Sentence("«ok» → 3 × …")], "ascii") == b'"ok" -> 3 x ...\n'
    assert written([Sentence("ключ ✓")], "latin-1") == b"\\u043a\\u043b\\u044e\\u0447 ok\n"


def test_json_is_one_document_in_whatever_encoding() -> None:
    for encoding in ("utf-8", "ascii", "latin-1"):
        assert json.loads(written([], encoding, as_json=True).decode(encoding)) == {"text": "«ключ» → ✓"}
    assert "«ключ»" in written([], as_json=True).decode()


def test_half_a_character_does_not_break_an_answer() -> None:
    raw = BytesIO()
    stream = TextIOWrapper(raw, encoding="utf-8")
    show(Answer({"text": "\ud800"}, []), stream, as_json=True)
    assert json.loads(raw.getvalue()) == {"text": "\ud800"}
    assert written([Sentence("a\ud800b")]) == b"a b\n"


def test_a_number_that_json_lacks_is_null() -> None:
    stream = StringIO()
    show(Answer({"price_usd": float("nan"), "seconds": [float("inf"), 1.5]}, []), stream, as_json=True)
    found = json.loads(stream.getvalue(), parse_constant=lambda sign: sign)
    assert found == {"price_usd": None, "seconds": [None, 1.5]}


def test_a_message_of_several_lines_is_one_complaint() -> None:
    stream = StringIO()
    complain("two keys are missing:\nA\nB\x1b[2J", stream)
    assert stream.getvalue() == "error: two keys are missing:\n  A\n  B [2J\n"
