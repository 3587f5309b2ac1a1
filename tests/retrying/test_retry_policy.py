"""A policy's answers: whether to retry and when; jitter, ceilings, conditions, and the other side's requests."""

import math
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retake.clock import FakeClock
from retake.errors import Code, CodedError, ErrorClass, OutcomeUnknown, Refused, RobotError
from retake.retrying.backoff import Exponential, Fibonacci, Fixed, Intervals
from retake.retrying.guard import Guard
from retake.retrying.policy import LONGEST_S, GiveUp, Retry, RetryIf, RetryPolicy
from retake.robots.batch import Batches, BatchParts
from retake.robots.batch_plan import BatchPolicy

A, B, C = "ERR_TEMPORARY_API_TIMEOUT", "ERR_BUSINESS_TECH_DOC_NOT_FOUND", "ERR_CRITICAL_DATA_CORRUPTION"


def error(code: str = A, retry_after_s: float | None = None) -> RobotError:
    return RobotError(code, "it failed", retry_after_s=retry_after_s)


def middle() -> float:
    return 0.5


# --- how often --------------------------------------------------------------------------------------------------------


def test_three_repeats_are_four_attempts() -> None:
    policy = RetryPolicy(3, Exponential(2, 4))
    decisions = [policy.decide(error(), attempt, middle) for attempt in (1, 2, 3, 4)]
    assert decisions == [Retry(2, 2), Retry(8, 3), Retry(32, 4), GiveUp(f"{A} after 4 attempts", used_up=True)]


def test_no_repeat_is_one_attempt() -> None:
    assert RetryPolicy(0).decide(error(), 1, middle) == GiveUp(f"{A} after 1 attempts", used_up=True)


@given(attempt=st.integers(1, 10**9))
def test_a_policy_without_end_never_gives_up(attempt: int) -> None:
    assert RetryPolicy(None, Exponential(1, 2), ceiling_s=600).decide(error(), attempt, middle) == Retry(
        min(2.0 ** min(attempt - 1, 100), 600), attempt + 1
    )


# --- after which errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "again"),
    [
        (RetryIf(), [A]),
        (RetryIf(frozenset()), []),
        (RetryIf(frozenset(ErrorClass)), [A, B, C]),
        (RetryIf(frozenset({ErrorClass.TEMPORARY, ErrorClass.CRITICAL})), [A, C]),
        (RetryIf(codes=frozenset({B})), [A, B]),
        (RetryIf(frozenset(), frozenset({C})), [C]),
        (RetryIf(frozenset(ErrorClass), except_codes=frozenset({B})), [A, C]),
        (RetryIf(codes=frozenset({B}), except_codes=frozenset({B})), [A]),
        (RetryIf(except_codes=frozenset({A})), []),
    ],
)
def test_an_error_is_repeated_for_its_class_or_its_code_unless_its_code_is_excepted(
    condition: RetryIf, again: list[str]
) -> None:
    policy = RetryPolicy(3, Fixed(1), retry_if=condition)
    assert [code for code in (A, B, C) if isinstance(policy.decide(error(code), 1, middle), Retry)] == again
    for code in {A, B, C} - {*again}:
        why = f"{code} is not an error that another try can fix"
        assert policy.decide(error(code), 1, middle) == GiveUp(why, used_up=False)


@pytest.mark.parametrize("kind", [Refused, OutcomeUnknown])
def test_vendors_errors_are_matched_by_the_same_codes(kind: type[Refused]) -> None:
    assert RetryIf(frozenset(), frozenset({"ERR_TEMPORARY_TIMEOUT"})).holds_for(kind(Code.TIMEOUT, "no answer"))


def test_an_error_that_is_not_repeated_is_not_a_used_up_policy_even_on_the_last_attempt() -> None:
    decision = RetryPolicy(1, Fixed(1)).decide(error(B), 2, middle)
    assert isinstance(decision, GiveUp)
    assert not decision.used_up


# --- when -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("percent", "backoff", "count"),
    [(25, Exponential(2, 4), 3), (15, Fibonacci(1), 5), (20, Exponential(3, 3), 4), (100, Fixed(7), 2)],
)
def test_jitter_spreads_each_wait_evenly_over_its_whole_range(
    percent: float, backoff: Exponential | Fibonacci | Fixed, count: int
) -> None:
    policy = RetryPolicy(count, backoff, percent)
    random = Random(f"{percent}").random
    for repeat in range(1, count + 1):
        nominal = backoff.delay_s(repeat)
        low, high = nominal * (1 - percent / 100), nominal * (1 + percent / 100)
        drawn = [policy.wait_s(repeat, random) for _ in range(20_000)]
        assert low <= min(drawn) <= max(drawn) <= high
        tenths = [0] * 10
        for wait in drawn:
            tenths[min(9, int(10 * (wait - low) / (high - low)))] += 1
        assert min(tenths) > 1_800, tenths  # 2,000 are expected; this far off is five standard deviations
        assert max(tenths) < 2_200, tenths


def test_without_jitter_chance_changes_nothing() -> None:
    policy = RetryPolicy(2, Intervals((10, 30)))
    assert {policy.wait_s(2, Random(seed).random) for seed in range(100)} == {30}


@given(
    percent=st.floats(0, 500),
    first=st.floats(0, 1e9),
    ceiling=st.none() | st.floats(0, 1e6),
    repeat=st.integers(1, 2_000),
    chance=st.floats(0, 1),
)
@example(percent=25, first=600, ceiling=600, repeat=1, chance=1.0)
def test_no_wait_is_negative_or_above_the_ceiling_or_endless(
    percent: float, first: float, ceiling: float | None, repeat: int, chance: float
) -> None:
    policy = RetryPolicy(None, Exponential(first, 2), percent, ceiling)
    low, high = policy.bounds_s(repeat)
    wait = policy.wait_s(repeat, lambda: chance)
    assert 0 <= low <= high <= (LONGEST_S if ceiling is None else ceiling)
    assert low <= wait <= high


def test_a_ceiling_cuts_what_jitter_adds() -> None:
    policy = RetryPolicy(None, Fixed(100), 25, ceiling_s=110)
    assert policy.bounds_s(1) == (75, 110)
    assert RetryPolicy(None, Fixed(500), 25, ceiling_s=100).bounds_s(1) == (75, 100)


@pytest.mark.parametrize(
    ("asked", "wait"), [(None, 8), (0, 8), (5, 8), (9, 9), (3600, 3600), (math.inf, LONGEST_S), (math.nan, 8)]
)
def test_the_other_side_is_left_alone_for_as_long_as_it_asks_beyond_the_ceiling(
    asked: float | None, wait: float
) -> None:
    policy = RetryPolicy(3, Fixed(8), ceiling_s=10)
    assert policy.decide(error(retry_after_s=asked), 1, middle) == Retry(wait, 2)


def test_what_the_other_side_asks_for_gives_no_further_attempt() -> None:
    assert isinstance(RetryPolicy(1, Fixed(1)).decide(error(retry_after_s=5), 2, middle), GiveUp)


def test_deciding_takes_one_number_of_chance_and_nothing_else() -> None:
    taken: list[float] = []

    def chance() -> float:
        taken.append(0.25)
        return 0.25

    policy = RetryPolicy(3, Fixed(100), 10)
    failure: CodedError = error()
    assert policy.decide(failure, 1, chance) == Retry(95, 2)
    assert len(taken) == 1


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (RetryPolicy(3, timeout_s=60, timeout_code="TIMEOUT"), "timeout_code: 'TIMEOUT' is not an error code"),
        (RetryPolicy(3, Intervals(())), r"Intervals\(intervals_s=\(\)\) has no wait for the first retry"),
        (RetryPolicy(3, Fixed(float("nan"))), "cannot be waited for before the first retry: nan s"),
        (RetryPolicy(None, Fixed(-5)), "cannot be waited for before the first retry: -5 s"),
    ],
    ids=str,
)
def test_a_policy_that_could_not_decide_is_refused_before_the_first_call(policy: RetryPolicy, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Guard(policy, FakeClock(), lambda: 0.5)
    Guard(policy._replace(max_retries=0, timeout_code=None), FakeClock(), lambda: 0.5)
    parts = BatchParts[str](lambda item: None, lambda call: {}, lambda item, made: None)
    for policies in (BatchPolicy(batch=policy), BatchPolicy(item=policy)):
        with pytest.raises(ValueError, match=why):
            Batches(parts, policies, FakeClock(), lambda: 0.5)
