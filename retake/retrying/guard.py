"""Carries out a retry policy in process: calls, asks the policy about the error, waits, calls again.

Only calls that were made count as attempts: while a circuit breaker refuses, the guard waits and no attempt is used up.
A call with an unknown outcome (OutcomeUnknown) is not retried, since it might be paid for twice. A policy for calls
that can safely be retried names the error's code (`RetryIf.codes`).

A call that takes longer than the policy's `timeout_s` is abandoned (time_limit.py). Its outcome is then unknown, unless
the policy names an error code for it (`timeout_code`).
"""

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar, cast

from retake.attempts import countdown
from retake.clock import Clock, wait
from retake.errors import CodedError, OutcomeUnknown, Stopped
from retake.retrying.breaker import Breaker, BreakerOpen
from retake.retrying.policy import Decision, GiveUp, RetryPolicy, checked, decide_on_paid
from retake.retrying.time_limit import OutOfTime, within

T = TypeVar("T")


class Call(NamedTuple):
    """What an attempt passes to the work."""

    attempt: int  # from 1, the first call
    timeout_s: float | None  # seconds of real time that the work may take; None: no limit
    if_none_match: str | None = None  # the If-None-Match header for the request


class Tried(NamedTuple):
    """An attempt that has ended, for observers."""

    attempt: int
    began_at: datetime
    ended_at: datetime
    error: CodedError | None  # None if it succeeded
    decision: Decision | None  # None if it succeeded


class End(StrEnum):
    """Why a guarded call ended."""

    DONE = "done"  # with a result
    NOT_RETRYABLE = "not retryable"  # the policy does not retry this error
    UNKNOWN = "outcome unknown"  # a retry might be paid for twice
    USED_UP = "used up"  # no retry is left
    DEADLINE = "deadline"  # the next attempt would come too late
    STOPPED = "stopped"  # the caller asked to stop


class GuardResult(NamedTuple, Generic[T]):
    """The result of a guarded call."""

    end: End
    value: T | None  # what `work` returned, if `end` is DONE
    error: CodedError | None  # the last error of `work`; the last BreakerOpen if no attempt was made
    attempts: int  # calls that were made
    waited_s: float  # seconds waited between attempts, by the policy
    held_s: float  # seconds waited for a breaker

    @property
    def retries(self) -> int:
        """The number of retries: `retry_count` of an error record."""
        return max(0, self.attempts - 1)


class Guard:
    """Carries out `policy`, for any number of calls and from several threads.

    No attempt begins more than `deadline_s` seconds after `call`; with 0 the guard never waits. `stop()` is called
    before each attempt and every second of a wait; it returns True to end the call. `observe` is called after every
    attempt. `random()` returns 0 to 1. Raises ValueError for a policy that cannot decide
    (`retake.retrying.policy.checked`).

    >>> from random import random
    >>> from retake.clock import FakeClock
    >>> from retake.retrying.backoff import Exponential
    >>> guard = Guard(RetryPolicy(3, Exponential(1.0)), FakeClock(), random)
    >>> guard.call(lambda call: f"answer {call.attempt}")
    'answer 1'
    """

    def __init__(
        self,
        policy: RetryPolicy,
        clock: Clock,
        random: Callable[[], float],
        *,
        breaker: Breaker | None = None,
        deadline_s: float | None = None,
        stop: Callable[[], bool] | None = None,
        observe: Callable[[Tried], None] = lambda tried: None,
    ) -> None:
        self.policy = checked(policy)
        self._clock, self._random = clock, random
        self._breaker = breaker
        self._deadline_s = deadline_s
        self._stop, self._observe = stop, observe

    def call(self, work: Callable[[Call], T]) -> T:
        """Return what `work` returns, retrying it as the policy says.

        Raises the last CodedError of `work`, BreakerOpen if the deadline passes before the breaker lets any call
        through, and Stopped. Raises any other exception of `work` immediately.

        >>> from random import random
        >>> from retake.clock import FakeClock
        >>> from retake.errors import Code
        >>> def busy_twice(call: Call) -> str:
        ...     if call.attempt < 3:
        ...         raise CodedError(Code.UNAVAILABLE, "HTTP 503")
        ...     return f"answer {call.attempt}"
        >>> Guard(RetryPolicy(max_retries=3), FakeClock(), random).call(busy_twice)
        'answer 3'
        """
        outcome = self.outcome(work)
        if outcome.end is End.DONE:
            return cast(T, outcome.value)
        if outcome.end is End.STOPPED:
            raise Stopped(f"stopped after {outcome.attempts} attempts") from outcome.error
        assert outcome.error is not None
        raise outcome.error

    def outcome(self, work: Callable[[Call], T]) -> GuardResult[T]:
        """Do the same as `call`, but return errors and stops as part of the result.

        Raises only exceptions of `work` that are not CodedErrors.
        """
        progress = _GuardedCall(self._clock, self._deadline_s)
        while not self._stopped():
            call = Call(progress.attempts + 1, self.policy.timeout_s)
            began_at = self._clock.now()
            try:
                value = self._made(work, call)
            except BreakerOpen as refusal:
                if not progress.attempts:
                    progress.error = refusal
                if not progress.allows(refusal.retry_after_s):
                    return progress.ended(End.DEADLINE)
                progress.held_s += wait(self._clock, refusal.retry_after_s, self._stop)
                continue
            except CodedError as error:
                progress.attempts, progress.error = call.attempt, error
                elapsed_s = progress.elapsed_s()
                decision = decide_on_paid(self.policy, error, call.attempt, self._random, elapsed_s=elapsed_s)
                self._observe(Tried(call.attempt, began_at, self._clock.now(), error, decision))
                if isinstance(decision, GiveUp):
                    return progress.ended(_end_of(error, decision))
                if not progress.allows(decision.after_s):
                    return progress.ended(End.DEADLINE)
                progress.waited_s += wait(self._clock, decision.after_s, self._stop)
                continue
            self._observe(Tried(call.attempt, began_at, self._clock.now(), None, None))
            return progress.ended(End.DONE, value, call.attempt)
        return progress.ended(End.STOPPED)

    def _stopped(self) -> bool:
        return self._stop is not None and self._stop()

    def _made(self, work: Callable[[Call], T], call: Call) -> T:
        return self._breaker.call(lambda: self._timed(work, call)) if self._breaker else self._timed(work, call)

    def _timed(self, work: Callable[[Call], T], call: Call) -> T:
        try:
            return within(call.timeout_s, lambda: work(call))
        except OutOfTime as error:
            raise error.as_error(self.policy.timeout_code) from None


class _GuardedCall:
    """The progress of one call under a guard."""

    def __init__(self, clock: Clock, deadline_s: float | None) -> None:
        self.attempts = 0
        self.error: CodedError | None = None
        self.waited_s = self.held_s = 0.0
        self._deadline_s = deadline_s
        self._left = countdown(0.0, clock)  # setting the clock back must not extend the deadline

    def elapsed_s(self) -> float:
        return -self._left()

    def allows(self, wait_s: float) -> bool:
        return self._deadline_s is None or self.elapsed_s() + wait_s <= self._deadline_s

    def ended(self, end: End, value: T | None = None, attempts: int | None = None) -> GuardResult[T]:
        error = None if end is End.DONE else self.error
        return GuardResult(end, value, error, attempts or self.attempts, self.waited_s, self.held_s)


def _end_of(error: CodedError, decision: GiveUp) -> End:
    if decision.used_up:
        return End.USED_UP
    return End.UNKNOWN if isinstance(error, OutcomeUnknown) else End.NOT_RETRYABLE
