"""The kill timer: the kernel ends this process when its lease has expired.

A process that was frozen between checking its lease and acting on the answer would act when it wakes, however late.
With the timer set, the kernel delivers the signal before the process runs one more instruction. The clock of a paused
virtual machine stands still, so a pause of the whole machine goes unnoticed.
"""

import signal
from collections.abc import Callable
from contextlib import suppress

KillTimer = Callable[[float], None]
"""Called with the seconds until the process is to end, which replace what was set before; 0 means never."""


def set_kill_timer(seconds: float) -> None:
    """End this process by SIGALRM after `seconds`, instead of what was set before. 0 clears the timer."""
    if seconds and signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        with suppress(ValueError):  # only the main thread may, and it is the first to set the timer
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
    if seconds:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, seconds)


def no_kill_timer(seconds: float) -> None:
    """Set no timer: for processes that do more than what their lease covers."""
