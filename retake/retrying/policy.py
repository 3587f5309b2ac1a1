"""Retry policies: data that decides whether a failed call is retried, and when. A policy never acts or sleeps.

The caller does the waiting: the guard in process (guard.py), the story across ticks, a worker by setting the
`next_retry_at` of its run. All count the same way: attempt 1 is the first call, attempt n + 1 is the n-th retry.
"""

from collections.abc import Callable
from typing import NamedTuple

from retake.errors import CodedError, ErrorClass, OutcomeUnknown, class_of
from retake.retrying.backoff import Backoff, Fixed

LONGEST_S = 366 * 24 * 3600.0
"""Maximum seconds of any wait, one year: bounds an exponential backoff without a ceiling."""


class RetryIf(NamedTuple):
    """Which errors are retried: those with one of the classes or codes, but never one of `except_codes`."""

    classes: frozenset[ErrorClass] = frozenset({ErrorClass.TEMPORARY})
    codes: frozenset[str] = frozenset()
    except_codes: frozenset[str] = frozenset()

    def holds_for(self, error: CodedError) -> bool:
        if error.code in self.except_codes:
            return False
        return error.code in self.codes or error.error_class in self.classes


class Retry(NamedTuple):
    """The decision to retry."""

    after_s: float  # seconds after the failure
    attempt: int  # the number of the next attempt: 2 for the first retry


class GiveUp(NamedTuple):
    """The decision not to retry."""

    why: str  # for the log
    used_up: bool  # True: no retries or no time left; False: this error is not retried


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

    max_retries: int | None  # retries after the first call; None: unlimited
    backoff: Backoff = Fixed(0.0)
    jitter_percent: float = 0.0  # each wait is drawn uniformly from ± this percentage
    ceiling_s: float | None = None  # the longest wait, jitter included
    retry_if: RetryIf = RetryIf()
    timeout_s: float | None = None  # a call that takes longer is abandoned (time_limit.py)
    timeout_code: str | None = None  # the error code of such a call; None: its outcome is unknown
    deadline_s: float | None = None  # a failure later than this many seconds after the work began is not retried
    longest_asked_s: float = LONGEST_S  # longest delay requested by a server (Retry-After) that is obeyed

    def decide(
        self, error: CodedError, attempt: int, random: Callable[[], float], *, elapsed_s: float = 0.0
    ) -> Decision:
        """Decide what follows `error` of attempt number `attempt` (from 1), `elapsed_s` after the work began.

        `random()` returns 0 to 1, for the jitter. If the server asked for a delay (`error.retry_after_s`), the wait is
        at least that, up to `longest_asked_s`, even above the ceiling.
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
        """Return the seconds to wait before retry number `repeat` (from 1), with jitter and ceiling applied."""
        low, high = self.bounds_s(repeat)
        return low + (high - low) * random()

    def bounds_s(self, repeat: int) -> tuple[float, float]:
        """Return the shortest and longest wait, in seconds, before retry number `repeat`."""
        ceiling = LONGEST_S if self.ceiling_s is None else self.ceiling_s
        delay = min(self.backoff.delay_s(repeat), ceiling)
        spread = delay * self.jitter_percent / 100
        return max(0.0, delay - spread), min(delay + spread, ceiling)


def checked(policy: RetryPolicy) -> RetryPolicy:
    """Return `policy`, or raise ValueError if it could not decide about a failure.

    Otherwise that would be noticed only after a call. Such a policy has a `timeout_code` without a class, or a backoff
    without a wait for the first retry.

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

    A paid call that may have been carried out is retried only if the policy names its code. A matching class
    ("temporary") is not enough: it says nothing about whether the call was paid for.
    """
    if isinstance(error, OutcomeUnknown) and error.code not in policy.retry_if.codes:
        why = f"{error.code}: nobody can tell whether the call was carried out, and paid for; look at the vendor's"
        return GiveUp(why, used_up=False)
    return policy.decide(error, attempt, random, elapsed_s=elapsed_s)
