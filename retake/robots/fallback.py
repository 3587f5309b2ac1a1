"""Fallback stores: a value goes to the first store that takes it, and back to the first of all when that is there again
(docs/protocol.md, section "NR.NSI.9").

    stores = Stores([("InfluxDB", influx.put), ("Redis", redis.put)], buffer=store, clock=clock)
    stores.put("2026-01-01T07:00", {"made": 12})    # "Redis" while InfluxDB is unreachable
    stores.sync()                                   # 1: InfluxDB has it now

What the first store has not taken is kept in `buffer` before a lower store is tried, so a crash at any point leaves it
there.
"""

from collections.abc import Callable, Sequence
from logging import getLogger
from typing import Any

from retake.clock import Clock
from retake.errors import LeaseLost, RobotError, Stopped, in_words
from retake.retrying.state_store import StateStore
from retake.robots.backlog import Backlog

_log = getLogger(__name__)

Put = Callable[[str, Any], object]
"""Stores a value under a key, in place of what was there. May be called again with the same value. Any exception means
that the store does not take it, but for Stopped and LeaseLost, which are raised."""


class NoStore(RobotError):
    """None of the stores took the value. It is kept in the buffer, and `Stores.sync` stores it."""

    def __init__(self, message: str) -> None:
        super().__init__("ERR_TEMPORARY_NO_STORE", message)


class Stores:
    """The stores, by name, in the order in which they are tried. Values are JSON.

    Every method may raise StateError and StorageError of the buffer; a value was then not stored.
    """

    def __init__(self, stores: Sequence[tuple[str, Put]], *, buffer: StateStore, clock: Clock) -> None:
        if not stores:
            raise ValueError("there is no store to put anything into")
        self._first, *self._lower = stores
        self._backlog = Backlog(buffer, "fallback", clock)

    def put(self, key: str, value: Any) -> str:
        """Store `value` under `key` and return the name of the store that took it.

        While an earlier value of the key waits for the first store, this one takes its place there too. Raises NoStore
        where no store takes it: it is buffered all the same. Raises ValueError for a value that is not JSON.
        """
        waits = self._backlog.has(key)
        if waits:
            self._backlog.put(key, value, replace=True)
        refusals: list[str] = []
        if _taken(self._first, key, value, refusals):
            return self._first[0]
        if not waits:
            self._backlog.put(key, value, replace=True)
        for store in self._lower:
            if _taken(store, key, value, refusals):
                return store[0]
        raise NoStore(f"{key} is only buffered; no store took it ({'; '.join(refusals)}). Call sync when one is back")

    def sync(self) -> int:
        """Put what is buffered into the first store, in order, and return how many values it took.

        Of each key only the newest value is put. It stops at the first failure, which is logged; the rest waits.
        """
        _, put = self._first
        return self._backlog.drain(lambda item: put(item.key, item.value))


def _taken(store: tuple[str, Put], key: str, value: Any, refusals: list[str]) -> bool:
    """Put the value into the store; return False where it does not take it, and add why to `refusals`."""
    name, put = store
    try:
        put(key, value)
    except (Stopped, LeaseLost):
        raise
    except Exception as error:  # noqa: BLE001  each client library has its own
        refusals.append(f"{name}: {in_words(error)}")
        _log.warning("%s did not take %s: %s", name, key, in_words(error))
        return False
    return True
