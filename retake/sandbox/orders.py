"""Orders to fail: which calls of a kind meet which fault. A value with a short text form, and nothing else.

    KIND[#CALLS]=FAULT        KIND is one of KINDS, FAULT one of FAULTS or an HTTP status 400–599

    upscale=500               every upscale is refused with the vendor's own error body
    imagine#2=cut-after       the second imagine is carried out and billed, then the connection is cut
    runway#1-3=hang           the first three creations get no answer
    chat#1,4=slow=2.5         the first and the fourth chat call take 2.5 s longer

CALLS counts the calls of that kind from when the order is placed, beginning with 1.
"""

import re
from typing import NamedTuple

from retake.calls import Parts, Span, meets, parse_parts

KINDS = (
    *("imagine", "upscale", "fetch", "runway", "poll", "chat", "download"),
    *("histories", "organization", "account", "models"),
)
CREATING = ("imagine", "upscale", "runway")  # calls that start a task

# What each fault does. None but the HTTP statuses and «slow» take a value.
FAULTS = {
    "cut-before": "the connection is closed before anything is done",
    "cut-after": "carried out and billed, then the connection is closed without an answer",
    "hang": "nothing is done and nothing answered until the client goes away",
    "hang-after": "carried out and billed, but never answered",
    "not-json": "carried out and billed; 200 with an HTML page",
    "no-id": "carried out and billed; 200 with JSON that has no task id",
    "task-failed": "the task is accepted and later ends as failed",
    "task-rejected": "the task is accepted and later ends as rejected by moderation",
    "never-ends": "the task is accepted and stays in work for ever",
    "quota": "refused because the account has no credit left",
}
_TASK_FAULTS = ("no-id", "task-failed", "task-rejected", "never-ends")
_UNDONE = ("cut-before", "hang", "quota")

_STATUS = re.compile(r"([45]\d\d)(-html)?", re.ASCII)
_SLOW = re.compile(r"slow=(\d+(?:\.\d+)?)", re.ASCII)


class VendorFault(NamedTuple):
    """What happens to a call. `name` is a key of FAULTS, «status» or «slow»."""

    name: str
    status: int = 0  # of «status»
    html: bool = False  # of «status»: a gateway's page instead of the vendor's JSON
    seconds: float = 0.0  # of «slow»

    @property
    def carried_out(self) -> bool:
        """Whether the vendor does, and bills, what it was asked."""
        return self.name not in (*_UNDONE, "status")

    def __str__(self) -> str:
        if self.name == "status":
            return f"{self.status}-html" if self.html else f"{self.status}"
        return f"slow={self.seconds:g}" if self.name == "slow" else self.name


class Order(NamedTuple):
    """Calls of `kind` within `spans` meet `fault`; no spans means every call."""

    kind: str
    fault: VendorFault
    spans: tuple[Span, ...] = ()

    def meets(self, n: int) -> bool:
        """Whether call number `n` (from 1, since the order was placed) is meant."""
        return meets(self.spans, n)

    def __str__(self) -> str:
        return str(Parts(self.kind, self.spans, str(self.fault)))


def parse_order(text: str) -> Order:
    """The order that `text` states. Raises ValueError that says what is wrong and what is possible."""
    parts = parse_parts(text)
    if not parts:
        raise ValueError(f"{text!r} is not an order: write KIND[#CALLS]=FAULT, such as upscale#1-2=500. {_possible()}")
    kind, spans, _ = parts
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no kind of call. {_possible()}")
    fault = _fault(parts.fault)
    if fault.name in _TASK_FAULTS and kind not in CREATING:
        raise ValueError(f"{fault} is only possible for calls that start a task: {', '.join(CREATING)}")
    return Order(kind, fault, spans)


def _fault(text: str) -> VendorFault:
    if text in FAULTS:
        return VendorFault(text)
    if status := _STATUS.fullmatch(text):
        return VendorFault("status", status=int(status[1]), html=bool(status[2]))
    if slow := _SLOW.fullmatch(text):
        return VendorFault("slow", seconds=float(slow[1]))
    raise ValueError(f"{text!r} is no fault. {_possible()}")


def _possible() -> str:
    return (
        f"Kinds: {', '.join(KINDS)}. Faults: an HTTP status from 400 to 599 (500), the same as a gateway's page "
        f"(502-html), slow=SECONDS, {', '.join(FAULTS)}."
    )
