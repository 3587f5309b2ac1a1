"""What stands between text from outside (a vendor's message, a document, a listing) and whatever shows it.

A terminal obeys control characters (ESC, BEL, U+009B), readers of lines break at some (U+0085, U+2028), and some turn
around what is read (U+202E) or cannot be seen at all (U+200B). Everything that leaves for a terminal, a log or a page
passes through one of these functions. Letters of every script stay.
"""

from functools import cache


def one_line(text: str) -> str:
    """`text` on one line, a space for each character that rules or cannot be seen, none at its end."""
    return several_lines(text).replace("\n", " ").rstrip()


def several_lines(text: str) -> str:
    """`text` with a space for each character that rules or cannot be seen, but for the line feeds."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)


def json_lines(text: str) -> str:
    r"""The same JSON as `text`, with an escape (\u202e) for each character in it that rules or cannot be seen."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else _escape(sign) for sign in text)


@cache
def _escape(sign: str) -> str:
    from json import dumps

    return dumps(sign)[1:-1]
