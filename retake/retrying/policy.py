"""Retry policies: data that answers "again in so many seconds" or "give up". A policy never acts or sleeps.

Whoever asks it does the waiting: the guard in process (guard.py), the story over ticks, a worker by setting
`next_retry_at` of its run. All count in the same way: attempt 1 is the first call, attempt n + 1 the n-th retry.
"""

from collections.abc import Callable
from typing import NamedTuple

from retake.errors import CodedError, ErrorClass, OutcomeUnknown, class_of
from retake.retrying.backoff import Backoff, Fixed

LONGEST_S = 366 * 24 * 3600.0
"""No wait is longer than a year, whatever an exponential backoff without a ceiling amounts to."""


class RetryIf(NamedTuple):
    """Which errors are retried: those of a class or of a code, but never those of an excepted code."""

    classes: frozenset[ErrorClass] = frozenset({ErrorClass.TEMPORARY})
    codes: frozenset[str] = frozenset()
    except_codes: frozenset[str] = frozenset()

    def holds_for(self, error: CodedError) -> bool:
        if error.code in self.except_codes:
            return False
        return error.code in self.codes or error.error_class in self.classes


class Retry(NamedTuple):
    """Try again."""

    after_s: float  # seconds from the failure
    attempt: int  # the number of the attempt that comes: 2 for the first retry


class GiveUp(NamedTuple):
    """Do not try again."""

    why: str  # for the log
    used_up: bool  # no retry is left; False: this error is not retried


Decision = Retry | GiveUp


class RetryPolicy(NamedTuple):
    """How often a call is retried, when, and after which errors.

    >>> from retake.errors import Code
    >>> from retake.retrying.backoff import Exponential
    >>> policy = RetryPolicy(max_retries=2, backoff=Exponential(1.0))
    >>> policy.decide(CodedError(Code.TIMEOUT, "no answer"), 2, lambda: 0.5)
    Retry(after_s=2.0, attempt=3)
    >>> policy.decide(CodedError(Code.TIMEOUT, "no answer"), 3, lambda: 0.5)
    GiveUp(why='ERR_TEMPORARY_TIMEOUT after 3 attempts', used_up=True)
    """

    max_retries: int | None  # retries after the first call; None: without end
    backoff: Backoff = Fixed(0.0)
    jitter_percent: float = 0.0  # each wait is drawn evenly from this many percent below it to as many above
    ceiling_s: float | None = None  # no wait is longer, jitter included
    retry_if: RetryIf = RetryIf()
    timeout_s: float | None = None  # a call that takes longer is abandoned (time_limit.py)
    timeout_code: str | None = None  # the error that this is; None: the outcome is unknown
    deadline_s: float | None = None  # no further attempt once this many seconds have passed since the work began
    longest_asked_s: float = LONGEST_S  # how much of a requested delay is obeyed, in seconds

    def decide(
        self, error: CodedError, attempt: int, random: Callable[[], float], *, elapsed_s: float = 0.0
    ) -> Decision:
        """Decide what follows `error` of attempt number `attempt` (from 1), `elapsed_s` after the work began.

        `random()` returns 0 to 1, for the jitter. Where the other side asked for a delay (`error.retry_after_s`), the
        wait is at least that, whatever the ceiling, up to `longest_asked_s`.
        """
        if not self.retry_if.holds_for(error):
            return GiveUp(f"{error.code} is not an error that another try can fix", used_up=False)
        if self.max_retries is not None and attempt > self.max_retries:
            return GiveUp(f"{error.code} after {attempt} attempts", used_up=True)
        if self.deadline_s is not None and elapsed_s > self.deadline_s:
            return GiveUp(f"{error.code} after {elapsed_s:.0f} s", used_up=True)
        asked = min(error.retry_after_s or 0.0, self.longest_asked_s)
        return Retry(max(self.wait_s(attempt, random), asked), attempt + 1)

    def wait_s(self, repeat: int, random: Callable[[], float]) -> float:
        """Return the seconds before retry number `repeat` (from 1), with jitter and ceiling."""
        low, high = self.bounds_s(repeat)
        return low + (high - low) * random()

    def bounds_s(self, repeat: int) -> tuple[float, float]:
        """Return the shortest and the longest wait, in seconds, that may precede that retry."""
        ceiling = LONGEST_S if self.ceiling_s is None else self.ceiling_s
        delay = min(self.backoff.delay_s(repeat), ceiling)
        spread = delay * self.jitter_percent / 100
        return max(0.0, delay - spread), min(delay + spread, ceiling)


def checked(policy: RetryPolicy) -> RetryPolicy:
    """Return `policy`. Raises ValueError for one that could not decide about a failure, which would come to light only
    after a call: a `timeout_code` without a class, a backoff without a wait for the first retry.

    >>> checked(RetryPolicy(3, timeout_s=60, timeout_code="TIMEOUT"))
    Traceback (most recent call last):
    ValueError: timeout_code: 'TIMEOUT' is not an error code: it begins with none of ERR_TEMPORARY_, ...
    """
    if policy.timeout_code is not None:
        try:
            class_of(policy.timeout_code)
        except ValueError as error:
            raise ValueError(f"timeout_code: {error}") from None
    if policy.max_retries == 0:
        return policy
    try:
        shortest, longest = policy.bounds_s(1)
    except LookupError as error:
        raise ValueError(f"{policy.backoff!r} has no wait for the first retry") from error
    if not shortest <= longest:
        raise ValueError(f"{policy.backoff!r} cannot be waited for before the first retry: {longest:g} s")
    return policy


def decide_on_paid(
    policy: RetryPolicy, error: CodedError, attempt: int, random: Callable[[], float], *, elapsed_s: float = 0.0
) -> Decision:
    """Decide as `policy.decide` does, but do not retry a call with an unknown outcome (OutcomeUnknown).

    A paid call that may have been carried out is retried only under a policy that names its code. The class alone, "a
    temporary error", says nothing about what was paid for.
    """
    if isinstance(error, OutcomeUnknown) and error.code not in policy.retry_if.codes:
        why = f"{error.code}: nobody can tell whether the call was carried out, and paid for; look at the vendor's"
        return GiveUp(why, used_up=False)
    return policy.decide(error, attempt, random, elapsed_s=elapsed_s)
