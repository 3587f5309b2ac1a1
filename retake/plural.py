"""Counts with their noun, for messages."""


def count(number: int, thing: str) -> str:
    """Return "1 call", "2 calls".

    >>> count(1, "message"), count(0, "message")
    ('1 message', '0 messages')
    """
    return f"{number} {thing}{'s' * (number != 1)}"
