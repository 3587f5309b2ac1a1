"""The loop of attempts and pauses behind everything that retries within one call.

for attempt in attempts((0.2, 1.0, 5.0), clock.sleep):
    try:
        return store.save(data)
    except StorageError:
        if attempt.last:
            raise
raise AssertionError("the last attempt returns or raises")
"""

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from itertools import chain, repeat

from retake.clock import Clock, SystemClock


class Attempt:
    """One attempt of several."""

    def __init__(self, pause: float | None, left: Callable[[], float] | None) -> None:
        self.pause = pause
        """Seconds until the next attempt; None if there are no more."""
        self._left = left
        self._answered: bool | None = None

    @property
    def last(self) -> bool:
        """Whether this is the last attempt: there are no more, or the pause would take longer than the time left.

        A caller that gets False is given another attempt, even if the time runs out before the caller asks for it.
        """
        self._answered = self.pause is None or (self._left is not None and self._left() <= self.pause)
        return self._answered

    @property
    def over(self) -> bool:
        """Whether no attempt follows this one. If the caller has read `last`, this has the same value."""
        return self.last if self._answered is None else self._answered

    def wait_at_least(self, seconds: float) -> None:
        """Make the pause after this attempt at least `seconds` long, as a server may ask in Retry-After."""
        if self.pause is not None:
            self.pause = max(self.pause, seconds)
            self._answered = None


def attempts(
    pauses: Iterable[float], sleep: Callable[[float], object], *, left: Callable[[], float] | None = None
) -> Iterator[Attempt]:
    """Yield one attempt more than there are `pauses` (seconds), and call `sleep` between them.

    `left()` returns how many seconds are left for further attempts. Without it only `pauses` bounds their number.
    """
    for pause in chain[float | None](pauses, (None,)):
        attempt = Attempt(pause, left)
        yield attempt
        if attempt.over or attempt.pause is None:
            return
        sleep(attempt.pause)


def repeating(*pauses: float) -> Iterator[float]:
    """Yield `pauses`, then the last of them for ever, for attempts that are bounded by time."""
    return chain(pauses, repeat(pauses[-1]))


def countdown(seconds: float, clock: Clock) -> Callable[[], float]:
    """Return a function that returns how many of `seconds`, counted from this call, are left.

    Setting the clock back does not add to them; see `steady`.
    """
    now = steady(clock)
    began = now()
    return lambda: seconds - (now() - began).total_seconds()


def steady(clock: Clock) -> Callable[[], datetime]:
    """Return a function that returns the time of `clock`, and never goes back.

    Setting the machine's own clock has no effect, since its monotonic clock is used. If another clock is set back, the
    time continues from where it was. Use this for times that are only compared with one another.
    """
    moment = seen = clock.now()
    if isinstance(clock, SystemClock):
        began_s = time.monotonic()
        return lambda: moment + timedelta(seconds=time.monotonic() - began_s)

    def now() -> datetime:
        nonlocal moment, seen
        present = clock.now()
        moment, seen = moment + max(timedelta(0), present - seen), present
        return moment

    return now
