"""Sums over paid calls, as spend records have them."""

from collections.abc import Collection, Iterable, Mapping
from math import fsum, isfinite
from typing import Any, NamedTuple

from retake.operations.words import read_moment, usd
from retake.plural import count

UNSURE = ("unknown", "wasted")
"""Outcomes of a paid call that may have been paid for in vain."""

Call = Mapping[str, Any]
"""A paid call as it is on record: step, price_usd, outcome, requested_at_utc, …"""


class PaidSums(NamedTuple):
    """What calls come to. Money is in millionths of a US dollar: sums of whole numbers are exact in any order."""

    calls: int = 0
    micro_usd: int = 0
    unsure_calls: int = 0
    unsure_micro_usd: int = 0
    possible_duplicates: int = 0


NO_SUMS = PaidSums()


def sums_document(calls: Collection[Call], further: PaidSums = NO_SUMS) -> dict[str, Any]:
    """Return what the calls, and `further` ones, come to, as JSON has it."""
    doubtful = unsure(calls)
    return {
        "calls": len(calls) + further.calls,
        "usd": _usd(calls, further.calls, further.micro_usd),
        "unsure_calls": len(doubtful) + further.unsure_calls,
        "unsure_usd": _usd(doubtful, further.unsure_calls, further.unsure_micro_usd),
        "possible_duplicates": _duplicates(calls) + further.possible_duplicates,
    }


def paid_sums(calls: Collection[Call]) -> PaidSums | None:
    """Return what the calls come to; None where a price is not a whole number of millionths."""
    doubtful = unsure(calls)
    micro_usd, doubtful_usd = _micro_usd(calls), _micro_usd(doubtful)
    if micro_usd is None or doubtful_usd is None:
        return None
    return PaidSums(len(calls), micro_usd, len(doubtful), doubtful_usd, _duplicates(calls))


def added(sums: Iterable[PaidSums]) -> PaidSums:
    """Return what the sums add up to."""
    return PaidSums(*map(sum, zip(NO_SUMS, *sums, strict=True)))


def total_usd(calls: Iterable[Call]) -> float:
    """Return what the calls cost, in US dollars."""
    return _usd(calls, 0, 0)


def paid_in_words(calls: Collection[Call]) -> str:
    """Return how many calls there are and what they cost, in words; "" for none."""
    return f"{count(len(calls), 'paid call')} ({usd(total_usd(calls))})" if calls else ""


def _usd(calls: Iterable[Call], further: int, micro_usd: int) -> float:
    prices = [price_of(call) for call in calls]
    if further:
        prices.append(micro_usd / 1e6)
    try:
        total = fsum(prices)
    except OverflowError:  # what is on record is no money
        total = sum(prices)
    return round(total, 6) if prices else 0


def _micro_usd(calls: Iterable[Call]) -> int | None:
    prices = [1e6 * price_of(call) for call in calls]
    if not all(abs(it) < 1e15 and abs(it - round(it)) < 1e-6 for it in prices):
        return None
    return sum(map(round, prices))


def _duplicates(calls: Iterable[Call]) -> int:
    return sum(bool(call.get("possible_duplicate")) for call in calls)


def price_of(call: Call) -> float:
    """Return what a call cost, in US dollars; 0 where the record has no amount, or one that no float can be."""
    price = call.get("price_usd")
    if not isinstance(price, (int, float)) or isinstance(price, bool):
        return 0.0
    try:
        return float(price) if isfinite(price) else 0.0
    except OverflowError:
        return 0.0


def day_of(call: Call) -> str:
    """Return the day (UTC) on which the call counts: the one on which it was requested, or a later one that was the
    latest on record; "" where the record does not say."""
    if isinstance(counted := call.get("counted_on"), str):
        return counted
    asked = read_moment(call.get("requested_at_utc"))
    return asked.date().isoformat() if asked else ""  # ten times as fast as strftime; a page may have 80,000 calls


def step_of(call: Call) -> str:
    """Return the step that made the call; "" where the record does not say."""
    return str(call.get("step") or "")


def unsure(calls: Iterable[Call]) -> list[Call]:
    """Return the calls that were paid for in vain, or may have been: a possible duplicate, a useless answer."""
    return [call for call in calls if call.get("possible_duplicate") or call.get("outcome") in UNSURE]


def calls_of(record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the paid calls of a spend record or a dead letter's report; what is no call is left out."""
    calls = (record or {}).get("paid_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
