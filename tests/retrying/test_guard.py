"""The guard: it calls, waits as the policy says, calls again, and reports how it ended."""

from collections.abc import Callable
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.clock import FakeClock
from retake.errors import Code, CodedError, OutcomeUnknown, RobotError, Stopped
from retake.retrying.backoff import Exponential, Fixed
from retake.retrying.breaker import Breaker, BreakerOpen, BreakerPolicy, Phase
from retake.retrying.guard import Call, End, Guard, Tried
from retake.retrying.policy import GiveUp, Retry, RetryIf, RetryPolicy
from retake.retrying.state_store import MemoryStateStore

A, B = "ERR_TEMPORARY_APPIUS_UNAVAILABLE", "ERR_BUSINESS_INVALID_EVENT"
ROBOT_1 = RetryPolicy(3, Exponential(2, 4))


class SleepyClock(FakeClock):
    """Records the length of each sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        super().sleep(seconds)


class Work:
    """Fails as planned, then returns `done`. Calls take `takes_s`."""

    def __init__(self, clock: FakeClock, *failures: str | Exception, takes_s: float = 0.0) -> None:
        self.calls: list[Call] = []
        self._clock, self._takes_s = clock, takes_s
        self._failures = [RobotError(it, f"number {n}") if isinstance(it, str) else it for n, it in enumerate(failures)]

    def __call__(self, call: Call) -> str:
        self.calls.append(call)
        self._clock.sleep(self._takes_s) if self._takes_s else None
        if len(self.calls) <= len(self._failures):
            raise self._failures[len(self.calls) - 1]
        return "done"


@pytest.fixture
def clock() -> SleepyClock:
    return SleepyClock()


def middle() -> float:
    return 0.5


def test_a_call_that_succeeds_is_made_once(clock: SleepyClock) -> None:
    work = Work(clock)
    assert Guard(ROBOT_1, clock, middle).call(work) == "done"
    assert (work.calls, clock.slept) == ([Call(1, None)], [])


def test_a_call_that_fails_is_made_again_after_the_waits_of_the_policy(clock: SleepyClock) -> None:
    work = Work(clock, A, A, A)
    assert Guard(ROBOT_1, clock, middle).call(work) == "done"
    assert (len(work.calls), clock.slept) == (4, [2, 8, 32])


def test_once_every_repeat_is_used_up_the_last_error_is_raised(clock: SleepyClock) -> None:
    work = Work(clock, A, A, A, A, A)
    guard = Guard(ROBOT_1, clock, middle)
    with pytest.raises(RobotError, match="number 3"):
        guard.call(work)
    assert len(work.calls) == 4


def test_how_it_ended_is_reported_in_full(clock: SleepyClock) -> None:
    outcome = Guard(ROBOT_1, clock, middle).outcome(Work(clock, *[A] * 5))
    assert outcome.end is End.USED_UP
    assert str(outcome.error) == "number 3"
    assert (outcome.attempts, outcome.retries, outcome.waited_s, outcome.held_s) == (4, 3, 42, 0)
    done = Guard(ROBOT_1, clock, middle).outcome(Work(clock, A))
    assert (done.end, done.value, done.error, done.attempts) == (End.DONE, "done", None, 2)


def test_an_error_that_the_policy_does_not_repeat_is_raised_at_once(clock: SleepyClock) -> None:
    work = Work(clock, A, B)
    outcome = Guard(ROBOT_1, clock, middle).outcome(work)
    assert (outcome.end, outcome.attempts, len(work.calls)) == (End.NOT_RETRYABLE, 2, 2)
    assert outcome.error is not None
    assert outcome.error.code == B


def test_what_is_not_a_coded_error_passes_through_at_once(clock: SleepyClock) -> None:
    work = Work(clock, ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        Guard(ROBOT_1, clock, middle).call(work)
    assert len(work.calls) == 1


def test_whoever_observes_is_told_of_each_attempt(clock: SleepyClock) -> None:
    seen: list[Tried] = []
    began = clock.now()
    Guard(ROBOT_1, clock, middle, observe=seen.append).call(Work(clock, A, takes_s=5))
    first, second = seen
    assert (first.attempt, first.began_at, first.ended_at) == (1, began, began + timedelta(seconds=5))
    assert first.error is not None
    assert first.decision == Retry(2, 2)
    assert (second.attempt, second.began_at, second.error, second.decision) == (
        2,
        began + timedelta(seconds=7),
        None,
        None,
    )


def test_whoever_observes_is_told_that_it_was_given_up(clock: SleepyClock) -> None:
    seen: list[Tried] = []
    Guard(ROBOT_1, clock, middle, observe=seen.append).outcome(Work(clock, B))
    assert [type(it.decision) for it in seen] == [GiveUp]


def test_the_work_is_told_what_a_call_may_take(clock: SleepyClock) -> None:
    work = Work(clock, A)
    Guard(RetryPolicy(2, timeout_s=15.0), clock, middle).call(work)
    assert work.calls == [Call(1, 15.0), Call(2, 15.0)]


@given(seed=st.integers(), failures=st.integers(0, 8), limit=st.none() | st.integers(0, 5))
def test_retry_policy_are_drawn_within_the_jitters_bounds(seed: int, failures: int, limit: int | None) -> None:
    clock, policy = SleepyClock(), RetryPolicy(limit, Exponential(2, 4), jitter_percent=25)
    work = Work(clock, *[A] * failures)
    outcome = Guard(policy, clock, Random(seed).random).outcome(work)
    repeats = failures if limit is None else min(failures, limit)
    assert len(work.calls) == outcome.attempts == repeats + 1
    assert len(clock.slept) == repeats
    for wait, repeat in zip(clock.slept, range(1, repeats + 1), strict=True):
        low, high = policy.bounds_s(repeat)
        assert low <= wait <= high
    assert outcome.waited_s == pytest.approx(sum(clock.slept))


# --- a second call may be paid for twice ------------------------------------------------------------------------------


def test_a_call_that_may_have_been_carried_out_is_not_made_again(clock: SleepyClock) -> None:
    work = Work(clock, OutcomeUnknown(Code.TIMEOUT, "no answer"))
    outcome = Guard(ROBOT_1, clock, middle).outcome(work)
    assert (outcome.end, outcome.attempts, clock.slept) == (End.UNKNOWN, 1, [])
    assert isinstance(outcome.error, OutcomeUnknown)


def test_unless_the_policy_names_its_code(clock: SleepyClock) -> None:
    named = ROBOT_1._replace(retry_if=RetryIf(codes=frozenset({Code.TIMEOUT.value})))
    work = Work(clock, OutcomeUnknown(Code.TIMEOUT, "no answer"), OutcomeUnknown(Code.NETWORK, "cut"))
    assert Guard(named, clock, middle).outcome(work).end is End.UNKNOWN
    assert len(work.calls) == 2


# --- deadline and stop ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("deadline_s", "attempts"), [(0, 1), (1.9, 1), (2, 2), (9.9, 2), (10, 3), (42, 4), (None, 4)])
def test_no_attempt_begins_after_the_deadline(clock: SleepyClock, deadline_s: float | None, attempts: int) -> None:
    outcome = Guard(ROBOT_1, clock, middle, deadline_s=deadline_s).outcome(Work(clock, *[A] * 9))
    assert outcome.attempts == attempts
    assert outcome.end is (End.USED_UP if attempts == 4 else End.DEADLINE)
    assert isinstance(outcome.error, RobotError)


def test_the_deadline_counts_what_the_calls_themselves_take(clock: SleepyClock) -> None:
    guard = Guard(RetryPolicy(None, Fixed(1)), clock, middle, deadline_s=100)
    assert guard.outcome(Work(clock, *[A] * 99, takes_s=30)).attempts == 4


@pytest.mark.parametrize("policy", [RetryPolicy(None, Fixed(4)), RetryPolicy(None, Fixed(4), deadline_s=10)])
def test_a_clock_that_is_set_back_moves_no_deadline(clock: SleepyClock, policy: RetryPolicy) -> None:
    def fail(call: Call) -> None:
        assert call.attempt < 100, "it is repeated without end"
        clock.moment -= timedelta(hours=call.attempt == 2)
        raise CodedError(Code.UNAVAILABLE, "HTTP 503")

    Guard(policy, clock, middle, deadline_s=None if policy.deadline_s else 10).outcome(fail)
    assert sum(clock.slept) <= 16  # a wait in which it was set back is not counted


def test_asked_to_stop_it_makes_no_further_attempt(clock: SleepyClock) -> None:
    work = Work(clock, A, A)
    guard = Guard(ROBOT_1, clock, middle, stop=lambda: len(work.calls) == 2)
    with pytest.raises(Stopped, match="after 2 attempts") as raised:
        guard.call(work)
    assert isinstance(raised.value.__cause__, CodedError)


def test_asked_to_stop_before_it_began_it_does_nothing(clock: SleepyClock) -> None:
    work = Work(clock)
    assert Guard(ROBOT_1, clock, middle, stop=lambda: True).outcome(work).end is End.STOPPED
    assert work.calls == []


def test_asked_to_stop_it_does_not_sleep_to_the_end_of_a_long_wait(clock: SleepyClock) -> None:
    until = clock.now() + timedelta(seconds=5)
    guard = Guard(RetryPolicy(3, Fixed(600)), clock, middle, stop=lambda: clock.now() >= until)
    outcome = guard.outcome(Work(clock, A))
    assert (outcome.end, outcome.attempts, outcome.waited_s) == (End.STOPPED, 1, 5)


def test_who_could_stop_it_makes_no_wait_longer(clock: SleepyClock) -> None:
    Guard(RetryPolicy(1, Fixed(2.5)), clock, middle, stop=lambda: False).call(Work(clock, A))
    assert clock.slept == [1, 1, 0.5]


def test_with_nobody_who_could_stop_it_a_wait_is_one_sleep(clock: SleepyClock) -> None:
    Guard(RetryPolicy(1, Fixed(600)), clock, middle).call(Work(clock, A))
    assert clock.slept == [600]


# --- with a breaker ---------------------------------------------------------------------------------------------------


def broken(clock: FakeClock, policy: BreakerPolicy = BreakerPolicy()) -> Breaker:  # noqa: B008  immutable
    return Breaker("appius", MemoryStateStore(), policy, clock=clock, owner="here:1")


def test_while_the_breaker_is_open_the_guard_waits_and_counts_no_attempt(clock: SleepyClock) -> None:
    breaker = broken(clock, BreakerPolicy(failures=2))
    work = Work(clock, A, A)
    outcome = Guard(RetryPolicy(2, Fixed(1)), clock, middle, breaker=breaker).outcome(work)
    assert (outcome.end, outcome.attempts, len(work.calls)) == (End.DONE, 3, 3)
    assert (outcome.waited_s, outcome.held_s) == (2, 59)  # open for 60 s, of which 1 s was waited anyway
    assert breaker.state().phase(clock.now()) is Phase.CLOSED


def test_a_breaker_that_somebody_else_opened_uses_up_no_attempt(clock: SleepyClock) -> None:
    breaker = broken(clock, BreakerPolicy(failures=1))
    with pytest.raises(RobotError):
        breaker.call(lambda: Work(clock, A)(Call(1, None)))
    outcome = Guard(ROBOT_1, clock, middle, breaker=breaker).outcome(Work(clock, *[A] * 9))
    assert (outcome.end, outcome.attempts, outcome.waited_s) == (End.USED_UP, 4, 42)
    assert outcome.held_s == 60 + (60 - 2) + (60 - 8) + (60 - 32)


def test_at_the_deadline_an_open_breaker_is_the_error(clock: SleepyClock) -> None:
    breaker = broken(clock, BreakerPolicy(failures=1))
    with pytest.raises(RobotError):
        breaker.call(lambda: Work(clock, A)(Call(1, None)))
    work = Work(clock)
    guard = Guard(ROBOT_1, clock, middle, breaker=breaker, deadline_s=10)
    with pytest.raises(BreakerOpen, match="appius has failed too often: open until 2026-01-01T00:01:00Z") as raised:
        guard.call(work)
    assert (work.calls, raised.value.retry_after_s, clock.slept) == ([], 60, [])


def test_the_last_of_several_refusals_is_the_error(clock: SleepyClock) -> None:
    refusals = [BreakerOpen("open until then", 7), BreakerOpen("somebody is trying", 5)]

    def work(call: Call) -> None:
        raise refusals[len(clock.slept)]

    outcome = Guard(ROBOT_1, clock, middle, deadline_s=10).outcome(work)
    assert (outcome.end, outcome.error) == (End.DEADLINE, refusals[1])


def test_where_attempts_were_made_their_error_is_reported_and_not_the_breakers(clock: SleepyClock) -> None:
    breaker = broken(clock, BreakerPolicy(failures=1))
    outcome = Guard(ROBOT_1, clock, middle, breaker=breaker, deadline_s=10).outcome(Work(clock, A))
    assert (outcome.end, outcome.attempts) == (End.DEADLINE, 1)
    assert isinstance(outcome.error, RobotError)


def test_a_breaker_further_in_is_waited_for_in_the_same_way(clock: SleepyClock) -> None:
    def work(call: Call) -> int:
        if len(clock.slept) < 2:
            raise BreakerOpen("the one inside", 7)
        return call.attempt

    outer = broken(clock, BreakerPolicy(failures=1))
    assert Guard(ROBOT_1, clock, middle, breaker=outer).call(work) == 1
    assert clock.slept == [7, 7]


def test_one_guard_serves_many_calls(clock: SleepyClock) -> None:
    guard = Guard(ROBOT_1, clock, middle)
    works: list[Callable[[Call], str]] = [Work(clock, A), Work(clock, A, A)]
    assert [guard.outcome(work).attempts for work in works] == [2, 3]


def test_the_deadline_of_the_policy_ends_repeats_that_have_no_other_end() -> None:
    clock = FakeClock()

    def fail(call: Call) -> None:
        assert call.attempt < 100, "it is repeated without end"
        raise CodedError(Code.UNAVAILABLE, "HTTP 503")

    ended = Guard(RetryPolicy(None, Fixed(1.0), deadline_s=10.0), clock, lambda: 0.5).outcome(fail)
    assert (ended.end, ended.attempts) == (End.USED_UP, 12)
