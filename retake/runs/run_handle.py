"""A run in hand: who works on it gives signs of life, and hears when it was taken away."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from logging import getLogger

from retake.clock import Clock
from retake.errors import RetakeError
from retake.runs import Ledger
from retake.runs.run import Run, StaleRun, UnknownRun

HEARTBEAT_S = 15.0
"""Between two signs of life. Who looks after silent runs waits several times as long (retake.runs.recovery)."""

_log = getLogger(__name__)


class RunHandle:
    """What a job gets to see of its run."""

    def __init__(self, ledger: Ledger, run: Run, clock: Clock, *, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.run = run
        self._ledger, self._clock, self._heartbeat_s = ledger, clock, heartbeat_s
        self._heard_at: datetime = clock.now()
        self._lost = ""
        self._over = threading.Event()

    @property
    def lost(self) -> bool:
        """Whether the run is known to have been taken away: cancelled, or given to somebody else."""
        return bool(self._lost)

    def check(self) -> None:
        """Return if the run still is ours; raise StaleRun if it is not. Ask before each payment.

        Asks the ledger only if the last sign of life is old: this process may have been frozen meanwhile.
        """
        if not self._lost and (self._clock.now() - self._heard_at).total_seconds() > self._heartbeat_s:
            self.heartbeat()
        if self._lost:
            raise StaleRun(self._lost)

    def heartbeat(self) -> None:
        """Give a sign of life, and hear whether the run still is ours. Raises StorageError if the ledger is away."""
        try:
            self._ledger.heartbeat(self.run)
        except (StaleRun, UnknownRun) as error:
            self._lost = f"{self.run.run_id} was taken away while it was worked on: {error}"
        else:
            self._heard_at = self._clock.now()

    def revoke(self, why: str) -> None:
        """Take the run from a job that nobody waits for any more: its next `check` raises StaleRun."""
        self._lost = why

    @contextmanager
    def kept_alive(self) -> Iterator["RunHandle"]:
        """A thread gives signs of life meanwhile. It ends with the block, however that ends."""
        thread = threading.Thread(target=self._send_heartbeats, name=f"heartbeat {self.run.run_id}", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join(self._heartbeat_s)  # it may be waiting for the ledger

    def _send_heartbeats(self) -> None:
        while not self._over.wait(self._heartbeat_s) and not self._lost:
            try:
                self.heartbeat()
            except RetakeError as error:
                _log.warning("no sign of life of %s could be given, it is tried again: %s", self.run.run_id, error)
