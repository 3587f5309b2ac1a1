"""How attempts are counted, the same on every screen: of the step, the retries used so far and one, of how many.

A run has a counter of its own, `attempt`: how often the work on its task was started, for whatever reason (a retry of
any step, a dead letter that was requeued). It is shown only under that name.
"""

from typing import Any, NamedTuple

from retake.errors import ErrorRecord
from retake.plural import count
from retake.runs.run import Run

TAKEN_UP = "taken up"
"""What a run's own counter is called."""


class StepAttempt(NamedTuple):
    """Which attempt at which step."""

    step: str
    number: int  # from 1
    most: int  # how many there may be

    @property
    def words(self) -> str:
        return f"{self.step}, attempt {self.number} of {self.most}"

    @property
    def short(self) -> str:
        return f"{self.step} {self.number}/{self.most}"


def as_document(at: StepAttempt | None) -> dict[str, Any]:
    """Return it as JSON has it, beside the run's own `attempt`."""
    step, number, most = at or (None, None, None)
    return {"step": step, "step_attempt": number, "max_attempts": most}


def of_failure(error: ErrorRecord) -> int | None:
    """Return which attempt at its step a failure was, by its error record; None where the record does not say."""
    details = error.raw.get("details")
    retries = details.get("retry_count") if isinstance(details, dict) else None
    return retries + 1 if isinstance(retries, int) and not isinstance(retries, bool) and retries >= 0 else None


def times_taken_up(run: Run) -> str:
    """Return the run's own counter in words."""
    return count(run.attempt, "time")
