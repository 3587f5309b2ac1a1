"""Moments as people type them: "2d" ago, or a date."""

import re
from datetime import UTC, datetime, timedelta

import click

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGO = re.compile(rf"(\d{{1,6}}) ?({'|'.join(sorted(_UNITS, key=len, reverse=True))})")


def read_since(
    ctx: click.Context | None, param: click.Parameter | None, value: str | None
) -> timedelta | datetime | None:
    """Return the length of time ("90s", "30m", "2h", "2d", "1w") or the moment (ISO 8601, UTC unless it says otherwise)
    that an option's value means. A callback of click. Raises click.BadParameter."""
    text = (value or "").strip()
    if value is None:
        return None
    if ago := _AGO.fullmatch(text):
        return timedelta(seconds=int(ago[1]) * _UNITS[ago[2]])
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        way = "say how long ago (90s, 30m, 2h, 2d, 1w), or a date (2026-01-31, 2026-01-31T12:00)"
        raise click.BadParameter(f"{text!r} is no time; {way}.", ctx, param) from None


def read_window(ctx: click.Context | None, param: click.Parameter | None, value: str | None) -> float | None:
    """Return the seconds of a length of time ("90m", "24h", "7d"): more than nothing, and ten years at most. A callback
    of click. Raises click.BadParameter."""
    if value is None:
        return None
    length = _length(value.strip())
    if length is None or not timedelta() < length <= LONGEST_WINDOW:
        way = "say how long (90s, 90m, 24h, 7d, 4w), at most 3650d"
        raise click.BadParameter(f"{value.strip()!r} is no length of time; {way}.", ctx, param)
    return length.total_seconds()


LONGEST_WINDOW = timedelta(days=3650)


def _length(text: str) -> timedelta | None:
    found = _AGO.fullmatch(text)
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]]) if found else None


def moment_of(since: timedelta | datetime, now: datetime) -> datetime:
    """Return the moment that is meant, at `now`. What lies before all time is the beginning of it."""
    if isinstance(since, datetime):
        return since
    try:
        return now - since
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)
