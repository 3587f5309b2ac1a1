"""How attempts are counted, the same on every screen: of the step, the retries used so far and one, of how many.

A run has a counter of its own, `attempt`: how often the work on its task was taken up, by whatever led to it (a repeat
of any step, a dead letter that was requeued). It is shown only under that name.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from retake.runs.run import Run
from retake.story.documents import MidjourneyDocument
from retake.story.settings import Workflow

TAKEN_UP = "taken up"
"""What a run's own counter is called."""


class Attempt(NamedTuple):
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

    def document(self) -> dict[str, Any]:
        """As JSON has it, beside the run's own `attempt`."""
        return {"step": self.step, "step_attempt": self.number, "max_attempts": self.most}


def present(doc: MidjourneyDocument, limits: Workflow) -> Attempt:
    """Return the attempt that the generation under way is at, or that was its last."""
    step = doc.present_step
    return Attempt(step.value, doc.retries_of(step) + 1, limits.max_retries + 1)


def of_failure(record: Mapping[str, Any] | None) -> int | None:
    """Return which attempt at its step a failure was, by its error record; None where the record does not say."""
    details = (record or {}).get("details")
    retries = details.get("retry_count") if isinstance(details, Mapping) else None
    return retries + 1 if isinstance(retries, int) and not isinstance(retries, bool) and retries >= 0 else None


def times_taken_up(run: Run) -> str:
    """Return the run's own counter in words."""
    return f"{run.attempt} time{'s' * (run.attempt != 1)}"
