"""Paid calls as documents, spend records and dead letters have them, read tolerantly: people edit these."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from retake.clock import parse_stamp

Call = Mapping[str, Any]
"""A paid call as it is on record: step, price_usd, outcome, requested_at_utc, …"""


def calls_of(record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the paid calls of a document, a spend record or a dead letter's report; what is not an object is left out.

    >>> calls_of({"paid_calls": [{"step": "imagine"}, None]})
    [{'step': 'imagine'}]
    """
    calls = (record or {}).get("paid_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def price_of(call: Call) -> float:
    """Return what a call cost, in US dollars; 0 where the record has no amount, or one that no float can be."""
    return amount_of(call.get("price_usd")) or 0.0


def amount_of(value: object) -> float | None:
    """Return the amount of US dollars that a document has somewhere, or None where that is none.

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
    """Return the day (UTC) on which the call counts: the one on which it was requested, or a later one that was the
    latest on record; "" where the record does not say."""
    if isinstance(counted := call.get("counted_on"), str):
        return counted
    try:
        return parse_stamp(call["requested_at_utc"]).date().isoformat()  # a page may have 80,000: strftime is slow
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        return ""


def step_of(call: Call) -> str:
    """Return the step that made the call; "" where the record does not say."""
    return str(call.get("step") or "")
