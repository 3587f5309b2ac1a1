"""Stand-ins of the vendors over HTTP on loopback: they speak the real protocols, and fail when ordered to.

    with Sandbox(pace=Pace(0, 0, 0), quick=True) as sandbox:
        sandbox.order("upscale#1=cut-after")      # carried out and billed, but the answer is lost
        ...                                       # run a program against sandbox.endpoints()
        assert sandbox.bill().lines["upscale"].carried_out == 1

From the shell: python -m retake.sandbox --help. The stand-in of B2 is separate: retake.sandbox.b2.
"""

from retake.sandbox.billing import BillLine, VendorBill
from retake.sandbox.database import RecordedCall
from retake.sandbox.orders import FAULTS, KINDS, Order, parse_order
from retake.sandbox.sandbox import ENVIRONMENT, Sandbox, endpoints, music_endpoints, sandbox_of_command, state_folder
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
