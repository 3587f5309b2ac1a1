"""The attempt number that every screen shows: the step's (retries used, plus one), and the maximum.

A run has its own counter, `attempt`: how often the work on its task was started, for whatever reason (a retry of any
step, a requeued dead letter). It is shown only under that name.
"""

from typing import Any, NamedTuple

from retake.errors import ErrorRecord
from retake.plural import count
from retake.runs.run import Run

TAKEN_UP = "taken up"
"""The label of a run's own counter."""


class StepAttempt(NamedTuple):
    """An attempt at a step."""

    step: str
    number: int  # from 1
    max_attempts: int

    @property
    def words(self) -> str:
        return f"{self.step}, attempt {self.number} of {self.max_attempts}"

    @property
    def short(self) -> str:
        return f"{self.step} {self.number}/{self.max_attempts}"


def as_document(at: StepAttempt | None) -> dict[str, Any]:
    """Return the JSON fields that stand beside the run's own `attempt`."""
    step, number, max_attempts = at or (None, None, None)
    return {"step": step, "step_attempt": number, "max_attempts": max_attempts}


def of_failure(error: ErrorRecord) -> int | None:
    """Return the number of the attempt that failed, or None if the error record does not say."""
    details = error.raw.get("details")
    retries = details.get("retry_count") if isinstance(details, dict) else None
    return retries + 1 if isinstance(retries, int) and not isinstance(retries, bool) and retries >= 0 else None


def times_taken_up(run: Run) -> str:
    """Return the run's own counter in words."""
    return count(run.attempt, "time")
