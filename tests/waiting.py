"""Wait for something that a process, thread or server is about to do."""

import time
from collections.abc import Callable
from typing import TypeVar

LONG_S = 150.0
"""A guard against hanging, not a measurement: nothing takes this long, however busy the machine is."""

_T = TypeVar("_T")


def eventually(look: Callable[[], _T], seconds: float = LONG_S) -> _T:
    """Return the result of `look` once it is true; fail after `seconds`.

    The pause between two calls of `look` starts at 10 ms and grows with the time waited, up to a quarter of a second:
    `look` may ask a server or read all of /proc, and a hundred calls a second would slow down what is waited for.
    """
    begun = time.monotonic()
    while not (found := look()):
        waited = time.monotonic() - begun
        assert waited < seconds, "waited too long"
        time.sleep(min(0.01 + waited / 10, 0.25))
    return found
