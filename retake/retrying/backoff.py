"""How long to wait before each repeat: the strategies of seed 003, as values.

All times are seconds. `delay_s(n)` is the wait before the n-th repeat, n from 1: the first call is no repeat. Jitter,
a ceiling and the number of repeats are the policy's affair (policy.py).
"""

from typing import NamedTuple, Protocol


class Backoff(Protocol):
    """A strategy."""

    def delay_s(self, repeat: int) -> float:
        """Seconds to wait before repeat number `repeat` (from 1)."""
        ...


class Fixed(NamedTuple):
    """Always the same: 5, 5, 5, …"""

    interval_s: float

    def delay_s(self, repeat: int) -> float:
        return self.interval_s


class Linear(NamedTuple):
    """Rising by the same amount: with 15 and 15, 15, 30, 45, …"""

    first_s: float
    step_s: float

    def delay_s(self, repeat: int) -> float:
        return self.first_s + self.step_s * (repeat - 1)


class Exponential(NamedTuple):
    """Rising by the same factor: with 2 and 4, 2, 8, 32, …"""

    first_s: float
    factor: float = 2.0

    def delay_s(self, repeat: int) -> float:
        try:
            return self.first_s * float(self.factor) ** (repeat - 1)  # whole numbers would grow without end
        except OverflowError:  # a policy without end gets here in the end
            return float("inf") if self.first_s else 0.0


class Fibonacci(NamedTuple):
    """Each the sum of the two before it: 1, 1, 2, 3, 5, … units."""

    unit_s: float = 1.0

    def delay_s(self, repeat: int) -> float:
        before, present = 0, 1
        for _ in range(min(repeat, 1000) - 1):  # the 1000th is beyond every ceiling, and still a number
            before, present = present, before + present
        return self.unit_s * present


class Intervals(NamedTuple):
    """Those of a list, one after another; the last one again and again."""

    intervals_s: tuple[float, ...]

    def delay_s(self, repeat: int) -> float:
        return self.intervals_s[min(repeat, len(self.intervals_s)) - 1]


class TwoPhase(NamedTuple):
    """At once, and then each time after a wait: 0, 30, 30, …"""

    then_s: float

    def delay_s(self, repeat: int) -> float:
        return 0.0 if repeat == 1 else self.then_s
