"""The price of a call to B2, by Backblaze's three classes.

Source: backblaze.com/cloud-storage/transaction-pricing. Class A is free. Of classes B and C the first 2,500 calls a day
are free; after that 10,000 of class B cost $0.004, as do 1,000 of class C. The day begins at 00:00 UTC.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

PriceClass = Literal["A", "B", "C"]

_CLASS_A = (
    "b2_cancel_large_file",
    "b2_delete_bucket",
    "b2_delete_file_version",
    "b2_delete_key",
    "b2_finish_large_file",
    "b2_get_upload_part_url",
    "b2_get_upload_url",
    "b2_hide_file",
    "b2_start_large_file",
    "b2_update_file_legal_hold",
    "b2_update_file_retention",
    "b2_upload_file",
    "b2_upload_part",
)
_CLASS_B = ("b2_download_file_by_id", "b2_download_file_by_name", "b2_get_file_info")

FREE_A_DAY = 2500  # calls of class B, and as many of class C
DOLLARS: Mapping[PriceClass, float] = {"A": 0.0, "B": 0.004 / 10_000, "C": 0.004 / 1_000}  # for one call beyond that


def price_class(call: str) -> PriceClass:
    """Return the class of the native API's `call` ("b2_list_file_versions"). Unknown calls count as the dearest."""
    return "A" if call in _CLASS_A else "B" if call in _CLASS_B else "C"


def by_class(calls: Iterable[str]) -> dict[PriceClass, int]:
    """Count `calls` by class."""
    classes = [price_class(call) for call in calls]
    return {name: classes.count(name) for name in DOLLARS}
