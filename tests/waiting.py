"""Waiting for what a process, a thread or a server is about to do."""

import time
from collections.abc import Callable
from typing import TypeVar

LONG_S = 150.0
"""A guard against hanging, not a measure: however busy the machine, nothing takes so long."""

_T = TypeVar("_T")


def eventually(look: Callable[[], _T], seconds: float = LONG_S) -> _T:
    """Return what `look` returns, once it is something; fail after `seconds`.

    The pause between two looks begins with 10 ms and grows with the time waited, up to a quarter of a second: a look
    may ask a server or read all of /proc, and a hundred of them a second keep the processor from what is waited for.
    """
    begun = time.monotonic()
    while not (found := look()):
        waited = time.monotonic() - begun
        assert waited < seconds, "waited for in vain"
        time.sleep(min(0.01 + waited / 10, 0.25))
    return found
