"""Times, spans and money in words, the same in every command."""

import re
from datetime import UTC, datetime, timedelta

from retake.clock import parse_stamp

MAX_WINDOW = timedelta(days=3650)

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LENGTH = re.compile(rf"(\d{{1,6}}) ?({'|'.join(sorted(_UNITS, key=len, reverse=True))})", re.ASCII)


def span(seconds: float) -> str:
    """Return a duration in its two largest units: "45 s", "3 min 20 s", "2 h 5 min", "4 d 3 h"."""
    left = max(0, round(seconds))
    if left < 60:
        return f"{left} s"
    for large, small, size, part in (("min", "s", 60, 1), ("h", "min", 3600, 60), ("d", "h", 86400, 3600)):
        if left < size * {"min": 60, "h": 24, "d": 10**9}[large]:
            rest = left % size // part
            return f"{left // size} {large}" + (f" {rest} {small}" if rest else "")
    raise AssertionError


def window_length(seconds: float) -> str:
    """Return the length of a window in one unit: "90 min", "24 h", "7 d"."""
    for unit, size, most in (("min", 60, 7200), ("h", 3600, 172_800), ("d", 86_400, 10**10)):
        if seconds % size == 0 and seconds < most:
            return f"{seconds / size:g} {unit}"
    return span(seconds)


def moment(when: datetime, now: datetime) -> str:
    """Return a moment for people, in UTC: the time of day, with the date if it is not today's."""
    when = when.astimezone(UTC)
    return f"{when:%H:%M:%S}" if when.date() == now.astimezone(UTC).date() else f"{when:%Y-%m-%d %H:%M:%S}"


def ago(when: datetime, now: datetime) -> str:
    """Return how long ago a moment was, or how long it is until then."""
    if when > now + timedelta(seconds=1):
        return f"in {span((when - now).total_seconds())}"
    return f"{span((now - when).total_seconds())} ago"


def when_due(when: datetime, now: datetime) -> str:
    """Return how long it is until an awaited moment, or that it has come."""
    return ago(when, now) if when > now else "due now"


def usd(amount: float) -> str:
    """Return an amount of US dollars."""
    return f"{amount:.3f} USD"


def read_moment(value: object) -> datetime | None:
    """Return the moment in a document's field, or None if it holds none."""
    try:
        return parse_stamp(value) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


def read_length(text: str) -> timedelta | None:
    """Parse a duration that people type as "90s", "30m", "2h", "2d", "1w"; None for other texts."""
    found = _LENGTH.fullmatch(text.strip())
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]]) if found else None


def read_window(text: str) -> float:
    """Parse a duration that is more than nothing and at most ten years; return it in seconds. Raises ValueError."""
    length = read_length(text)
    if length is None or not timedelta() < length <= MAX_WINDOW:
        way = "write it like 90s, 90m, 24h, 7d or 4w, at most 3650d"
        raise ValueError(f"{one_line(text, 40)!r} is not a length of time; {way}")
    return length.total_seconds()


def one_line(text: object, limit: int = 200) -> str:
    """Return `text` on one line, shortened."""
    words = " ".join(str(text).split())
    return words if len(words) <= limit else words[: limit - 1] + "…"


def with_full_stop(text: str) -> str:
    """Return `text` with a full stop at its end, if it has none and is not empty.

    >>> with_full_stop("PiAPI answered HTTP 401"), with_full_stop("Is the key right?")
    ('PiAPI answered HTTP 401.', 'Is the key right?')
    """
    return f"{text}." if text and not text.endswith((".", "?", "!", "…")) else text


def code_of(record_code: object) -> str:
    """Return an error code without its prefix: "A UNAVAILABLE" for ERR_TEMPORARY_UNAVAILABLE; other texts as is."""
    text = str(record_code or "")
    for prefix, letter in (("ERR_TEMPORARY_", "A"), ("ERR_BUSINESS_", "B"), ("ERR_CRITICAL_", "C")):
        if text.startswith(prefix) and len(text) > len(prefix):
            return f"{letter} {text.removeprefix(prefix)}"
    return text


def size(octets: int) -> str:
    """Return a size in words."""
    for unit, least in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if octets >= least:
            return f"{octets / least:.1f} {unit}"
    return f"{octets} B"
