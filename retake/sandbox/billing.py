"""What the vendors would charge, at the prices of 2026, in mills (1/1000 USD) so that sums are exact."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from retake.sandbox.database import RecordedCall
from retake.sandbox.task import TaskStatus, VendorTask

# PiAPI, by process_mode. The price of an upscale is an assumption.
IMAGINE = MappingProxyType({"relax": 15, "fast": 45, "turbo": 100})
UPSCALE = 10
POINTS_PER_MILL = 10_000  # PiAPI's unit in meta.usage
# Runway: credits per second, and the price of a credit.
RUNWAY_CREDITS = MappingProxyType({"gen4_turbo": 5, "gen4.5": 12})
CREDIT = 10
CHAT = 10  # for one call, as the story counts it, so that the bill of a demo is the sum that `spend` shows
# LegNext, by the flag in the text. A point is worth $0.001; only the fast price is documented.
LEGNEXT_IMAGINE = MappingProxyType({"relax": 40, "fast": 80, "turbo": 160})
LEGNEXT_UPSCALE = 80
LEGNEXT_POINTS_PER_MILL = 1


@dataclass(frozen=True)
class BillLine:
    """The calls of one kind. `price` is in USD, less the refunds for failed tasks."""

    calls: int
    carried_out: int
    price: Decimal

    @property
    def counts(self) -> str:
        """The number of calls, padded for a column: "  1 call,    1 carried out"."""
        calls = f"{self.calls:>3} {'call' if self.calls == 1 else 'calls'},"
        return f"{calls:<10} {self.carried_out:>3} carried out"


@dataclass(frozen=True)
class VendorBill:
    """What the vendors would charge so far, by kind of call."""

    lines: dict[str, BillLine]

    @property
    def total(self) -> Decimal:
        """The sum in USD."""
        return sum((line.price for line in self.lines.values()), Decimal(0))

    def as_json(self) -> dict[str, Any]:
        lines = {
            kind: {"calls": line.calls, "carried_out": line.carried_out, "price_usd": float(line.price)}
            for kind, line in self.lines.items()
        }
        return {"lines": lines, "total_usd": float(self.total)}


def point_usage(task: VendorTask, status: TaskStatus, points_per_mill: int) -> dict[str, Any]:
    """Return the meta.usage field of PiAPI and LegNext: points are frozen until the task ends, then used or
    released."""
    points = task.price * points_per_mill
    frozen, used = 0 if status.ended else points, points if status.completed else 0
    return {"type": "point", "frozen": frozen, "consume": used}


def bill(calls: Iterable[RecordedCall], tasks: Iterable[VendorTask], now: float) -> VendorBill:
    """Return the bill for `calls` at `now` (seconds since the epoch), with failed tasks refunded."""
    owed = {task.id: Decimal(task.owed(now)) / 1000 for task in tasks}
    lines: dict[str, BillLine] = {}
    for call in calls:
        price = owed.get(call.task_id, call.price) if call.price else call.price
        line = lines.get(call.kind, BillLine(0, 0, Decimal(0)))
        lines[call.kind] = BillLine(line.calls + 1, line.carried_out + call.carried_out, line.price + price)
    return VendorBill(lines)
