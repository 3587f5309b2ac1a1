"""The retry policy of the story's steps: how often a failed step is retried, and when (settings: RETRYING).

The policy is asked twice. When a step fails, the delay before its next attempt is drawn and saved in the error record.
Later ticks only ask whether an attempt is left, and take the time from the record.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from math import ceil
from typing import Any, NamedTuple

from retake.errors import Code, CodedError, ErrorClass, error_record, escalate, retry_in
from retake.retrying.backoff import Backoff, Exponential, Fibonacci, Fixed, Linear
from retake.retrying.policy import GiveUp, Retry, RetryPolicy
from retake.settings.shared import RetryingSettings, Workflow
from retake.story.documents import MidjourneyDocument, Step
from retake.story.settings import Settings

MAX_RETRY_AFTER_S = 3600.0
"""Maximum Retry-After, in seconds, that is obeyed. A longer one is a mistake, or needs a person."""

_ADVICE = {
    ErrorClass.TEMPORARY: "no attempt is left: look at its dead letter; --retake resumes it at this step",
    ErrorClass.BUSINESS: "look at its dead letter and change the prompt: the same one would fail again",
    ErrorClass.CRITICAL: "fix the cause; --resume tries again at once",
}

_STRATEGIES: dict[str, Callable[[RetryingSettings], Backoff]] = {
    "none": lambda chosen: Fixed(0.0),
    "fixed": lambda chosen: Fixed(chosen.first_seconds),
    "linear": lambda chosen: Linear(chosen.first_seconds, chosen.first_seconds),
    "exponential": lambda chosen: Exponential(chosen.first_seconds, chosen.factor),
    "fibonacci": lambda chosen: Fibonacci(chosen.first_seconds),
}


def step_policy(limits: Workflow, step: Step, retrying: RetryingSettings = RetryingSettings()) -> RetryPolicy:  # noqa: B008  immutable
    """Return the policy of a step.

    Answered polls clear the counter of failed ones, so the counter alone would never end polls that fail and succeed in
    turn. Polling a Runway task therefore has a deadline, too.
    """
    return RetryPolicy(
        limits.max_retries,
        _STRATEGIES[retrying.strategy](retrying),
        jitter_percent=retrying.jitter_percent,
        ceiling_s=retrying.max_seconds,
        deadline_s=limits.runway_timeout_seconds if step is Step.RUNWAY_POLL else None,
        longest_asked_s=MAX_RETRY_AFTER_S,
    )


def attempt_left(doc: MidjourneyDocument, step: Step, limits: Workflow, now: datetime) -> bool:
    """Return whether the failed step has an attempt left. Its error was temporary: others leave no error status."""
    failed = CodedError(Code.UNAVAILABLE, "")
    attempt, elapsed_s = doc.retries_of(step) + 1, _elapsed_s(doc, step, now)
    return isinstance(step_policy(limits, step).decide(failed, attempt, lambda: 0.5, elapsed_s=elapsed_s), Retry)


class StepFailure(NamedTuple):
    """A step that failed."""

    step: Step
    error: CodedError
    retries: int  # how often it was retried before
    at: datetime
    elapsed_s: float = 0.0  # since the work began, for a policy with a deadline

    @classmethod
    def of(cls, doc: MidjourneyDocument, step: Step, error: CodedError, now: datetime) -> "StepFailure":
        """Return the failure of `step`, with the retries that the document counts."""
        return cls(step, error, doc.retries_of(step), now, _elapsed_s(doc, step, now))


def retry_delay(settings: Settings, failure: StepFailure, random: Callable[[], float]) -> int | None:
    """Return after how many whole seconds the step is retried, or None if it is not.

    The delay counts from the failure's timestamp, which also has whole seconds. The fraction that the timestamp drops
    is added, so that no wait is shorter than drawn. `random()` returns 0 … 1.
    """
    policy = step_policy(settings.workflow, failure.step, settings.retrying)
    decision = policy.decide(failure.error, failure.retries + 1, random, elapsed_s=failure.elapsed_s)
    if isinstance(decision, GiveUp):
        return None
    return ceil(decision.after_s + failure.at.microsecond / 1e6) if decision.after_s > 0 else 0


def failure_record(
    settings: Settings, failure: StepFailure, generation_id: str, random: Callable[[], float]
) -> dict[str, Any]:
    """Return the error record of a failed step. Its recovery action says when the step is retried, or what a person has
    to do. `random()` returns 0 … 1."""
    delay = retry_delay(settings, failure, random)
    todo = _ADVICE[failure.error.error_class]
    return error_record(
        failure.error,
        now=failure.at,
        robot_id=f"story.{failure.step}",
        correlation_id=generation_id,
        retry_count=failure.retries,
        recovery_actions=(escalate("operator", todo) if delay is None else retry_in(delay),),
    )


def _elapsed_s(doc: MidjourneyDocument, step: Step, now: datetime) -> float:
    """Return the seconds since the Runway task was ordered, or 0 for every other step."""
    task = doc.runway_task if step is Step.RUNWAY_POLL else None
    return (now - task.requested_at).total_seconds() if task and task.requested_at else 0.0


def given_up_at(doc: MidjourneyDocument, step: Step, limits: Workflow) -> datetime | None:
    """Return when the deadline of the step leaves it no more attempts, or None if it has no deadline."""
    task, deadline_s = doc.runway_task, step_policy(limits, step).deadline_s
    if deadline_s is None or task is None or task.requested_at is None:
        return None
    try:
        return task.requested_at + timedelta(seconds=deadline_s)
    except OverflowError:
        return None
