"""Stand-ins of the vendors that speak the real wire protocols over HTTP on loopback, and fail to order.

    with Sandbox(pace=Pace(0, 0, 0), quick=True) as sandbox:
        sandbox.order("upscale#1=cut-after")      # carried out and billed, but the answer is lost
        ...                                       # run a program against sandbox.endpoints()
        assert sandbox.bill().lines["upscale"].carried_out == 1

From the shell: python -m retake.sandbox --help. The rooms:

    sandbox    what programs use          orders    the grammar of faults
    server     sockets                    books     calls, tasks, orders, files, in SQLite
    desk       a call, start to end       bill      what the vendors would ask for
    routes     paths                      task      how a task stands at a moment
    piapi  legnext  runway  chat          the vendors, as values in and values out
    studio  pictures  film                what Midjourney and Runway make
    landscape  scene  sky  hills  water  scenery  palette  noise  brush    how it is painted
    posts  topics  topics_en  topics_ru    what the chat API writes
"""

from retake.sandbox.billing import BillLine, VendorBill
from retake.sandbox.database import RecordedCall
from retake.sandbox.orders import FAULTS, KINDS, Order, parse_order
from retake.sandbox.sandbox import ENVIRONMENT, Sandbox, endpoints
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
    "parse_order",
]
