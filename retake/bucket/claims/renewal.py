"""The thread that renews a lease."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from retake.bucket.claims.store import ClaimStore
from retake.errors import LeaseLost, RetakeError

_log = logging.getLogger(__name__)

_STOP_WAIT_S = 0.1  # how long `RenewalThread.away` waits for the thread's end


class Renewable(Protocol):
    """A lease that is held for a term at a time."""

    def due(self) -> float | None:
        """Return the seconds until the next renewal; None if there will be none."""
        ...

    def left(self) -> float:
        """Return the seconds until the deadline."""
        ...

    def renew(self, store: ClaimStore) -> None:
        """Extend the lease by another term. Raises LeaseLost; StorageError if it can be tried again."""
        ...


class RenewalThread:
    """A daemon thread that renews `lease` whenever it is due, through its own client, which `connect` opens.

    A failed renewal is retried after `retry_s` seconds.
    """

    def __init__(self, lease: Renewable, connect: Callable[[], ClaimStore], *, retry_s: float) -> None:
        self._lease, self._connect, self._retry_s = lease, connect, retry_s
        self._store: ClaimStore | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._start()

    def stop(self, seconds: float) -> bool:
        """Stop the thread and wait up to `seconds` for its end: it may be waiting for the store. Return whether it has
        ended."""
        self._stop.set()
        return self.join(seconds)

    def join(self, seconds: float) -> bool:
        """Wait up to `seconds` for the thread's end. Return whether it has ended."""
        assert self._thread is not None, "__init__ starts it"
        self._thread.join(seconds)
        return not self._thread.is_alive()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Stop the thread during the block, if it can end at once. A thread that is waiting for the store is left to
        end on its own, and the thread that is started after the block waits for it."""
        stopped = self._stop.is_set()
        self.stop(_STOP_WAIT_S)
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
        pause = self._lease.due()
        while pause is not None and not stop.wait(pause):
            pause = self._renew()

    def _renew(self) -> float | None:
        """Renew the lease. Return the seconds until the next renewal, or None if there will be none."""
        try:
            self._store = self._store or self._connect()
            self._lease.renew(self._store)
            return self._lease.due()
        except LeaseLost as error:
            _log.error("%s", error)
            return None
        except Exception as error:  # noqa: BLE001  a thread that ends here would lose a lease that can still be renewed
            left = self._lease.left()
            what = error if isinstance(error, RetakeError) else f"{type(error).__name__}: {error}"
            _log.warning("the lease is not renewed yet (%.0f s left): %s", left, what)
            return self._retry_s if left > 0 else None
