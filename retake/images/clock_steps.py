"""The clock of this machine is set, as by a machine without a battery for it soon after its start."""

import time
from collections.abc import Callable
from itertools import chain
from logging import getLogger

from retake.clock import Clock
from retake.images import scripts
from retake.images.jobs import JobStatus, is_job_id
from retake.images.rows import AHEAD_S
from retake.images.store import JobStore

_log = getLogger(__name__)


class ClockSteps:
    """Compares the clock with one that is never set. What a machine has slept is a step too."""

    def __init__(self, store: JobStore, clock: Clock, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock, self._monotonic = store, clock, monotonic
        self._apart_s = self._apart()

    def follow(self) -> None:
        """Let each result stay for its whole time from now on, if the clock was set by more than `AHEAD_S` since the
        last call that did not raise: how old it is nobody can tell any more. Raises RedisAway."""
        apart_s = self._apart()
        if abs(apart_s - self._apart_s) > AHEAD_S:
            found = chain.from_iterable(map(self._store.members, (scripts.READY, scripts.CACHED, scripts.FAILED)))
            kept = [it for it in found if it.status in (JobStatus.READY, JobStatus.FAILED) and is_job_id(it.job_id)]
            _log.warning("the clock was set: %d results stay as long as if they were new", len(kept))
            for glance in kept:
                self._store.touch(glance)
        self._apart_s = apart_s

    def _apart(self) -> float:
        return self._clock.now().timestamp() - self._monotonic()
