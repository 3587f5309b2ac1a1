"""The process of a program without signal handlers of its own."""

import threading
import time

from retake.bucket.claims.lease import set_kill_timer

_ends: dict[int, float] = {}
_lock = threading.Lock()


class PlainProcess:
    """The `retake.paid.guard.PayingProcess` of a program without signal handlers of its own.

    A lease on B2 or S3 has a term. During a paid call the kernel's timer (SIGALRM) ends this process when the term is
    over. A process has only one such timer: while several threads pay, each with a `PlainProcess` of its own, it is set
    to the earliest end.
    """

    def check_stop(self) -> None:
        """Do nothing: a signal ends the process, and the next start continues from the record."""

    def kill_after(self, seconds: float) -> None:
        with _lock:
            if seconds:
                _ends[id(self)] = time.monotonic() + seconds
            else:
                _ends.pop(id(self), None)
            set_kill_timer(max(0.001, min(_ends.values()) - time.monotonic()) if _ends else 0)
