"""A worker's handle on its run: it sends heartbeats, and says when the run was taken away."""

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
"""Seconds between two heartbeats. Recovery waits several times as long (retake.runs.recovery.PATIENCE_S)."""

_log = getLogger(__name__)


class RunHandle:
    """What a job sees of its run."""

    def __init__(self, ledger: Ledger, run: Run, clock: Clock, *, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.run = run
        self._ledger, self._clock, self._heartbeat_s = ledger, clock, heartbeat_s
        self._heard_at: datetime = clock.now()
        self._lost = ""
        self._over = threading.Event()

    @property
    def lost(self) -> bool:
        """Whether the run is known to have been taken away: cancelled, or given to another worker."""
        return bool(self._lost)

    def check(self) -> None:
        """Raise StaleRun if the run was taken away. Call it before each payment.

        Asks the ledger only if the last heartbeat is old, since this process may have been frozen meanwhile.
        """
        if not self._lost and (self._clock.now() - self._heard_at).total_seconds() > self._heartbeat_s:
            self.heartbeat()
        if self._lost:
            raise StaleRun(self._lost)

    def heartbeat(self) -> None:
        """Send a heartbeat, and learn whether the run was taken away. Raises StorageError."""
        try:
            self._ledger.heartbeat(self.run)
        except (StaleRun, UnknownRun) as error:
            self._lost = f"{self.run.run_id} was taken away while it was worked on: {error}"
        else:
            self._heard_at = self._clock.now()

    beat = heartbeat  # its former name

    def revoke(self, why: str) -> None:
        """Take the run away from a job that has been given up: its next `check` raises StaleRun."""
        self._lost = why

    @contextmanager
    def kept_alive(self) -> Iterator["RunHandle"]:
        """Send heartbeats from a thread for as long as the `with` block runs."""
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
                _log.warning("the heartbeat of %s failed and is tried again: %s", self.run.run_id, error)
