"""Calls of Redis: bounded in time, repeated once, and what their errors mean."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.commands.core import Script
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from retake.clock import Clock
from retake.errors import RetakeError, redact
from retake.exit_codes import ExitCode
from retake.foreign_text import one_line
from retake.images.jobs import iso
from retake.images.scripts import FUNCTIONS

ANSWER_S = 3.0
"""Seconds within which Redis answers. A broken connection is tried once more, so that a call ends within twice that."""

REST_S = 0.5
"""Seconds after a failure in which every call fails at once: else callers that wait for a thread would wait many times
as long as one call does."""

_LONGEST = 200  # characters of what Redis says


class RedisAway(RetakeError):
    """Redis did not answer as it should. Whether what was asked for was done is unknown; every call can be repeated."""

    exit_code = ExitCode.TRY_LATER


class WrongType(RedisAway):
    """The key holds something of another type, which another program has put there."""


def open_redis(url: str) -> Redis:
    """Return a client that is not connected yet, safe to use from many threads."""
    return Redis.from_url(
        url,
        decode_responses=True,
        encoding_errors="replace",
        socket_timeout=ANSWER_S,
        socket_connect_timeout=ANSWER_S,
        health_check_interval=15,
        retry=Retry(NoBackoff(), 1),
        protocol=2,
    )


class RedisCalls:
    """Runs scripts. Every method may raise RedisAway, may be repeated after it, and is safe for many threads."""

    def __init__(self, client: Redis, clock: Clock) -> None:
        self.client, self._clock = client, clock
        self._scripts: dict[str, Script] = {}
        self._rests_until = 0.0

    def now(self) -> str:
        """Return the time as hashes have it."""
        return iso(self._clock.now())

    def run(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run a script (see scripts.py) and return what it returns."""
        known = self._scripts.get(script)
        if known is None:
            known = self._scripts[script] = self.client.register_script(FUNCTIONS + script)
        return self.ask(lambda: known(keys=keys, args=arguments))

    def done(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> bool:
        """Run a script that returns 1 where it has done what it is for, and return whether it has."""
        return bool(self.run(script, keys, arguments) == 1)

    def ask(self, work: Callable[[], Any]) -> Any:
        """Return what `work`, which calls Redis, returns."""
        if time.monotonic() < self._rests_until:
            raise RedisAway("Redis did not answer a moment ago: check that it runs, and REDIS_URL")
        try:
            return work()
        except RedisError as error:
            if not isinstance(error, ResponseError):
                self._rests_until = time.monotonic() + REST_S
                why = f"Redis does not answer ({type(error).__name__}): check that it runs, and REDIS_URL"
                raise RedisAway(why) from None
            if "WRONGTYPE" in str(error):
                raise WrongType("Redis has a key of another type in this place: rename or delete it") from None
            raise RedisAway(f"Redis refuses: {refusal(error)}") from None


def refusal(error: ResponseError) -> str:
    """Return in Redis's own words why it refuses, without the script in which it did."""
    words, _, _ = str(error).partition(" script: ")
    return f"{one_line(redact(words))[:_LONGEST]} ({type(error).__name__})"


def pairs(fields: Mapping[str, str]) -> list[str]:
    """Return the fields of a hash as scripts take them: field, value, field, value, …"""
    return [*chain.from_iterable(fields.items())]


def milliseconds(seconds: float) -> int:
    """Return a period as scripts take it: 1 at least."""
    return max(1, round(seconds * 1000))
