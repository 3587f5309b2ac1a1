"""The thread that renews a lease."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENDS_S = 0.1  # how long it may take to end for `RenewalThread.away`


class RenewalThread:
    """A daemon thread that calls `renew` when it is due, until it is stopped.

    `due` returns the seconds until the first call, `renew` those until the next one; None ends the thread.
    """

    def __init__(self, due: Callable[[], float | None], renew: Callable[[], float | None]) -> None:
        self._due, self._renew = due, renew
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._start()

    def stop(self, seconds: float) -> bool:
        """End the thread, and wait for that so long at most: it may be waiting for the store. Return whether it has
        ended."""
        self._stop.set()
        if self._thread:
            self._thread.join(seconds)
        return not (self._thread and self._thread.is_alive())

    @contextmanager
    def away(self) -> Iterator[None]:
        """Have no thread during the block, if it can end at once. One that waits for the store at the moment is left to
        end by itself, and the one that is started after the block waits for it."""
        stopped = self._stop.is_set()
        self.stop(_ENDS_S)
        try:
            yield
        finally:
            if not stopped:
                self._start()

    def _start(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._stop, self._thread), name="lease", daemon=True)
        self._thread.start()

    def _run(self, stop: threading.Event, before: threading.Thread | None) -> None:
        if before:
            before.join()
        pause = self._due()
        while pause is not None and not stop.wait(pause):
            pause = self._renew()
