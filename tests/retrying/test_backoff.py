"""The strategies: their waits compared with the lists of docs/protocol.md, tenacity, and a formula for Fibonacci
numbers."""

import math
from collections.abc import Callable
from decimal import Decimal, localcontext

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st

from retake.retrying.backoff import Backoff, Exponential, Fibonacci, Fixed, Intervals, Linear, TwoPhase
from retake.retrying.policy import LONGEST_S, RetryPolicy

SEED_003 = [
    ("NR.NSI.1", Exponential(2, 4), [2, 8, 32]),
    ("NR.NSI.2", Fibonacci(1), [1, 1, 2, 3, 5]),
    ("NR.NSI.3", Intervals((10, 30)), [10, 30]),
    ("NR.NSI.4", Exponential(3, 3), [3, 9, 27, 81]),
    ("NR.NSI.5, a batch", Exponential(5, 5), [5, 25, 125]),
    ("NR.NSI.5, an item", Exponential(1, 3), [1, 3, 9, 27, 81]),
    ("NR.NSI.6", Linear(15, 15), [15, 30, 45]),
    ("NR.NSI.7", Exponential(2, 2), [2, 4, 8]),
    ("NR.NSI.8", TwoPhase(30), [0, 30]),
    ("NR.NSI.9", Exponential(1, 2), [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]),
]
"""Each robot's strategy with the numbers that give its list of intervals in docs/protocol.md."""

seconds = st.floats(0, 1e6) | st.integers(0, 10**6)
repeats = st.integers(1, 400)


def waits(backoff: Backoff, count: int) -> list[float]:
    return [backoff.delay_s(repeat) for repeat in range(1, count + 1)]


def theirs(wait: Callable[[tenacity.RetryCallState], float], repeat: int) -> float:
    """Return how long tenacity waits before that repeat; it counts attempts, and the wait follows the attempt."""
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    state.attempt_number = repeat
    return wait(state)


@pytest.mark.parametrize(("backoff", "intervals"), [row[1:] for row in SEED_003], ids=[row[0] for row in SEED_003])
def test_a_strategy_comes_to_the_intervals_of_the_protocol(backoff: Backoff, intervals: list[float]) -> None:
    assert waits(backoff, len(intervals)) == intervals


def test_after_its_list_the_ninth_robot_waits_ten_minutes_each_time() -> None:
    policy = RetryPolicy(None, Exponential(1, 2), ceiling_s=600)
    assert [policy.wait_s(repeat, lambda: 0.5) for repeat in (9, 10, 11, 12, 1000, 10**6)] == [256, 512, *[600] * 4]


@given(interval=seconds, repeat=repeats)
def test_a_fixed_wait_is_tenacitys(interval: float, repeat: int) -> None:
    assert Fixed(interval).delay_s(repeat) == theirs(tenacity.wait_fixed(interval), repeat)


@given(first=seconds, step=seconds, repeat=repeats)
def test_a_linear_wait_is_tenacitys(first: float, step: float, repeat: int) -> None:
    assert Linear(first, step).delay_s(repeat) == theirs(tenacity.wait_incrementing(first, step), repeat)


@given(first=st.floats(0.001, 1e6), factor=st.floats(1.001, 50), ceiling=st.floats(0.001, LONGEST_S), repeat=repeats)
def test_an_exponential_wait_with_a_ceiling_is_tenacitys(
    first: float, factor: float, ceiling: float, repeat: int
) -> None:
    ours = RetryPolicy(None, Exponential(first, factor), ceiling_s=ceiling).wait_s(repeat, lambda: 0.5)
    assert math.isclose(ours, theirs(tenacity.wait_exponential(first, ceiling, factor), repeat), rel_tol=1e-9)


@given(intervals=st.lists(seconds, min_size=1, max_size=12), repeat=repeats)
def test_the_waits_of_a_list_match_tenacitys_chain(intervals: list[float], repeat: int) -> None:
    chain = tenacity.wait_chain(*map(tenacity.wait_fixed, intervals))
    assert Intervals(tuple(intervals)).delay_s(repeat) == theirs(chain, repeat)


@given(then=seconds, repeat=repeats)
def test_a_wait_in_two_phases_is_tenacitys_chain_of_none_and_a_fixed_one(then: float, repeat: int) -> None:
    chain = tenacity.wait_chain(tenacity.wait_none(), tenacity.wait_fixed(then))
    assert TwoPhase(then).delay_s(repeat) == theirs(chain, repeat)


@given(unit=st.integers(0, 10**6), repeat=st.integers(1, 1000))
def test_a_fibonacci_wait_is_binets_formula(unit: int, repeat: int) -> None:
    with localcontext(prec=300):
        root = Decimal(5).sqrt()
        number = (((1 + root) / 2) ** repeat / root).to_integral_value()
    assert math.isclose(Fibonacci(unit).delay_s(repeat), float(unit * number))


@pytest.mark.parametrize("backoff", [Exponential(1, 2), Exponential(3, 3), Fibonacci(1), Exponential(1e300, 1e300)])
def test_a_wait_that_no_float_can_hold_is_only_a_long_one(backoff: Backoff) -> None:
    policy = RetryPolicy(None, backoff)
    for repeat in (1_000, 10_000, 10**9):
        assert policy.backoff.delay_s(repeat) > 1e200
        assert policy.wait_s(repeat, lambda: 1.0) == LONGEST_S


@pytest.mark.parametrize("backoff", [Exponential(0, 2), Fibonacci(0), Linear(0, 0), Fixed(0), Intervals((0,))])
def test_what_begins_with_nothing_stays_nothing(backoff: Backoff) -> None:
    assert {backoff.delay_s(repeat) for repeat in (1, 2, 100, 5_000)} == {0}
