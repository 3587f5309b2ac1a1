"""The dead-man's switch: the kernel ends this process when its lease is over.

A process that was frozen between asking whether the lease is still its own and acting on the answer would act when it
wakes, however late. With the timer set, the signal is delivered before one more instruction of its own. A paused
virtual machine's clock stands still, so that is not seen.
"""

import signal
from collections.abc import Callable
from contextlib import suppress

Switch = Callable[[float], None]


def set_switch(seconds: float) -> None:
    """End this process in so many seconds (SIGALRM, not handled), instead of what was set before; 0 means never."""
    if seconds and signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        with suppress(ValueError):  # only the main thread may, and it is the one that sets the switch first
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
    if seconds:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, seconds)


def no_switch(seconds: float) -> None:
    """A switch that is not connected: for processes that do more than what their lease covers."""
