"""Numbers in vendors' answers: the one place where they are read. Pure."""

LARGEST = 1e15
"""Beyond it no credit, percentage or count can be meant."""


def number(value: object) -> float | None:
    """The number that `value` is, or that a text states ("40", "40 %"); None for anything else.

    No number is: true and false, NaN, infinity, and what is larger than `LARGEST`. An int stays an int.
    """
    if isinstance(value, str):
        value = _stated(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) <= LARGEST else None  # which NaN is not


def count(value: object) -> int | None:
    """The whole number that `value` is, however it is written (12, 12.0); None for anything else."""
    found = number(value)
    return int(found) if found is not None and found == int(found) and not isinstance(value, str) else None


def _stated(text: str) -> float | None:
    if len(text) > 40:  # longer than any number that is meant, and Python's own limit is on the digits of an int alone
        return None
    try:
        return float(text.strip().removesuffix("%"))
    except ValueError:
        return None
