"""Clocks, and times as the documents write them."""

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.clock import FakeClock, SystemClock, exact_stamp, parse_stamp, stamp


def test_the_system_clock_is_utc_and_knows_the_time() -> None:
    before = time.time()
    now = SystemClock().now()
    assert now.utcoffset() == timedelta(0)
    assert before - 1e-3 <= now.timestamp() <= time.time() + 1e-3


def test_the_system_clock_sleeps_that_long_and_never_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    SystemClock().sleep(1.5)
    SystemClock().sleep(-3)
    assert slept == [1.5, 0.0]


def test_a_fake_clock_moves_only_by_sleeping() -> None:
    clock = FakeClock(datetime(2026, 1, 1, 23, 59, tzinfo=UTC))
    assert clock.now() == clock.now() == datetime(2026, 1, 1, 23, 59, tzinfo=UTC)
    clock.sleep(90)
    assert clock.now() == datetime(2026, 1, 2, 0, 0, 30, tzinfo=UTC)
    clock.sleep(-90)
    assert clock.now() == datetime(2026, 1, 2, 0, 0, 30, tzinfo=UTC)


def test_a_stamp_is_utc_in_whole_seconds() -> None:
    moment = datetime(2026, 1, 1, 1, 30, 59, 999_999, tzinfo=timezone(timedelta(hours=2)))
    assert stamp(moment) == "2025-12-31T23:30:59Z"


@pytest.mark.parametrize(
    "text",
    [
        "2025-12-31T23:30:59Z",
        "2025-12-31T23:30:59",
        "2025-12-31 23:30:59+00:00",
        "2026-01-01T01:30:59+02:00",
        "20251231T233059Z",
    ],
)
def test_the_ways_to_write_one_moment(text: str) -> None:
    parsed = parse_stamp(text)
    assert parsed == datetime(2025, 12, 31, 23, 30, 59, tzinfo=UTC)
    assert parsed.tzinfo is UTC


@pytest.mark.parametrize("text", ["", "yesterday", "2025-13-01T00:00:00Z", "1767225599", "2025-12-31T25:00:00Z"])
def test_what_names_no_moment_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_stamp(text)


@pytest.mark.parametrize("microsecond", [0, 1, 999_999])
def test_an_exact_stamp_reads_back_as_its_moment(microsecond: int) -> None:
    moment = datetime(2026, 1, 1, 3, 0, 0, microsecond, timezone(timedelta(hours=3)))
    assert exact_stamp(moment).startswith("2026-01-01T00:00:00")
    assert exact_stamp(moment).endswith("Z")
    assert parse_stamp(exact_stamp(moment)) == moment


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.timezones()))
def test_a_stamp_reads_back_as_its_moment_to_the_second(moment: datetime) -> None:
    assert parse_stamp(stamp(moment)) == moment.astimezone(UTC).replace(microsecond=0)


@given(*[st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC))] * 2)
def test_stamps_sort_as_their_moments_do(one: datetime, other: datetime) -> None:
    assert (stamp(one) <= stamp(other)) == (one.replace(microsecond=0) <= other.replace(microsecond=0))


def test_a_time_before_the_calendar_begins_in_utc_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="not a time"):
        parse_stamp("0001-01-01T00:00:00+23:59")
