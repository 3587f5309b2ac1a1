"""The process that does the work: its signals, its time limit, and its exit code."""

import gc
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from logging import getLogger
from types import FrameType
from typing import NoReturn

from retake.clock import Clock, wait
from retake.errors import RetakeError, Stopped, naming_thread_shortage
from retake.exit_codes import ExitCode
from retake.logs import bind

LEASE_VARIABLE = "RETAKE_LEASE"
"""The environment variable through which a tick hands its lease to a script."""

SIGNAL_CHECK_S = 0.25
"""Seconds between two checks for a signal during a wait."""

_log = getLogger(__name__)


def is_terminal() -> bool:
    """Return whether stderr is a terminal that a person reads."""
    return sys.stderr is not None and sys.stderr.isatty()


def exit_code_of(work: Callable[[], int], *, part_of_a_run: bool = False) -> int:
    """Return the exit code of `work`, or of the error it raises, which is logged (a bug with its traceback).

    All log lines have the same `run_id`. Work that is part of another program's run has none: that program adds its own
    when it relays the lines.
    """
    with bind(run_id=None if part_of_a_run else os.urandom(6).hex()):
        try:
            with naming_thread_shortage():
                return work()
        except RetakeError as error:
            _log.error("%s", error, extra={"exit_code": error.exit_code})
            return error.exit_code
        except KeyboardInterrupt:  # Ctrl-C before any paid call can be under way: nothing is held any more
            told = {"exit_code": ExitCode.INTERRUPTED}
            _log.warning("interrupted; everything that was begun is on record", extra=told)
            return ExitCode.INTERRUPTED
        except Exception:  # noqa: BLE001  a bug, which is logged with its traceback
            _log.exception("this is a bug in Retake; nothing was lost, the next tick continues from what is on record")
            return ExitCode.BUG


def leave(exit_code: int) -> NoReturn:
    """End the process with this exit code.

    A thread that is still sending an alert is not waited for. Nor is the interpreter torn down while it runs, since
    that may crash, and change the exit code.
    """
    delivery = sys.modules.get("retake.alerts.delivery")
    if delivery and delivery.is_sending():
        import logging

        logging.shutdown()
        flush_streams()
        os._exit(exit_code)
    gc.freeze()  # the kernel frees all memory at once; a last collection is a waste of time
    sys.exit(exit_code)


def flush_streams() -> None:
    """Flush stdout and stderr, if possible."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or its reader is gone
            stream.flush()


class StopSignal:
    """Counts SIGTERM and SIGINT instead of dying from them, so that a paid call under way ends, and its answer is
    saved, before the process stops."""

    def __init__(self) -> None:
        import signal

        self.count = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._count)
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # inherited: children's exit codes would be lost
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


class KillTimer:
    """Limits how long this process may live, in seconds, by the kernel's timer; None means no limit.

    Nobody else ends a script that outlives its tick. The kernel does so a little after the tick would have, which frees
    the lock that the script inherited.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self.kill_after(0)

    def kill_after(self, seconds: float) -> None:
        """Have the process end after `seconds` at the latest; 0 goes back to its own limit."""
        import signal

        ends = [seconds] if seconds else []
        if self._end is not None:
            ends.append(max(0.001, self._end - time.monotonic()))
        if ends:  # the signal may be ignored or blocked by inheritance
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.setitimer(signal.ITIMER_REAL, min(ends, default=0))


class Process:
    """A `retake.paid.guard.PayingProcess` that waits in short pieces, so that it answers signals at once.

    `stopping` returns whether a signal has asked the process to stop. `kill_after` sets the kernel's timer.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        stopping: Callable[[], bool] = lambda: False,
        kill_after: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.kill_after = kill_after
        self._clock = clock
        self._stopping = stopping

    def pause(self, seconds: float) -> None:
        """Wait for `seconds`. Raises Stopped if a signal asks the process to stop."""
        self.check_stop()
        wait(self._clock, seconds, self._stopping, ask_every_s=SIGNAL_CHECK_S)
        self.check_stop()

    def check_stop(self) -> None:
        """Raise Stopped if a signal has asked the process to stop."""
        if self._stopping():
            raise Stopped("asked to stop; the next tick continues from here")
