"""Times, spans and money in words."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.operations.words import ago, code_of, moment, one_line, read_moment, size, span, usd, when_due
from retake.plural import count

NOW = datetime(2026, 2, 7, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0 s"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (86399, "23 h 59 min"),
        (86400, "1 d"),
        (4 * 86400 + 3 * 3600 + 59, "4 d 3 h"),
        (400 * 86400, "400 d"),
    ],
)
def test_a_span_is_reported_in_its_two_largest_units(seconds: float, words: str) -> None:
    assert span(seconds) == words


@given(st.floats(0, 1e9))
def test_every_span_has_words(seconds: float) -> None:
    assert 1 <= len(span(seconds).split()) // 2 <= 2


def test_a_moment_of_today_is_a_time_of_day() -> None:
    assert moment(NOW, NOW) == "12:00:00"
    assert moment(NOW - timedelta(days=1), NOW) == "2026-02-06 12:00:00"


def test_a_future_time_is_shown_as_such() -> None:
    assert ago(NOW - timedelta(minutes=4), NOW) == "4 min ago"
    assert ago(NOW + timedelta(minutes=4), NOW) == "in 4 min"
    assert when_due(NOW + timedelta(minutes=4), NOW) == "in 4 min"
    assert when_due(NOW, NOW) == when_due(NOW - timedelta(minutes=4), NOW) == "due now"


def test_codes_are_reported_by_class_and_name() -> None:
    assert code_of("ERR_TEMPORARY_RATE_LIMIT") == "A RATE_LIMIT"
    assert code_of("ERR_CRITICAL_UNAUTHORIZED") == "C UNAUTHORIZED"
    assert code_of("ERR_TEMPORARY_") == "ERR_TEMPORARY_"
    assert code_of("whatever") == "whatever"
    assert code_of(None) == ""


def test_small_words() -> None:
    assert usd(1.5) == "1.500 USD"
    assert count(1, "call") == "1 call"
    assert count(0, "call") == "0 calls"
    assert size(999) == "999 B"
    assert size(1_500_000) == "1.5 MB"
    assert one_line("a\n b\tc") == "a b c"
    assert one_line("x" * 300, 10) == "x" * 9 + "…"
    assert read_moment("2026-02-07T12:00:00Z") == NOW
    assert read_moment("soon") is read_moment(7) is read_moment(None) is None
