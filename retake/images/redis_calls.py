"""Calls to Redis: bounded in time, repeated once, and with errors of our own."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.commands.core import Script
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.retry import Retry

from retake.clock import Clock
from retake.errors import RetakeError, redact
from retake.exit_codes import ExitCode
from retake.foreign_text import one_line
from retake.images.jobs import iso
from retake.images.scripts import FUNCTIONS

ANSWER_S = 3.0
"""Timeout of an answer from Redis in seconds. A broken connection is retried once, so a call ends within twice that."""

COOLDOWN_S = 0.5
"""Seconds for which every call fails at once after a failure: otherwise callers that wait for a thread would wait many
times as long as one call."""

_MAX_ERROR_LENGTH = 200  # maximum characters of an error message of Redis


class RedisAway(RetakeError):
    """Redis did not answer properly. The outcome of the call is unknown; every call can be repeated."""

    exit_code = ExitCode.TRY_LATER


class RedisRefused(RedisAway):
    """Redis refuses the user or the password: a person has to correct REDIS_URL."""

    exit_code = ExitCode.CONFIG


class WrongType(RedisAway):
    """The key holds a value of another type, which another program has written."""


def open_redis(url: str) -> Redis:
    """Return a client that has not connected yet. Thread-safe."""
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
    """Runs scripts. Every method may raise RedisAway and can then be repeated. Thread-safe."""

    def __init__(self, client: Redis, clock: Clock) -> None:
        self.client, self.clock = client, clock
        self._scripts: dict[str, Script] = {}
        self._cooldown_until = 0.0
        self._failure: Callable[[], RedisAway] = RedisAway

    def now(self) -> str:
        """Return the current time as stored in hashes."""
        return iso(self.clock.now())

    def run(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run a script (see scripts.py) and return its result."""
        known = self._scripts.get(script)
        if known is None:
            known = self._scripts[script] = self.client.register_script(FUNCTIONS + script)
        return self.ask(lambda: known(keys=keys, args=arguments))

    def done(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> bool:
        """Run a script that returns 1 if it took effect, and return whether it did."""
        return bool(self.run(script, keys, arguments) == 1)

    def ask(self, work: Callable[[], Any]) -> Any:
        """Return the result of `work`, which calls Redis."""
        if time.monotonic() < self._cooldown_until:
            raise self._failure()
        try:
            return work()
        except RedisError as error:
            if not isinstance(error, ResponseError):
                self._failure = _failure_of(error)
                self._cooldown_until = time.monotonic() + COOLDOWN_S
                raise self._failure() from None
            if "WRONGTYPE" in str(error):
                raise WrongType("Redis has a key of another type in this place: rename or delete it") from None
            raise RedisAway(f"Redis refuses: {refusal(error)}") from None


def _failure_of(error: RedisError) -> Callable[[], RedisAway]:
    if isinstance(error, AuthenticationError):
        return partial(RedisRefused, "Redis refuses the user or the password: correct REDIS_URL")
    return partial(RedisAway, f"Redis does not answer ({type(error).__name__}): check that it runs, and REDIS_URL")


def refusal(error: ResponseError) -> str:
    """Return Redis's error message without the script that caused it."""
    words, _, _ = str(error).partition(" script: ")
    return f"{one_line(redact(words))[:_MAX_ERROR_LENGTH]} ({type(error).__name__})"


def pairs(fields: Mapping[str, str]) -> list[str]:
    """Return the fields of a hash as script arguments: field, value, field, value, …"""
    return [*chain.from_iterable(fields.items())]


def milliseconds(seconds: float) -> int:
    """Return a duration as a script argument, at least 1."""
    return max(1, round(seconds * 1000))
