"""Parses orders for calls to fail, KIND[#CALLS]=FAULT, and counts calls.

    upscale=500         every call of the kind "upscale"
    imagine#2=500       the second
    job#1-3,5=timeout   the first three, and the fifth

Calls are counted from 1. Kinds and faults are defined by the users of this module: the sandbox (retake.sandbox.orders)
and failure injection (retake.runs.failure_injection).
"""

import threading
from collections import Counter
from typing import NamedTuple


class Span(NamedTuple):
    """The calls `first` … `last`, both included, counted from 1."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


class Parts(NamedTuple):
    """The parts of an order. Kind and fault are not checked yet."""

    kind: str
    spans: tuple[Span, ...]  # empty: every call
    fault: str

    def __str__(self) -> str:
        calls = "#" + ",".join(map(str, self.spans)) if self.spans else ""
        return f"{self.kind}{calls}={self.fault}"


class CallCounter:
    """Counts the calls of each kind. Thread safe."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def next(self, kind: str) -> int:
        """Count a call of this kind and return its number, from 1."""
        with self._lock:
            self._counts[kind] += 1
            return self._counts[kind]


def meets(spans: tuple[Span, ...], n: int) -> bool:
    """Return whether call number `n` (from 1) is in `spans`; no spans means every call."""
    return not spans or any(span.first <= n <= span.last for span in spans)


def parse_parts(text: str) -> Parts | None:
    """Return the parts of an order, or None if it is not KIND[#CALLS]=FAULT. Raises ValueError for invalid CALLS."""
    head, equals, fault = text.partition("=")
    kind, hash_, calls = head.partition("#")
    kind, fault = kind.strip(), fault.strip()
    if not equals or not fault or not kind or any(char.isspace() for char in kind):
        return None
    return Parts(kind, parse_spans(calls) if hash_ else (), fault)


def parse_spans(text: str) -> tuple[Span, ...]:
    """Return the spans in a text such as "1-3,5". Raises ValueError, whose message says what is wrong."""
    return tuple(_span(part) for part in text.split(","))


def _span(text: str) -> Span:
    first, _, last = (part.strip() for part in text.partition("-"))
    if not all(_is_number(number) for number in ([first, last] if "-" in text else [first])):
        raise ValueError(f"{text!r} is not a call number: write N or N-M, counted from 1, several with commas between")
    span = Span(int(first), int(last or first))
    if span.last < span.first:
        raise ValueError(f"{text.strip()!r} ends before it begins: write {span.last}-{span.first}")
    return span


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and not text.startswith("0") and len(text) < 10
