"""Sums over the paid calls of spend records."""

from collections.abc import Collection, Iterable
from math import fsum
from typing import Any, NamedTuple

from retake.operations.words import usd
from retake.paid.bills import Call, price_of
from retake.plural import count

UNSURE = ("unknown", "wasted")
"""Outcomes of a paid call that may have been paid for in vain."""


class PaidSums(NamedTuple):
    """Sums over calls. Money is in millionths of a US dollar, because sums of integers are exact in any order."""

    calls: int = 0
    micro_usd: int = 0
    unsure_calls: int = 0
    unsure_micro_usd: int = 0
    possible_duplicates: int = 0


NO_SUMS = PaidSums()


def sums_document(calls: Collection[Call], further: PaidSums = NO_SUMS) -> dict[str, Any]:
    """Return the JSON document of the sums over `calls`, plus `further` sums."""
    doubtful = unsure(calls)
    return {
        "calls": len(calls) + further.calls,
        "usd": _usd(calls, further.calls, further.micro_usd),
        "unsure_calls": len(doubtful) + further.unsure_calls,
        "unsure_usd": _usd(doubtful, further.unsure_calls, further.unsure_micro_usd),
        "possible_duplicates": _duplicates(calls) + further.possible_duplicates,
    }


def paid_sums(calls: Collection[Call]) -> PaidSums | None:
    """Return the sums over `calls`, or None if a price is not a whole number of millionths."""
    doubtful = unsure(calls)
    micro_usd, doubtful_usd = _micro_usd(calls), _micro_usd(doubtful)
    if micro_usd is None or doubtful_usd is None:
        return None
    return PaidSums(len(calls), micro_usd, len(doubtful), doubtful_usd, _duplicates(calls))


def total_of(sums: Iterable[PaidSums]) -> PaidSums:
    """Return the total of several sums."""
    return PaidSums(*map(sum, zip(NO_SUMS, *sums, strict=True)))


def total_usd(calls: Iterable[Call]) -> float:
    """Return the cost of the calls in US dollars."""
    return _usd(calls, 0, 0)


def paid_in_words(calls: Collection[Call]) -> str:
    """Return the number and the cost of the calls in words, or "" if there are none."""
    return f"{count(len(calls), 'paid call')} ({usd(total_usd(calls))})" if calls else ""


def _usd(calls: Iterable[Call], further: int, micro_usd: int) -> float:
    prices = [price_of(call) for call in calls]
    if further:
        prices.append(micro_usd / 1e6)
    try:
        total = fsum(prices)
    except OverflowError:  # an amount on record is absurd
        total = sum(prices)
    return round(total, 6) if prices else 0


def _micro_usd(calls: Iterable[Call]) -> int | None:
    prices = [1e6 * price_of(call) for call in calls]
    if not all(abs(it) < 1e15 and abs(it - round(it)) < 1e-6 for it in prices):
        return None
    return sum(map(round, prices))


def _duplicates(calls: Iterable[Call]) -> int:
    return sum(bool(call.get("possible_duplicate")) for call in calls)


def unsure(calls: Iterable[Call]) -> list[Call]:
    """Return the calls that were, or may have been, paid for in vain: possible duplicates and useless answers."""
    return [call for call in calls if call.get("possible_duplicate") or call.get("outcome") in UNSURE]
