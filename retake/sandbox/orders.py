"""Orders of faults: which calls of a kind get which fault, as a value with a short text form.

    KIND[#CALLS]=FAULT        KIND is one of KINDS, FAULT one of FAULTS or an HTTP status from 400 to 599

    upscale=500               every upscale is refused with the vendor's own error body
    imagine#2=cut-after       the second imagine is carried out and billed, then the connection is cut
    runway#1-3=hang           the first three creations get no answer
    chat#1,4=slow=2.5         the first and the fourth chat call take 2.5 s longer
    upload.put#2=cut-midway   half of the second chunk arrives
    thumbnail=403-rateLimitExceeded   every thumbnail is refused with that reason, one of YouTube's

CALLS counts the calls of that kind since the order was placed, from 1.
"""

import re
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple

from retake.calls import CallCounter, Parts, Span, meets, parse_parts

KINDS = (
    *("imagine", "upscale", "fetch", "runway", "poll", "chat", "download"),
    *("histories", "organization", "account", "models"),
    *("slack", "pagerduty", "sms", "telegram", "webhook"),
    *("updates", "token", "youtube", "upload.start", "upload.put", "upload.ask", "thumbnail"),
)
CREATING = ("imagine", "upscale", "runway")  # calls that start a task

# What each fault does. Only HTTP statuses and "slow" take a value.
FAULTS = {
    "cut-before": "the connection is closed before anything is done",
    "cut-after": "carried out and billed, then cut without an answer",
    "hang": "nothing is done or answered until the client disconnects",
    "hang-after": "carried out and billed, but never answered",
    "not-json": "carried out and billed; 200 with an HTML page",
    "no-id": "carried out and billed; 200 with JSON that has no task id",
    "task-failed": "the task is accepted and later fails",
    "task-rejected": "the task is accepted and later rejected by moderation",
    "never-ends": "the task is accepted and stays in progress forever",
    "quota": "refused because the account has no credit left",
}
UPLOAD_FAULTS = {"cut-midway": "half of a chunk arrives, then a cut (upload.put alone)"}
YOUTUBE = ("youtube", "upload.start", "upload.put", "upload.ask", "thumbnail")  # calls that can fail with a reason
TASK_FAULTS = ("task-failed", "task-rejected", "never-ends")
SILENT_FAULTS = ("cut-before", "cut-after", "cut-midway", "hang", "hang-after")  # the client gets no answer
_NOT_CARRIED_OUT = ("cut-before", "hang", "quota", "status")

_STATUS = re.compile(r"([45]\d\d)(-html)?(?:-([a-z]+[A-Z][A-Za-z]+))?", re.ASCII)
_SLOW = re.compile(r"slow=(\d+(?:\.\d+)?)", re.ASCII)


class VendorFault(NamedTuple):
    """What happens to a call. `name` is a key of FAULTS or UPLOAD_FAULTS, or "status" or "slow"."""

    name: str
    status: int = 0  # of "status"
    html: bool = False  # of "status": a gateway's page instead of the vendor's JSON
    seconds: float = 0.0  # of "slow"
    reason: str = ""  # of "status": YouTube's name for the error

    @property
    def carried_out(self) -> bool:
        """Whether the vendor does what it was asked to do, and bills it."""
        return self.name not in _NOT_CARRIED_OUT

    def __str__(self) -> str:
        if self.name == "status":
            return f"{self.status}-html" if self.html else f"{self.status}-{self.reason}".rstrip("-")
        return f"slow={self.seconds:g}" if self.name == "slow" else self.name


class Order(NamedTuple):
    """Calls of `kind` within `spans` get `fault`; without spans, every call does."""

    kind: str
    fault: VendorFault
    spans: tuple[Span, ...] = ()

    def meets(self, n: int) -> bool:
        """Return whether the order applies to call number `n`, counted from 1 since it was placed."""
        return meets(self.spans, n)

    def __str__(self) -> str:
        return str(Parts(self.kind, self.spans, str(self.fault)))


def parse_order(text: str) -> Order:
    """Parse KIND[#CALLS]=FAULT. Raises ValueError, which says what is wrong and what is possible."""
    parts = parse_parts(text)
    if not parts:
        raise ValueError(f"{text!r} is not an order: write KIND[#CALLS]=FAULT, such as upscale#1-2=500. {_possible()}")
    kind, spans, _ = parts
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not a kind of call. {_possible()}")
    fault = parse_fault(parts.fault)
    if fault.name in ("no-id", *TASK_FAULTS) and kind not in CREATING:
        raise ValueError(f"{fault} is only possible for calls that start a task: {', '.join(CREATING)}")
    if fault.name in UPLOAD_FAULTS and kind != "upload.put":
        raise ValueError(f"{fault} is only possible for a chunk of an upload: upload.put")
    if fault.reason and kind not in YOUTUBE:
        raise ValueError(f"a reason is only possible for calls of YouTube: {', '.join(YOUTUBE)}")
    return Order(kind, fault, spans)


def parse_fault(text: str) -> VendorFault:
    """Parse the part of an order after "=". Raises ValueError."""
    if text in FAULTS or text in UPLOAD_FAULTS:
        return VendorFault(text)
    if (status := _STATUS.fullmatch(text)) and not (status[2] and status[3]):
        return VendorFault("status", status=int(status[1]), html=bool(status[2]), reason=status[3] or "")
    if slow := _SLOW.fullmatch(text):
        return VendorFault("slow", seconds=float(slow[1]))
    raise ValueError(f"{text!r} is not a fault. {_possible()}")


def _possible() -> str:
    return (
        f"Kinds: {', '.join(KINDS)}. Faults: an HTTP status from 400 to 599 (500), the same as a gateway's page "
        f"(502-html), one with a reason of YouTube's (403-quotaExceeded), slow=SECONDS, "
        f"{', '.join([*FAULTS, *UPLOAD_FAULTS])}. Several orders are given one by one."
    )


class OrderGrammar(NamedTuple):
    """The grammar KIND[#CALLS]=FAULT for a stand-in with its own kinds of call."""

    vendor: str
    kinds: tuple[str, ...]
    faults: Collection[str]  # its own
    shared: Collection[str]  # those from FAULTS, besides HTTP statuses and slow=SECONDS

    def parse(self, text: str) -> Order:
        """Parse an order. Raises ValueError, which says what is wrong and what is possible."""
        parts = parse_parts(text)
        if not parts or parts.kind not in self.kinds:
            raise ValueError(f"{parts.kind if parts else text!r} is not a kind of call. {self._possible()}")
        return Order(parts.kind, self._fault(parts.fault), parts.spans)

    def _fault(self, text: str) -> VendorFault:
        if text in self.faults:
            return VendorFault(text)
        with suppress(ValueError):
            fault = parse_fault(text)
            if fault.name in (*self.shared, "slow") or (fault.name == "status" and not fault.reason):
                return fault
        raise ValueError(f"{text!r} is not a fault of {self.vendor}. {self._possible()}")

    def _possible(self) -> str:
        faults = ", ".join((*self.shared, *self.faults))
        kinds = ", ".join(self.kinds)
        return f"Kinds: {kinds}. Faults: an HTTP status from 400 to 599 (502-html), slow=SECONDS, {faults}."


class PlacedOrders:
    """The orders of a stand-in that keeps them in memory. Thread safe."""

    def __init__(self, parse: Callable[[str], Order]) -> None:
        self._parse, self._lock = parse, threading.Lock()
        self._placed: list[tuple[Order, CallCounter]] = []

    def place(self, text: str) -> Order:
        """Place an order; the newest that matches a call applies. Raises ValueError."""
        order = self._parse(text)
        with self._lock:
            self._placed.append((order, CallCounter()))
        return order

    def withdraw(self) -> None:
        """Drop all orders: no call fails from now on."""
        with self._lock:
            self._placed.clear()

    def texts(self) -> list[str]:
        """Return the orders in their text form."""
        with self._lock:
            return [str(order) for order, _ in self._placed]

    def fault(self, kind: str) -> VendorFault | None:
        """Count a call, and return the fault ordered for it."""
        with self._lock:
            counted = [(order, seen.next(kind)) for order, seen in self._placed if order.kind == kind]
        return next((order.fault for order, n in reversed(counted) if order.meets(n)), None)
