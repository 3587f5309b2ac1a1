"""The process that does the work: the signals it answers, how long it may live, its exit code."""

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
from retake.errors import RetakeError, Stopped
from retake.exit_codes import ExitCode
from retake.logs import bind

LEASE_VARIABLE = "RETAKE_LEASE"
"""The environment variable by which a tick hands its lease to a script."""

PIECE_S = 0.25
"""Seconds between two checks for a signal during a wait."""

_log = getLogger(__name__)


def is_terminal() -> bool:
    """Return whether stderr is a terminal that a person reads."""
    return sys.stderr is not None and sys.stderr.isatty()


def exit_code_of(work: Callable[[], int], *, part_of_a_run: bool = False) -> int:
    """Return `work`'s exit code, or that of the error it raises. A bug keeps its traceback, in the log.

    All log lines have one `run_id`. Work that is part of another program's run has none of its own: the other program
    adds its own as it passes the lines on.
    """
    with bind(run_id=None if part_of_a_run else os.urandom(6).hex()):
        try:
            return work()
        except RetakeError as error:
            _log.error("%s", error, extra={"exit_code": error.exit_code})
            return error.exit_code
        except KeyboardInterrupt:  # Ctrl-C before a paid call could be under way: everything has been given back
            told = {"exit_code": ExitCode.INTERRUPTED}
            _log.warning("interrupted; nothing was begun that is not on record", extra=told)
            return ExitCode.INTERRUPTED
        except Exception:  # noqa: BLE001 (whatever it is goes into the log, with its traceback)
            _log.exception("this is a bug in Retake; nothing was lost, the next tick goes on from what is on record")
            return ExitCode.BUG


def leave(exit_code: int) -> NoReturn:
    """End the process with this exit code.

    A thread that still waits for a channel of the alerts is not waited for, and the interpreter is not taken apart
    while it runs: that may crash, and then another exit code than this is seen.
    """
    delivery = sys.modules.get("retake.alerts.delivery")
    if delivery and delivery.is_sending():
        import logging

        logging.shutdown()
        flush_streams()
        os._exit(exit_code)
    gc.freeze()  # all of it is given back at once
    sys.exit(exit_code)


def flush_streams() -> None:
    """Flush what was written to stdout and stderr, as far as that is possible."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or its reader is gone
            stream.flush()


class StopSignal:
    """Counts SIGTERM and SIGINT instead of dying of them: a paid call that is under way ends, and its answer is saved,
    before anything stops."""

    def __init__(self) -> None:
        import signal

        self.count = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._count)
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # by whoever began this: no exit code would be known
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


class KillTimer:
    """How long this process may live, by the kernel's timer; None means no limit.

    A script that outlives its tick has nobody to end it: the kernel does, a little after the tick would have. The lock
    that it inherited is then free.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self.kill_after(0)

    def kill_after(self, seconds: float) -> None:
        """End the process in so many seconds at the latest; 0 goes back to the limit of its life."""
        import signal

        ends = [seconds] if seconds else []
        if self._end is not None:
            ends.append(max(0.001, self._end - time.monotonic()))
        if ends:  # whoever started us may have left the signal ignored or blocked
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.setitimer(signal.ITIMER_REAL, min(ends, default=0))


class Process:
    """`retake.paid.guard.PayingProcess`, which waits in short pieces, so that a signal is answered at once.

    `stopping` returns whether a signal has asked the process to stop; `kill_after` sets the kernel's timer.
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
        """Wait. Raises Stopped."""
        self.check_stop()
        wait(self._clock, seconds, self._stopping, ask_every_s=PIECE_S)
        self.check_stop()

    def check_stop(self) -> None:
        """Raises Stopped if a signal has asked the process to stop."""
        if self._stopping():
            raise Stopped("asked to stop; the next tick goes on from here")
