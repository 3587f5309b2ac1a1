"""Backoff strategies: how long to wait before each retry.

All times are in seconds. `delay_s(n)` is the wait before the n-th retry, counted from 1; the first call is not a retry.
Jitter, ceiling and the number of retries belong to the policy (policy.py).
"""

from typing import NamedTuple, Protocol


class Backoff(Protocol):
    """A backoff strategy."""

    def delay_s(self, repeat: int) -> float:
        """Return the seconds to wait before retry number `repeat` (from 1)."""
        ...


class Fixed(NamedTuple):
    """The same delay each time: 5, 5, 5, …"""

    interval_s: float

    def delay_s(self, repeat: int) -> float:
        return self.interval_s


class Linear(NamedTuple):
    """Delays that grow by the same amount: with 15 and 15 they are 15, 30, 45, …"""

    first_s: float
    step_s: float

    def delay_s(self, repeat: int) -> float:
        return self.first_s + self.step_s * (repeat - 1)


class Exponential(NamedTuple):
    """Delays that grow by the same factor: with 2 and 4 they are 2, 8, 32, …

    >>> [Exponential(2.0, 4).delay_s(retry) for retry in (1, 2, 3)]
    [2.0, 8.0, 32.0]
    """

    first_s: float
    factor: float = 2.0

    def delay_s(self, repeat: int) -> float:
        try:
            return self.first_s * float(self.factor) ** (repeat - 1)  # an int would grow without bound
        except OverflowError:  # with unlimited retries, n grows this far
            return float("inf") if self.first_s else 0.0


class Fibonacci(NamedTuple):
    """Delays that are each the sum of the two before: 1, 1, 2, 3, 5, … units."""

    unit_s: float = 1.0

    def delay_s(self, repeat: int) -> float:
        previous, current = 0, 1
        for _ in range(min(repeat, 1000) - 1):  # the 1000th exceeds every ceiling and still fits a float
            previous, current = current, previous + current
        return self.unit_s * current


class Intervals(NamedTuple):
    """The delays in a list, in order, and then the last one for ever."""

    intervals_s: tuple[float, ...]

    def delay_s(self, repeat: int) -> float:
        return self.intervals_s[min(repeat, len(self.intervals_s)) - 1]


class TwoPhase(NamedTuple):
    """No delay before the first retry, and then the same each time: 0, 30, 30, …"""

    then_s: float

    def delay_s(self, repeat: int) -> float:
        return 0.0 if repeat == 1 else self.then_s
