"""Time as a parameter: whoever waits or stamps takes a `Clock`, so that tests decide what time it is."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """The time of day, and waiting for it to pass."""

    def now(self) -> datetime:
        """The present moment, timezone-aware, in UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Come back when `seconds` have passed."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))


class FakeClock:
    """A clock that stands still until somebody sleeps on it or moves it: for tests and simulations."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self.moment = start

    def now(self) -> datetime:
        return self.moment

    def sleep(self, seconds: float) -> None:
        self.moment += timedelta(seconds=max(0.0, seconds))


def stamp(moment: datetime) -> str:
    """`moment` as documents carry it: ISO 8601, UTC, whole seconds, «Z» at the end."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_stamp(text: str) -> datetime:
    """The moment that `text` names. Raises ValueError for what names none in UTC; a text without a zone is UTC."""
    moment = datetime.fromisoformat(text)
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r} is no time in UTC") from error
