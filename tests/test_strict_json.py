import json
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.document_schema import InvalidDocument
from retake.story.documents import parse_gen, parse_midjourney, parse_public
from retake.strict_json import MAX_DEPTH, as_stored, encode, parse, what_is_wrong


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '{"b": [{"a": 1, "c": 2, "a": null}]}'])
def test_a_name_that_is_there_twice_is_refused_and_named(text: str) -> None:
    with pytest.raises(ValueError, match='"a" appears twice in one object') as refused:
        parse(text)
    assert "not JSON" not in what_is_wrong(refused.value)


def test_nesting_has_an_end() -> None:
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse(deepest) == json.loads(deepest)
    for levels in (MAX_DEPTH + 2, 100_000):
        with pytest.raises(ValueError, match="nested"):
            parse("[" * levels + "]" * levels)


def test_a_value_comes_back_as_a_document_has_it() -> None:
    value = {"a": (1, 2.5, None), "é": "\ud800", 3: [True]}
    stored = as_stored(value)
    assert stored == {"a": [1, 2.5, None], "é": "\ud800", "3": [True]}
    deepest: Any = []
    for _ in range(MAX_DEPTH):
        deepest = [deepest]
    assert as_stored(deepest) == deepest
    circle: list[Any] = []
    circle.append(circle)
    for no_json in (object(), {"a": {1}}, {b"a": 1}, circle, [deepest], {1: "one", "1": "another"}):
        with pytest.raises(ValueError):
            as_stored(no_json)


class Small(IntEnum):
    ONE = 1


class Word(StrEnum):
    A = "a"


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.sampled_from([Small.ONE, Word.A, 10**40])
)
KEYS = st.one_of(st.text(max_size=4), st.integers(), st.booleans(), st.none(), st.floats(), st.sampled_from(Word))
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.one_of(
            st.lists(inner, max_size=4), st.tuples(inner), st.dictionaries(st.text(max_size=4), inner, max_size=4)
        )
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_a_document_is_written_as_the_json_module_writes_it(value: Any) -> None:
    assert encode(value).decode() == json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def test_a_lone_surrogate_makes_the_document_ascii() -> None:
    assert encode(["é\ud800", {}, []]) == b'[\n  "\\u00e9\\ud800",\n  {},\n  []\n]\n'


def test_each_encoding_of_json_is_read_and_any_other_is_reported() -> None:
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
        assert parse('{"é": "\N{SNOWMAN}"}'.encode(encoding)) == {"é": "\N{SNOWMAN}"}
    with pytest.raises(ValueError) as refused:
        parse(b'{"a": "\xff"}')
    assert what_is_wrong(refused.value) == "not JSON (byte 8 is not UTF-8)"


@pytest.mark.parametrize("text", ["", "{", b"\xff", "1" * 5000])
def test_what_cannot_be_read_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError) as refused:
        parse(text)
    assert what_is_wrong(refused.value)


@pytest.mark.parametrize("read", [parse_public, parse_gen, parse_midjourney])
def test_a_state_document_that_says_two_things_at_once_is_refused(read: Any) -> None:
    with pytest.raises(InvalidDocument) as refused:
        read(b'{"generation_id": null, "generation_id": null}')
    field, what = refused.value.args
    assert (field, what) == ("the whole document", '"generation_id" appears twice in one object; keep one of them')
