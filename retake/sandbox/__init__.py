"""Stand-ins for the vendors over HTTP on loopback: they speak the real protocols, and fail on demand.

    with Sandbox(pace=Pace(0, 0, 0), quick=True) as sandbox:
        sandbox.order("upscale#1=cut-after")      # carried out and billed, but the answer is lost
        ...                                       # run a program against sandbox.endpoints()
        assert sandbox.bill().lines["upscale"].carried_out == 1

From the shell: python -m retake.sandbox --help. The stand-in for B2 is separate: retake.sandbox.b2.

Each name is imported on first use, so that Ctrl-C while the command loads is handled by `retake.sandbox.__main__`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retake.sandbox.billing import BillLine, VendorBill
    from retake.sandbox.database import RecordedCall
    from retake.sandbox.orders import FAULTS, KINDS, Order, parse_order
    from retake.sandbox.sandbox import (
        ENVIRONMENT,
        Sandbox,
        endpoints,
        music_endpoints,
        sandbox_of_command,
        state_folder,
    )
    from retake.sandbox.task import Pace, VendorTask

__all__ = [
    "ENVIRONMENT",
    "FAULTS",
    "KINDS",
    "BillLine",
    "Order",
    "Pace",
    "RecordedCall",
    "Sandbox",
    "VendorBill",
    "VendorTask",
    "endpoints",
    "music_endpoints",
    "parse_order",
    "sandbox_of_command",
    "state_folder",
]

_MODULES = {
    "billing": ("BillLine", "VendorBill"),
    "database": ("RecordedCall",),
    "orders": ("FAULTS", "KINDS", "Order", "parse_order"),
    "sandbox": ("ENVIRONMENT", "Sandbox", "endpoints", "music_endpoints", "sandbox_of_command", "state_folder"),
    "task": ("Pace", "VendorTask"),
}

if not TYPE_CHECKING:  # with __getattr__, type checkers would accept any name

    def __getattr__(name: str) -> object:
        for module, names in _MODULES.items():
            if name in names:
                return getattr(import_module(f"{__name__}.{module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
