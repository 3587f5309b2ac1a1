"""Working hours, days and time zones: which channel takes an alert may depend on the time of day."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, NamedTuple

from retake.settings.schema import Rule

WEEK = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60


def _read_by(parse: Callable[[str], object]) -> Callable[[Any], str]:
    """Return a reader, for a Rule, of texts that `parse` accepts."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or len(value) > 64:
            raise ValueError(value)
        parse(value)
        return value

    return read


def days_of(text: str) -> frozenset[int]:
    """Return the days that a text such as "mon-fri" or "mon,wed" names; Monday is 0. Raises ValueError."""
    found: set[int] = set()
    for part in filter(None, (it.strip().lower() for it in text.split(","))):
        first, _, last = part.partition("-")
        start, end = WEEK.index(first), WEEK.index(last or first)
        found |= {day % 7 for day in range(start, end + 1 + (7 if end < start else 0))}
    return frozenset(found)


def minutes_of(text: str) -> int:
    """Return the minutes since midnight of a time of day, "00:00" to "24:00". Raises ValueError."""
    hour, colon, minute = text.partition(":")
    shaped = len(hour) == 2 == len(minute) and (hour + minute).isascii() and (hour + minute).isdigit()
    if colon and shaped and int(minute) < 60 and 60 * int(hour) + int(minute) <= DAY_MINUTES:
        return 60 * int(hour) + int(minute)
    raise ValueError(text)


def zone_of(name: str) -> tzinfo:
    """Return the time zone called `name`. Raises ValueError. The zone database is loaded only if it is not UTC."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(name) from error


DAYS = Rule('days of the week, such as "mon-fri" or "mon,wed"; "" is none', _read_by(days_of))
CLOCK_TIME = Rule('a time of day, "00:00" to "24:00"', _read_by(minutes_of))
TIMEZONE = Rule(
    'a name of the IANA time zone database, such as "UTC" or, where tzdata is installed, "Europe/Berlin"',
    _read_by(zone_of),
)


class WorkingHours(NamedTuple):
    """Days and times of day, as in the settings. Hours that end before they begin extend past midnight, and belong to
    the day on which they begin."""

    days: str = "mon-fri"
    start: str = "09:00"
    end: str = "18:00"

    def hold(self, local: datetime) -> bool:
        """Return whether `local`, a time in the zone of the settings, is within these hours."""
        minute, day, days = 60 * local.hour + local.minute, local.weekday(), days_of(self.days)
        start, end = minutes_of(self.start), minutes_of(self.end)
        if start < end:
            return day in days and start <= minute < end
        return (day in days and minute >= start) or ((day - 1) % 7 in days and minute < end)


def last_due(now: datetime, zone: tzinfo, minute: int, weekday: int | None = None) -> datetime:
    """Return the last time, not after `now`, at which the zone's clock showed `minute`, the minutes since midnight (on
    `weekday`, if given).

    Times are compared in UTC, since an hour of local time occurs twice on the day on which clocks are set back.
    """
    for day, due in _due(now, zone, minute, range(0, -9, -1)):
        if due <= now and (weekday is None or day.weekday() == weekday):
            return due
    raise AssertionError("a week has seven days")


def next_due(now: datetime, zone: tzinfo, minute: int) -> datetime:
    """Return the first time after `now` at which the zone's clock shows `minute`, the minutes since midnight."""
    for _, due in _due(now, zone, minute, range(-1, 3)):
        if due > now:
            return due
    raise AssertionError("no day has more than two days")


def _due(now: datetime, zone: tzinfo, minute: int, days: range) -> Iterator[tuple[datetime, datetime]]:
    """Yield, for each of these days, counted from today, its midnight, and when its clock shows `minute`, in UTC."""
    midnight = now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
    for ahead in days:
        day = midnight + timedelta(days=ahead)
        yield day, (day + timedelta(minutes=minute)).astimezone(UTC)
