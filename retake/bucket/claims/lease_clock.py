"""Elapsed time for a lease, bounded from both sides: each bound is used where an error costs an attempt, not safety."""

import time
from collections.abc import Callable
from typing import NamedTuple

from retake.clock import Clock, SystemClock


class ClockReading(NamedTuple):
    """One moment, by two clocks, in seconds."""

    monotonic: float
    wall: float


class LeaseClock:
    """The machine's two clocks.

    `monotonic` runs at the right rate but may stop while the machine is suspended. The time of day does not stop then,
    but people and programs set it.
    """

    def __init__(self, clock: Clock | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock or SystemClock()
        self._monotonic = monotonic

    def mark(self) -> ClockReading:
        """Return this moment."""
        return ClockReading(self._monotonic(), self._clock.now().timestamp())

    def at_most(self, since: ClockReading) -> float:
        """Return the seconds since then, or more: for deciding how long we may still act.

        Suspension counts; a clock that is set back does not.
        """
        now = self.mark()
        return max(0.0, now.monotonic - since.monotonic, now.wall - since.wall)

    def at_least(self, since: ClockReading) -> float:
        """Return the seconds since then, or fewer: for deciding how old somebody else's claim is.

        A clock that is set forward does not count.
        """
        return max(0.0, self._monotonic() - since.monotonic)

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)
