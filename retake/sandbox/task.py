"""A task at a vendor's stand-in. Its status depends only on the clock."""

from dataclasses import dataclass
from typing import Any, NamedTuple

STARTS_AT = 0.15  # the share of a task's duration during which it is pending


@dataclass(frozen=True)
class Pace:
    """How long each kind of task takes, in seconds of the sandbox's clock; 0: done at the first poll."""

    imagine: float = 3.0
    upscale: float = 2.0
    runway: float = 4.0

    @classmethod
    def of(cls, text: str) -> "Pace":
        """Parse "SECONDS" for all kinds, or "IMAGINE,UPSCALE,RUNWAY". Raises ValueError."""
        try:
            seconds = [float(part) for part in text.split(",")]
        except ValueError:
            seconds = []
        if len(seconds) not in (1, 3) or any(not 0 <= value < 1e6 for value in seconds):
            raise ValueError(f"{text!r} is not a pace: give seconds for all tasks, or three for imagine,upscale,runway")
        return cls(*seconds) if len(seconds) == 3 else cls(*seconds * 3)


class TaskStatus(NamedTuple):
    """`name` is pending, processing, completed, failed or cancelled; `progress` runs from 0.0 to 1.0."""

    name: str
    progress: float

    @property
    def completed(self) -> bool:
        return self.name == "completed"

    @property
    def ended(self) -> bool:
        return self.name in ("completed", "failed", "cancelled")


@dataclass(frozen=True)
class VendorTask:
    """A task at a stand-in. Times are in seconds since the epoch, `price` in mills (1/1000 USD)."""

    id: str
    kind: str  # imagine, upscale or runway
    created: float
    duration: float
    fault: str  # task-failed, task-rejected or never-ends if ordered; bad-image; "" for a task that succeeds
    request: dict[str, Any]  # the vendor's own fields, without image bytes
    price: int
    seed: int
    source: str = ""  # for a video: the key of its image in the table of files
    cancelled: float | None = None

    def status(self, now: float) -> TaskStatus:
        """Return the status at `now`."""
        if self.cancelled is not None:
            return TaskStatus("cancelled", 0.0)
        elapsed = max(0.0, now - self.created)
        share = elapsed / self.duration if self.duration else 1.0
        endless = self.fault == "never-ends"
        if not endless and share >= (STARTS_AT if self.fault in ("task-rejected", "bad-image") else 1.0):
            return TaskStatus("failed", 0.0) if self.fault else TaskStatus("completed", 1.0)
        if share < STARTS_AT:
            return TaskStatus("pending", 0.0)
        return TaskStatus("processing", round(share / (1 + share) if endless else share, 2))

    def times(self, now: float) -> tuple[float | None, float | None]:
        """Return when the task started and when it ended, each None if it has not yet done so at `now`."""
        status = self.status(now)
        started = None if status.name == "pending" else self.created + STARTS_AT * self.duration
        return started, self.created + self.duration if status.ended else None

    def owed(self, now: float) -> int:
        """Return what the task costs, in mills, as known at `now`.

        Both vendors charge when they accept a task and refund one that fails. A cancelled task is refunded only if it
        was still pending (Runway's rule).
        """
        if self.cancelled is not None:
            pending = self.cancelled - self.created < STARTS_AT * self.duration
            return 0 if pending else self.price
        return 0 if self.status(now).name == "failed" else self.price
