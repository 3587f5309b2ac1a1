"""The dispatcher: moves finished jobs from `ready` into the memory of its process, from which they are answered without
Redis, and returns them when their time is up (docs/images.md, "Dispatcher")."""

import threading
import time
from collections.abc import Callable
from logging import getLogger
from typing import Literal, NamedTuple

from retake.images import scripts
from retake.images.redis_calls import RedisAway, milliseconds
from retake.images.settings import ImageJobSettings
from retake.images.store import JobStore
from retake.images.unfinished import Unfinished
from retake.serving.loop import Loop

MAX_CACHED = 1000
"""Maximum number of jobs in the memory of one dispatcher; others stay in `ready` and are answered from Redis."""

_PAGE = 500  # members of a set per call of a script

_log = getLogger(__name__)


class CachedJob(NamedTuple):
    """The data from which a finished job is answered."""

    job_id: str
    user_id: str
    output_r2_key: str
    image_type: str
    until: float  # by the dispatcher's monotonic clock


class Dispatcher:
    """The cache of one process. `name` is unique among all dispatchers, including those of earlier processes.

    `sweep` runs once per cycle in a thread of its own, so that a slow bucket does not hold up finished jobs.
    """

    def __init__(
        self,
        settings: ImageJobSettings,
        store: JobStore,
        name: str,
        *,
        unfinished: Unfinished,
        sweep: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._store, self._name = settings, store, name
        self._unfinished, self._sweep, self._monotonic = unfinished, sweep, monotonic
        self._cache: dict[str, CachedJob] = {}
        self._cycle = threading.Lock()
        self._active_until = self._monotonic() + settings.idle_after_seconds
        self._redis_answers = True
        self._loops = (Loop("dispatcher", self._turn), Loop("sweeper", self._sweeper_turn))

    # --- for requests -----------------------------------------------------------------------------------------------

    @property
    def mode(self) -> Literal["active", "idle"]:
        """The mode: "idle" if no job was made or asked for within `idle_after_seconds`, which makes cycles rarer."""
        return "active" if self._monotonic() < self._active_until else "idle"

    @property
    def count(self) -> int:
        """The number of cached jobs."""
        return len(self._cache)

    def wake(self) -> None:
        """Become active: a job was made or asked for."""
        was_idle = self.mode == "idle"
        self._active_until = self._monotonic() + self._settings.idle_after_seconds
        if was_idle:
            for loop in self._loops:
                loop.wake()

    def cached(self, job_id: str) -> CachedJob | None:
        """Return the job if it is cached."""
        return self._cache.get(job_id)

    def forget(self, job_id: str) -> None:
        """Drop a job that is being cleaned up."""
        self._cache.pop(job_id, None)

    # --- in the background ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads, which begin with a cycle each."""
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """Start no further cycles."""
        for loop in self._loops:
            loop.stop()

    def close(self, timeout_s: float = 5.0) -> None:
        """Wait for the cycle in progress, and move the cached jobs back to `ready`. Call `stop` first.

        If Redis is unreachable, they stay marked as cached until their time is up; then another dispatcher takes them.
        """
        until = time.monotonic() + timeout_s
        for loop in self._loops:
            loop.join(max(0.0, until - time.monotonic()))
        try:
            self._give_back(list(self._cache.values()))
        except RedisAway as error:
            _log.warning("%d cached jobs could not be moved back to ready: %s", len(self._cache), error)

    def cycle(self) -> None:
        """Take finished jobs, and return those cached for too long, here or by a dispatcher that died.

        Returned jobs are visible in `ready` until the next cycle. Raises RedisAway.
        """
        with self._cycle:
            self._take()
            now = self._monotonic()
            self._give_back([job for job in list(self._cache.values()) if job.until <= now])
            cursor = "0"
            while True:
                cursor = str(self._store.run(scripts.UNCACHE_PAGE, [scripts.CACHED], [cursor, _PAGE]))
                if cursor == "0":
                    return

    def _take(self) -> None:
        ttl_s, cursor = self._settings.cache_ttl_seconds, "0"
        while True:
            until = self._monotonic() + ttl_s
            given = [cursor, _PAGE, self._name, milliseconds(ttl_s), MAX_CACHED - len(self._cache)]
            cursor, rows = self._store.run(scripts.CACHE_PAGE, [scripts.READY], given)
            for at in range(0, len(rows), 4):
                job = CachedJob._make([*rows[at : at + 4], until])
                self._cache[job.job_id] = job
            if str(cursor) == "0":
                return

    def _give_back(self, jobs: list[CachedJob]) -> None:
        for job in jobs:
            self._store.uncache(job.job_id, self._name)
            self._cache.pop(job.job_id, None)

    def _turn(self) -> float:
        try:
            self.cycle()
        except RedisAway as error:
            if self._redis_answers:
                _log.warning("%s; cached jobs are answered, others are not", error)
            self._redis_answers = False
        else:
            if not self._redis_answers:
                _log.info("Redis answers again")
            self._redis_answers = True
        self._unfinished.retry()
        return self._pause()

    def _sweeper_turn(self) -> float:
        self._sweep()
        return self._pause()

    def _pause(self) -> float:
        active = self.mode == "active"
        return float(self._settings.active_seconds if active else self._settings.idle_seconds)
