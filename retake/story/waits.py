"""How long what failed waits before it is tried again: RETRYING of the settings, and what the vendor asks for.

The wait is drawn when the failure is recorded, and stands in its record; the decision goes by the record alone.
"""

from collections.abc import Callable
from math import ceil

from retake.errors import CodedError
from retake.retrying.backoff import Backoff, Exponential, Fibonacci, Fixed, Linear
from retake.retrying.policy import RetryPolicy
from retake.settings.shared import RetryingSettings
from retake.story.settings import Settings

LONGEST_ASKED_S = 3600.0
"""How long a vendor may ask to be left alone, in seconds. Who says more made a mistake, or waits for a person."""

_STRATEGIES: dict[str, Callable[[RetryingSettings], Backoff]] = {
    "none": lambda chosen: Fixed(0.0),
    "fixed": lambda chosen: Fixed(chosen.first_seconds),
    "linear": lambda chosen: Linear(chosen.first_seconds, chosen.first_seconds),
    "exponential": lambda chosen: Exponential(chosen.first_seconds, chosen.factor),
    "fibonacci": lambda chosen: Fibonacci(chosen.first_seconds),
}


def policy(settings: Settings) -> RetryPolicy:
    """The retry policy of every step."""
    chosen = settings.retrying
    return RetryPolicy(
        settings.workflow.max_retries,
        _STRATEGIES[chosen.strategy](chosen),
        jitter_percent=chosen.jitter_percent,
        ceiling_s=chosen.max_seconds,
    )


def wait_s(settings: Settings, error: CodedError, retries: int, since_s: float, random: Callable[[], float]) -> int:
    """Whole seconds from the failure's time stamp until it is tried again, after `retries` retries. `since_s` is what
    the stamp leaves out of the time of the failure: no wait gets shorter by that. `random()` gives 0 … 1."""
    wait = max(policy(settings).wait_s(retries + 1, random), min(error.retry_after_s or 0.0, LONGEST_ASKED_S))
    return ceil(wait + since_s) if wait > 0 else 0
