"""The common grammar of orders, and the counting of calls."""

import threading
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.calls import CallCounter, Parts, Span, meets, parse_parts, parse_spans

spans = st.tuples(st.integers(1, 500), st.integers(0, 50)).map(lambda pair: Span(pair[0], pair[0] + pair[1]))
names = st.text(st.characters(categories=["Ll", "Nd"], include_characters="_-"), min_size=1)


@given(names, st.lists(spans, max_size=4).map(tuple), names)
def test_an_order_is_read_as_it_was_written(kind: str, meant: tuple[Span, ...], fault: str) -> None:
    parts = Parts(kind, meant, fault)
    assert parse_parts(str(parts)) == parts


@given(st.text(max_size=30))
def test_any_text_is_an_order_or_none_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        assert parse_parts(text) is None or parse_parts(text)


@pytest.mark.parametrize("text", ["", "job", "job=", "=timeout", "job#1", "two words=timeout"])
def test_a_value_of_another_form_is_ignored(text: str) -> None:
    assert parse_parts(text) is None


@pytest.mark.parametrize("text", ["0", "", "one", "3-1", "-2", "1-", "1,,2", "²", "1_0"])
def test_call_numbers_are_counted_from_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"counted from 1|ends before it begins"):
        parse_spans(text)


def test_no_spans_mean_every_call() -> None:
    assert [n for n in range(1, 8) if meets(parse_spans("2-3, 6"), n)] == [2, 3, 6]
    assert all(meets((), n) for n in range(1, 8))


def test_calls_are_counted_by_kind_whichever_thread_makes_them() -> None:
    counter, seen = CallCounter(), list[int]()
    threads = [threading.Thread(target=lambda: seen.extend(counter.next("a") for _ in range(500))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(1, 2001))
    assert counter.next("b") == 1
