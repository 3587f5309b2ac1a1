"""Parse moments that people type: "2d" ago, or a date."""

from datetime import UTC, date, datetime, timedelta

import click

from retake.operations import words
from retake.operations.words import read_length


def read_since(
    ctx: click.Context | None, param: click.Parameter | None, value: str | None
) -> timedelta | datetime | None:
    """Parse an option's value: a duration ("90s", "30m", "2h", "2d", "1w"), or a moment (ISO 8601, UTC by default). A
    click callback. Raises click.BadParameter."""
    text = (value or "").strip()
    if value is None:
        return None
    if (ago := read_length(text)) is not None:
        return ago
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        way = "say how long ago (90s, 30m, 2h, 2d, 1w), or a date (2026-01-31, 2026-01-31T12:00)"
        raise click.BadParameter(f"{text!r} is not a time; {way}.", ctx, param) from None


def read_window(ctx: click.Context | None, param: click.Parameter | None, value: str | None) -> float | None:
    """Parse a duration ("90m", "24h", "7d") of at most ten years; return it in seconds. A click callback. Raises
    click.BadParameter."""
    if value is None:
        return None
    try:
        return words.read_window(value.strip())
    except ValueError as error:
        raise click.BadParameter(f"{error}.", ctx, param) from None


def read_day(ctx: click.Context | None, param: click.Parameter | None, value: str | None) -> date | None:
    """Parse an option's value as a day. A click callback. Raises click.BadParameter."""
    if value is None:
        return None
    try:
        return date.fromisoformat(value.strip())
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a day; write it like 2026-01-31.", ctx, param) from None


def moment_of(since: timedelta | datetime, now: datetime) -> datetime:
    """Return the moment that `since` means at `now`, or the earliest possible moment if it is before that."""
    if isinstance(since, datetime):
        return since
    try:
        return now - since
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)
