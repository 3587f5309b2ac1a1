import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.vendors.answers import MAX_NUMBER, count, number, parse


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (7, 7),
        (0.4, 0.4),
        (-3, -3),
        ("40", 40.0),
        (" 40 % ", 40.0),
        ("40%", 40.0),
        (MAX_NUMBER, MAX_NUMBER),
        (True, None),
        (None, None),
        ("", None),
        ("%", None),
        ("nan", None),
        ("inf", None),
        ("1e400", None),
        ("9" * 400, None),
        ("soon", None),
        (math.nan, None),
        (math.inf, None),
        (-math.inf, None),
        (1e400, None),
        (1e16, None),
        (10**400, None),
        pytest.param(-(10**5000), None, id="5000 digits"),
        ([7], None),
        ({"n": 7}, None),
    ],
)
def test_a_number_is_one_that_can_be_meant(value: Any, read: float | None) -> None:
    assert number(value) == read


@pytest.mark.parametrize(("value", "read"), [(7, 7), (7.0, 7), (7.5, None), ("7", None), (True, None), (10**400, None)])
def test_a_count_is_whole(value: Any, read: int | None) -> None:
    assert count(value) == read
    assert type(count(value)) is type(read)


@given(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers()))
def test_whatever_comes_a_number_can_be_written_and_formatted(value: Any) -> None:
    found = number(value)
    if found is not None:
        assert f"{found:.0%} {found:g} {int(found)}"
        assert abs(found) <= MAX_NUMBER


@pytest.mark.parametrize("text", ["1e400", "-1e400", "NaN", "Infinity", "-Infinity"])
def test_a_number_that_no_document_can_hold_is_ignored(text: str) -> None:
    """It would be saved as Infinity, which is not JSON, and the document could not be read again."""
    assert parse(f'{{"n": [{text}]}}') == {"n": [None]}


LONE = {"escaped": '"\\ud83d"', "in capitals": '"\\uD83D"', "as it is": '"\ud83d"'}


@pytest.mark.parametrize("written", LONE)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", None])
def test_a_lone_surrogate_gets_into_no_document(written: str, encoding: str | None) -> None:
    data = LONE[written].encode(encoding, "surrogatepass") if encoding else LONE[written]
    assert ascii(parse(data)) == ascii("?")  # xdist cannot report a lone surrogate
