"""Rates as percentages, for people."""


def percent(rate: float | None, unknown: str = "–") -> str:
    """Return a rate as a percentage, or `unknown` for None. Only 1 is shown as 100.0 %, and only 0 as 0.0 %.

    >>> percent(0.5), percent(0.9999), percent(None, "unknown")
    ('50.0 %', '>99.9 %', 'unknown')
    """
    if rate is None:
        return unknown
    shown = f"{100 * rate:.1f}"
    if shown == "100.0" and rate < 1:
        return ">99.9 %"
    return "<0.1 %" if shown == "0.0" and rate > 0 else f"{shown} %"
