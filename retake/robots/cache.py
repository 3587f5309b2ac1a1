"""A cache of earlier results, used while there are no new ones (docs/protocol.md, section "NR.NSI.2").

    cache = Cache(store, clock)
    cache.put("document-7", {"length": 12})
    cache.get("document-7")    # ({"length": 12}, 0.0), and None a day later

A cached result is read-only: nothing may be created or changed because of it. Each result is one document, so a crash
leaves either the earlier result or the new one.
"""

from datetime import datetime
from typing import Any, NamedTuple

from retake import strict_json
from retake.clock import Clock, exact_stamp, parse_stamp
from retake.retrying.state_store import Raw, StateCell, StateStore, state_name


class Cached(NamedTuple):
    """A result and when it was stored."""

    value: Any
    at: datetime


class Cache:
    """The results in `store`, each for `ttl_s` seconds. Every method may raise StateError, StorageError."""

    def __init__(self, store: StateStore, clock: Clock, ttl_s: float = 86400) -> None:
        self._store, self._clock, self._ttl_s = store, clock, ttl_s

    def put(self, key: str, value: Any) -> None:
        """Store `value`, in place of an earlier one. Raises ValueError for a value that is not JSON."""
        cached = Cached(strict_json.as_stored(value), self._clock.now())
        self._cell(key).update(lambda before: cached)

    def get(self, key: str) -> tuple[Any, float] | None:
        """Return the value and its age in seconds, or None if there is none younger than `ttl_s`."""
        if (cached := self._cell(key).get()) is None:
            return None
        age_s = (self._clock.now() - cached.at).total_seconds()  # negative: the clock was set back, or was wrong
        return (cached.value, max(0.0, age_s)) if abs(age_s) < self._ttl_s else None

    def _cell(self, key: str) -> "StateCell[Cached | None]":
        return StateCell(self._store, state_name("cache", key), _decoded, lambda cached: _encoded(key, cached))


def _encoded(key: str, cached: Cached | None) -> Raw:
    return {"key": key, "value": cached.value, "at": exact_stamp(cached.at)} if cached else {}


def _decoded(raw: Raw | None) -> Cached | None:
    if not raw:
        return None
    try:
        return Cached(raw["value"], parse_stamp(raw["at"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"is not a cached value with its time ({error})") from error
