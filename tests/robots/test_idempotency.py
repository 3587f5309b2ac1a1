"""Idempotency keys: which data count as the same, and which do not."""

import json
import subprocess
import sys
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.robots.idempotency import key_of

texts = st.text(max_size=8)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
objects = st.dictionaries(texts, values, max_size=3)


class Colour(StrEnum):
    RED = "red"


class Number(IntEnum):
    TEN = 10


def test_a_key_is_the_same_in_every_version_and_process() -> None:
    text = '{"вид":"Лист","остаток":null,"размеры":[1000,2000],"толщина":2.5}'
    escaped = "".join(sign if sign.isascii() else f"\\u{ord(sign):04x}" for sign in text)
    expected = sha256(escaped.encode()).hexdigest()
    data = {"вид": "Лист", "толщина": 2.5, "размеры": [1000, 2000.0], "остаток": None}
    command = f"from retake.robots.idempotency import key_of; print(key_of({data!r}))"
    said = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout
    assert said.strip() == key_of(data) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 10}, {"a": 10.0}),
        ({"a": 0}, {"a": -0.0}),
        ({"a": 10**22}, {"a": 1e22}),
        ({"a": "й"}, {"a": "и\u0306"}),
        ({"й": 1}, {"и\u0306": 1}),
        ({"a": [1, 2]}, {"a": (1, 2)}),
        ({"a": "red"}, {"a": Colour.RED}),
        ({"a": 10}, {"a": Number.TEN}),
        ({"a": {"c": 1, "b": [{"y": 1, "x": 2}]}}, {"a": {"b": [{"x": 2, "y": 1.0}], "c": 1}}),
    ],
)
def test_what_means_the_same_has_the_same_key(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert key_of(one) == key_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": "1"}),
        ({"a": 1}, {"a": True}),
        ({"a": 0}, {"a": False}),
        ({"a": None}, {}),
        ({"a": None}, {"a": ""}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": []}, {"a": {}}),
        ({"a": "м²"}, {"a": "м2"}),
        ({"a": "x"}, {"a": "X"}),
        ({"a": "x"}, {"a": "x "}),
        ({"a": 0.1}, {"a": 0.1 + 2**-56}),
        ({"a": 2**53}, {"a": 2**53 + 1}),
        ({"a": '","b":"'}, {"a": "", "b": ""}),
        ({"a": "\ud800"}, {"a": "\ud801"}),
    ],
)
def test_what_means_another_thing_has_another_key(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert key_of(one) != key_of(other)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ({"a": float("nan")}, "data.a: nan is not a number that JSON has"),
        ({"a": [0, {"b": float("-inf")}]}, "data.a[1].b: -inf is not a number that JSON has"),
        ({"a": {1: 2}}, "data.a: the key 1 is not text"),
        ({"a": datetime(2026, 1, 1, tzinfo=UTC)}, "data.a: datetime is nothing that JSON has"),
        ({"a": b"x"}, "data.a: bytes is nothing that JSON has"),
        ({"a": {1, 2}}, "data.a: set is nothing that JSON has"),
        ({"й": 1, "и\u0306": 2}, "data: the key 'й' is there twice"),
    ],
)
def test_what_is_not_json_is_reported_by_its_place(data: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError) as raised:
        key_of(data)
    assert str(raised.value) == fault


def test_data_nested_too_deeply_are_no_json() -> None:
    nested: Any = []
    for _ in range(10_000):
        nested = [nested]
    with pytest.raises(ValueError, match="data: nested too deeply"):
        key_of({"a": nested})


def shuffled(value: Any, decomposed: bool) -> Any:
    """Return the same value as another system might write it."""
    if isinstance(value, Mapping):
        return {shuffled(key, decomposed): shuffled(part, decomposed) for key, part in reversed([*value.items()])}
    if isinstance(value, list):
        return [shuffled(part, decomposed) for part in value]
    if isinstance(value, str):
        return unicodedata.normalize("NFD" if decomposed else "NFC", value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return float(value)
    return value


def has_twins(value: Any) -> bool:
    """Return whether two keys of one object are the same text."""
    if isinstance(value, Mapping):
        return len({unicodedata.normalize("NFC", key) for key in value}) < len(value) or any(
            map(has_twins, value.values())
        )
    return isinstance(value, list) and any(map(has_twins, value))


@given(objects, st.booleans())
def test_order_notation_and_a_way_through_json_change_no_key(data: dict[str, Any], decomposed: bool) -> None:
    if has_twins(data):
        with pytest.raises(ValueError, match="is there twice"):
            key_of(data)
        return
    assert key_of(data) == key_of(shuffled(data, decomposed)) == key_of(json.loads(json.dumps(data)))


few = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 1.0, 0.5, "1", "a", "й", "и\u0306"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "й", "и\u0306"]), inner),
    max_leaves=3,
)


@given(few.map(lambda value: {"it": value}), few.map(lambda value: {"it": value}))
def test_two_data_have_one_key_only_if_they_are_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    if has_twins(one) or has_twins(other):
        return
    assert (key_of(one) == key_of(other)) == (normal(one) == normal(other))


def normal(value: Any) -> Any:
    """Return a value that Python finds equal if and only if the data are the same: True is not 1 here."""
    if isinstance(value, Mapping):
        return {unicodedata.normalize("NFC", key): normal(part) for key, part in value.items()}
    if isinstance(value, list):
        return [normal(part) for part in value]
    return (isinstance(value, bool), unicodedata.normalize("NFC", value) if isinstance(value, str) else value)
