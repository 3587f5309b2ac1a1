"""A job's handle on its run: it sends heartbeats, and notices if the run was taken away."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from logging import getLogger
from typing import Any

from retake.clock import Clock
from retake.errors import RetakeError
from retake.runs import Ledger, validation
from retake.runs.run import BY_WORKER, STEP_DONE, Run, StaleRun, UnknownRun

HEARTBEAT_S = 15.0
"""Seconds between two heartbeats. Recovery waits several times as long (retake.runs.recovery.PATIENCE_S)."""

_log = getLogger(__name__)


class RunHandle:
    """A job's view of its run."""

    def __init__(self, ledger: Ledger, run: Run, clock: Clock, *, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.run = run
        self._ledger, self._clock, self._heartbeat_s = ledger, clock, heartbeat_s
        self._heard_at: datetime = run.heartbeat_at or clock.now()
        self._lost = ""
        self._over = threading.Event()

    @property
    def lost(self) -> bool:
        """Whether the run is known to have been taken away: cancelled, or given to another worker."""
        return bool(self._lost)

    def check(self) -> None:
        """Raise StaleRun if the run was taken away. Call this before each payment.

        Asks the ledger only if the last heartbeat is old: this process may have been frozen meanwhile.

        >>> from retake.clock import FakeClock
        >>> from retake.runs import open_ledger
        >>> from retake.runs.states import Trigger
        >>> ledger, clock = open_ledger("sqlite:posters.db"), FakeClock()
        >>> queued = ledger.create_for_task("aurora", "posters/aurora", actor="shop")
        >>> handle = RunHandle(ledger, ledger.claim("worker 1"), clock)
        >>> handle.check()
        >>> _ = ledger.move(ledger.get(queued.run_id), Trigger.CANCEL_COMMAND, actor="operator")
        >>> clock.sleep(60)
        >>> handle.check()
        Traceback (most recent call last):
        retake.runs.run.StaleRun: run-... was taken away while it was worked on: ...
        """
        since_s = abs((self._clock.now() - self._heard_at).total_seconds())  # below 0: the clock was set back
        if not self._lost and since_s > self._heartbeat_s:
            self.heartbeat()
        if self._lost:
            raise StaleRun(self._lost)

    def heartbeat(self) -> None:
        """Send a heartbeat, and learn whether the run was taken away. Raises StorageError."""
        sent_at = self._clock.now()  # not the time of the answer: this process may be frozen while it waits for that
        try:
            self._ledger.heartbeat(self.run)
        except (StaleRun, UnknownRun) as error:
            self._lost = f"{self.run.run_id} was taken away while it was worked on: {error}"
        else:
            self._heard_at = sent_at

    beat = heartbeat  # its former name

    def steps_done(self) -> dict[str, dict[str, Any]]:
        """Return the facts that `step_done` has recorded for this run, by step, including those of dead workers.

        Raises StorageError.

        >>> from retake.clock import SystemClock
        >>> from retake.runs import open_ledger
        >>> ledger = open_ledger("sqlite:posters.db")
        >>> run = ledger.create_for_task("aurora", "posters/aurora", actor="shop")
        >>> handle = RunHandle(ledger, run, SystemClock())
        >>> handle.step_done("sketch", {"file": "aurora.sketch"})
        >>> handle.steps_done()
        {'sketch': {'file': 'aurora.sketch'}}
        """
        found = [event.payload for event in self._ledger.events(self.run.run_id) if event.kind == STEP_DONE]
        return {str(it.get("step")): {key: it[key] for key in it if key not in ("step", "actor")} for it in found}

    def step_done(self, step: str, facts: Mapping[str, Any] | None = None) -> None:
        """Record that a step of the job is done, with `facts` (JSON) about it, so that it is not done again.

        A crash just before this leaves a step that is done but not recorded, so a step must be idempotent, or able to
        find out what it has done. Raises StorageError, and `validation.InvalidField` for an empty name, for facts that
        no ledger can store, and for a fact called "step" or "actor", which are fields of the event.

        >>> from retake.clock import SystemClock
        >>> from retake.runs import open_ledger
        >>> ledger = open_ledger("sqlite:posters.db")
        >>> run = ledger.create_for_task("aurora", "posters/aurora", actor="shop")
        >>> RunHandle(ledger, run, SystemClock()).step_done("sketch")
        >>> [event.payload["step"] for event in ledger.events(run.run_id) if event.kind == "run.step.done"]
        ['sketch']
        """
        if taken := sorted({"step", "actor"} & {*(facts or {})}):
            raise validation.InvalidField(
                f"facts.{taken[0]}", "is a name of the event's own: give the fact another one"
            )
        payload = {**(facts or {}), "step": validation.name("step", step)}
        self._ledger.note(self.run, STEP_DONE, payload, actor=BY_WORKER)

    def revoke(self, why: str) -> None:
        """Take the run away from a job that was given up: its next `check` raises StaleRun."""
        self._lost = why

    @contextmanager
    def kept_alive(self) -> Iterator["RunHandle"]:
        """Send heartbeats from a thread while the `with` block runs."""
        thread = threading.Thread(target=self._send_heartbeats, name=f"heartbeat {self.run.run_id}", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join(self._heartbeat_s)  # no longer: it may be waiting for the ledger

    def _send_heartbeats(self) -> None:
        while not self._over.wait(self._heartbeat_s) and not self._lost:
            try:
                self.heartbeat()
            except RetakeError as error:
                _log.warning("the heartbeat of %s failed and is tried again: %s", self.run.run_id, error)
            except Exception:  # noqa: BLE001  without this thread the worker would be taken for dead
                _log.exception("the heartbeat of %s failed with a bug and is tried again", self.run.run_id)
