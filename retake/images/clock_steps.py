"""Steps of the clock of jobs' times, for example soon after the start of a machine without a clock battery."""

import time
from itertools import chain
from logging import getLogger

from retake.clock import Clock
from retake.images import scripts
from retake.images.jobs import JobStatus, is_job_id
from retake.images.rows import AHEAD_S
from retake.images.store import JobStore

_log = getLogger(__name__)


class ClockSteps:
    """Compares the clock with the monotonic one. Time during which the machine was suspended is a step too."""

    def __init__(self, store: JobStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._apart_s = self._apart()

    def follow(self) -> None:
        """If the clock was stepped by more than `AHEAD_S`, restart the lifetime of all results: their age is unknown.

        The step is counted from the last call that did not raise. Raises RedisAway.
        """
        apart_s = self._apart()
        if abs(apart_s - self._apart_s) > AHEAD_S:
            found = chain.from_iterable(map(self._store.members, (scripts.READY, scripts.CACHED, scripts.FAILED)))
            kept = [it for it in found if it.status in (JobStatus.READY, JobStatus.FAILED) and is_job_id(it.job_id)]
            _log.warning("the clock was stepped: the lifetime of %d results starts over", len(kept))
            for summary in kept:
                self._store.touch(summary)
        self._apart_s = apart_s

    def _apart(self) -> float:
        return self._clock.now().timestamp() - time.monotonic()
