"""Sums over paid calls, as spend records have them."""

from collections.abc import Iterable, Mapping
from typing import Any

UNSURE = ("unknown", "wasted")
"""Outcomes of a paid call that may have been paid for in vain."""

Call = Mapping[str, Any]
"""A paid call as it is on record: step, price_usd, outcome, requested_at_utc, …"""


def total_usd(calls: Iterable[Call]) -> float:
    """Return what the calls cost, in US dollars."""
    return round(sum(price_of(call) for call in calls), 6)


def price_of(call: Call) -> float:
    """Return what a call cost, in US dollars."""
    price = call.get("price_usd")
    return float(price) if isinstance(price, (int, float)) and not isinstance(price, bool) else 0.0


def unsure(calls: Iterable[Call]) -> list[Call]:
    """Return the calls that were paid for in vain, or may have been: a possible duplicate, a useless answer."""
    return [call for call in calls if call.get("possible_duplicate") or call.get("outcome") in UNSURE]


def calls_of(record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the paid calls of a spend record or a dead letter's report; what is no call is left out."""
    calls = (record or {}).get("paid_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
