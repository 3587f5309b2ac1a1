"""Time as a parameter: code that waits or takes timestamps gets a `Clock`, so that tests control the time."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

CLOCKS_DIFFER = timedelta(minutes=5)
"""The maximum difference between the clocks of machines that share a bucket or a ledger, unless one is wrong."""


class Clock(Protocol):
    """Tells the time, and waits."""

    def now(self) -> datetime:
        """Return the current time, timezone-aware, in UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...


class SystemClock:
    """The machine's own clock.

    >>> SystemClock().now().tzinfo
    datetime.timezone.utc
    """

    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`, or at once if that is 0 or less.

        >>> SystemClock().sleep(0)
        """
        time.sleep(max(0.0, seconds))


class FakeClock:
    """A clock for tests and simulations that advances only when `sleep` is called or `moment` is set."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self.moment = start

    def now(self) -> datetime:
        return self.moment

    def sleep(self, seconds: float) -> None:
        self.moment += timedelta(seconds=max(0.0, seconds))


def wait(clock: Clock, seconds: float, stop: Callable[[], bool] | None, *, ask_every_s: float = 1.0) -> float:
    """Sleep for `seconds`, or until `stop()`, called every `ask_every_s`, is true. Return the seconds slept."""
    slept, longest = 0.0, seconds if stop is None else ask_every_s
    while slept < seconds and not (stop and stop()):
        part = min(longest, seconds - slept)
        clock.sleep(part)
        slept += part
    return slept


def is_ahead(moment: datetime, now: datetime, *, longest_s: float) -> bool:
    """Return whether a wait until `moment` is still on.

    Such a wait lasts at most `longest_s` seconds. A moment more than twice as far ahead was written by a wrong clock,
    and is not waited for.

    >>> now = datetime(2026, 1, 1, tzinfo=UTC)
    >>> is_ahead(now + timedelta(seconds=60), now, longest_s=60)
    True
    >>> is_ahead(now + timedelta(days=365), now, longest_s=60)
    False
    """
    return 0 < (moment - now).total_seconds() <= 2 * longest_s


def stamp(moment: datetime) -> str:
    """Return `moment` as written in documents: ISO 8601, UTC, whole seconds, "Z" at the end."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def exact_stamp(moment: datetime) -> str:
    """Return `moment` as `stamp` does, but with microseconds, for states whose times are compared."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def parse_stamp(text: str) -> datetime:
    """Return the time in `text` (ISO 8601; UTC if it has no zone). Raises ValueError."""
    moment = datetime.fromisoformat(text)
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r} is not a time in UTC") from error
