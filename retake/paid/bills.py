"""Reads the paid calls in documents, spend records and dead letters, tolerantly, since people edit these."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from retake.clock import parse_stamp

Call = Mapping[str, Any]
"""A paid call on record: step, price_usd, outcome, requested_at_utc, …"""


def calls_of(record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the paid calls of a document, a spend record or a dead letter's report, leaving out what is not an object.

    >>> calls_of({"paid_calls": [{"step": "imagine"}, None]})
    [{'step': 'imagine'}]
    """
    calls = (record or {}).get("paid_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def price_of(call: Call) -> float:
    """Return the price of a call in US dollars, or 0 if the record has none that is a finite amount."""
    return amount_of(call.get("price_usd")) or 0.0


def amount_of(value: object) -> float | None:
    """Return `value`, from a document, as an amount of US dollars, or None if it is not one.

    >>> amount_of(0.5), amount_of(10**400), amount_of("0.5"), amount_of(True)
    (0.5, None, None, None)
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:
        return None


def day_of(call: Call) -> str:
    """Return the day (UTC) on which the call counts, or "" if the record does not say.

    That is the day on which it was requested, or a later one if that was the latest on record then.

    >>> day_of({"requested_at_utc": "2026-01-31T23:00:00-02:00"})
    '2026-02-01'
    >>> day_of({"requested_at_utc": "2026-01-31T09:30:00Z", "counted_on": "2026-02-30"})  # there is no such day
    '2026-01-31'
    """
    if isinstance(counted := call.get("counted_on"), str):
        from retake.paid.day_book import is_day  # few calls have this key, and ticks do without the import

        if is_day(counted):
            return counted
    try:
        return parse_stamp(call["requested_at_utc"]).date().isoformat()  # strftime is slow, and there may be 80,000
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        return ""


def step_of(call: Call) -> str:
    """Return the step that made the call, or "" if the record does not say."""
    return str(call.get("step") or "")
