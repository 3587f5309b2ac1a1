"""Repeated attempts with pauses in between."""

from datetime import timedelta
from itertools import islice

import pytest

from retake.attempts import attempts, countdown, repeating, steady
from retake.clock import FakeClock, SystemClock


def test_there_is_one_attempt_more_than_there_are_pauses() -> None:
    slept: list[float] = []
    assert [attempt.last for attempt in attempts((1, 2), slept.append)] == [False, False, True]
    assert slept == [1, 2]


def test_without_pauses_there_is_one_attempt() -> None:
    slept: list[float] = []
    assert [attempt.last for attempt in attempts((), slept.append)] == [True]
    assert slept == []


def test_the_last_pause_repeats() -> None:
    assert list(islice(repeating(1, 2), 4)) == [1, 2, 2, 2]


def test_no_pause_outlasts_the_time_left() -> None:
    clock = FakeClock()
    end = clock.now() + timedelta(seconds=10)
    began = [attempt.pause for attempt in attempts(repeating(1, 4), clock.sleep, left=countdown(10, clock))]
    assert began == [1, 4, 4, 4], "after 0, 1, 5 and 9 seconds"
    assert clock.now() == end - timedelta(seconds=1)


def test_time_spent_in_an_attempt_counts() -> None:
    clock = FakeClock()
    lasts = []
    for attempt in attempts((1, 1), clock.sleep, left=countdown(10, clock)):
        clock.sleep(9)
        lasts.append(attempt.last)
    assert lasts == [True]


def test_a_server_may_ask_for_a_longer_pause() -> None:
    slept: list[float] = []
    for attempt in attempts((1, 1), slept.append):
        attempt.wait_at_least(3)
    assert slept == [3, 3]


def test_a_server_that_asks_for_more_time_than_is_left_ends_it() -> None:
    slept: list[float] = []
    lasts = []
    for attempt in attempts((1, 1), slept.append, left=lambda: 5.0):
        attempt.wait_at_least(60)
        lasts.append(attempt.last)
    assert (lasts, slept) == ([True], [])


def test_whoever_was_told_that_it_is_not_the_last_attempt_gets_another_one() -> None:
    """The time may run out just afterwards, because of another thread or a slow answer."""
    clock, made = FakeClock(), 0
    for attempt in attempts(repeating(1.0), clock.sleep, left=countdown(5.0, clock)):
        made += 1
        if attempt.last:
            break
        clock.moment += timedelta(seconds=10)
    else:
        raise AssertionError("it ended without its last attempt")
    assert made == 2


def test_a_clock_that_is_set_back_does_not_make_the_wait_longer() -> None:
    clock = FakeClock()
    left, tried = countdown(30.0, clock), 0
    for attempt in attempts(repeating(1.0), clock.sleep, left=left):
        tried += 1
        if tried == 10:
            clock.moment -= timedelta(days=365)
        if attempt.last or tried > 100:
            break
    assert 30 <= tried <= 32


@pytest.mark.parametrize("step", [timedelta(days=-365), timedelta(days=365)])
def test_setting_the_clock_of_the_machine_makes_no_wait_longer_or_shorter(
    monkeypatch: pytest.MonkeyPatch, step: timedelta
) -> None:
    clock = SystemClock()
    left, time = countdown(3600.0, clock), steady(clock)
    before, set_to = time(), clock.now() + step
    monkeypatch.setattr(SystemClock, "now", lambda clock: set_to)
    assert 3500 < left() <= 3600
    assert before <= time() <= before + timedelta(seconds=100)
