"""A task of a stand-in, and how it stands at a given moment: a pure function of the clock."""

from dataclasses import dataclass
from typing import Any, NamedTuple

STARTS_AT = 0.15  # share of a task's duration that it spends waiting for its turn


@dataclass(frozen=True)
class Pace:
    """How long each kind of task takes, in seconds of the sandbox's clock; 0 is done at the first poll."""

    imagine: float = 3.0
    upscale: float = 2.0
    runway: float = 4.0

    @classmethod
    def of(cls, text: str) -> "Pace":
        """The pace that `text` names: one number for all («0»), or «imagine,upscale,runway». Raises ValueError."""
        try:
            seconds = [float(part) for part in text.split(",")]
        except ValueError:
            seconds = []
        if len(seconds) not in (1, 3) or any(not 0 <= value < 1e6 for value in seconds):
            raise ValueError(f"{text!r} is no pace: give seconds for all tasks, or three for imagine,upscale,runway")
        return cls(*seconds) if len(seconds) == 3 else cls(*seconds * 3)


class TaskStatus(NamedTuple):
    """How a task stands. `word` is pending, processing, completed, failed or cancelled; `progress` is 0.0 … 1.0."""

    word: str
    progress: float

    @property
    def ended(self) -> bool:
        return self.word in ("completed", "failed", "cancelled")


@dataclass(frozen=True)
class VendorTask:
    """What a stand-in was asked to make. Moments are seconds since the epoch; `price` is in mills (1/1000 USD)."""

    id: str
    kind: str  # imagine, upscale, runway
    created: float
    duration: float
    fate: str  # «» or the fault that was ordered for it: task-failed, task-rejected, never-ends; or «bad-image»
    request: dict[str, Any]  # the vendor's own fields, as they came, without image bytes
    price: int
    seed: int
    source: str = ""  # the key, among the files, of the image that a video was ordered of
    cancelled: float | None = None

    def stage(self, now: float) -> TaskStatus:
        """How it stands at `now`."""
        if self.cancelled is not None:
            return TaskStatus("cancelled", 0.0)
        elapsed = max(0.0, now - self.created)
        share = elapsed / self.duration if self.duration else 1.0
        if self.fate == "never-ends":
            return (
                TaskStatus("pending", 0.0)
                if share < STARTS_AT
                else TaskStatus("processing", round(share / (1 + share), 2))
            )
        if share >= (STARTS_AT if self.fate in ("task-rejected", "bad-image") else 1.0):
            return TaskStatus("failed", 0.0) if self.fate else TaskStatus("completed", 1.0)
        return TaskStatus("pending", 0.0) if share < STARTS_AT else TaskStatus("processing", round(share, 2))

    def owed(self, now: float) -> int:
        """What it costs, in mills, as far as is known at `now`.

        Both vendors take the price when they accept a task and give it back when the task ends as failed. A
        cancelled task gets it back too, unless it was already being worked on (Runway's own rule).
        """
        if self.cancelled is not None:
            waiting = self.cancelled - self.created < STARTS_AT * self.duration
            return 0 if waiting else self.price
        return 0 if self.stage(now).word == "failed" else self.price
