"""The clock of Redis, by which all processes write and compare the times of jobs. By the clock of a machine, which may
be wrong, a result could be cleaned up too early."""

import time
from datetime import UTC, datetime
from typing import NamedTuple

from redis import Redis

from retake.clock import Clock
from retake.images.redis_calls import RedisAway, RedisCalls

_ASK_EVERY_S = 60.0
_STEP_S = 1.0  # if this machine's clocks differ by more, it was suspended, or its clock was set


class _Reading(NamedTuple):
    """The time of Redis at one moment of this machine, in seconds."""

    redis_s: float
    monotonic_s: float
    apart_s: float  # this machine's time of day minus its monotonic clock


class RedisClock:
    """A `Clock` that asks Redis once a minute, and counts the time since then by this machine's monotonic clock.

    `clock` waits, and tells when this machine was suspended. Thread-safe.
    """

    def __init__(self, client: Redis, clock: Clock) -> None:
        self._calls, self._clock = RedisCalls(client, clock), clock
        self._reading: _Reading | None = None
        self._asked_s = 0.0  # by the monotonic clock

    def now(self) -> datetime:
        """Return the time of Redis. Raises RedisAway if Redis has never answered."""
        now_s = time.monotonic()
        reading = self._reading
        if reading is None or self._is_old(reading, now_s):
            self._asked_s = now_s  # even if there is no answer: a Redis that hangs is waited for only once a minute
            try:
                reading = self._reading = self._asked()
            except RedisAway:
                if reading is None:
                    raise
        return datetime.fromtimestamp(reading.redis_s + now_s - reading.monotonic_s, UTC)

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)

    def _is_old(self, reading: _Reading, now_s: float) -> bool:
        return now_s - self._asked_s > _ASK_EVERY_S or abs(self._apart_s(now_s) - reading.apart_s) > _STEP_S

    def _asked(self) -> _Reading:
        seconds, micros = self._calls.ask(self._calls.client.time)
        now_s = time.monotonic()
        return _Reading(seconds + micros / 1e6, now_s, self._apart_s(now_s))

    def _apart_s(self, now_s: float) -> float:
        return self._clock.now().timestamp() - now_s
