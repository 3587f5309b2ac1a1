"""Fallback stores: a value goes to the first store that accepts it, and to the primary store when that is back
(docs/protocol.md, section "NR.NSI.9").

    stores = Stores([("InfluxDB", influx.put), ("Redis", redis.put)], buffer=store, clock=clock)
    stores.put("2026-01-01T07:00", {"made": 12})    # "Redis" while InfluxDB is unreachable
    stores.sync()                                   # 1: InfluxDB has it now

A value that the primary store did not accept is kept in `buffer` before a lower store is tried, so a crash at any point
leaves it there.
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
"""Stores a value under a key, replacing an earlier one. May be called again with the same value.

Any exception means that the store does not accept the value, except Stopped and LeaseLost, which are raised.
"""


class NoStore(RobotError):
    """No store accepted the value. It stays in the buffer until `Stores.sync` stores it."""

    def __init__(self, message: str) -> None:
        super().__init__("ERR_TEMPORARY_NO_STORE", message)


class Stores:
    """The stores, by name, in the order in which they are tried. Values are JSON.

    Every method may raise StateError and StorageError of the buffer; the value was then not stored.
    """

    def __init__(self, stores: Sequence[tuple[str, Put]], *, buffer: StateStore, clock: Clock) -> None:
        if not stores:
            raise ValueError("there is no store to put anything into")
        self._first, *self._lower = stores
        self._backlog = Backlog(buffer, "fallback", clock)

    def put(self, key: str, value: Any) -> str:
        """Store `value` under `key` and return the name of the store that accepted it.

        If an earlier value of the key waits for the primary store, this one replaces it there too. Raises NoStore if no
        store accepts the value, which is buffered all the same. Raises ValueError for a value that is not JSON.
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
        """Put the buffered values into the primary store, in order, and return how many it accepted.

        Only the newest value of each key is put. The first failure is logged and stops the sync; the rest keep
        waiting.
        """
        _, put = self._first
        return self._backlog.drain(lambda item: put(item.key, item.value))


def _taken(store: tuple[str, Put], key: str, value: Any, refusals: list[str]) -> bool:
    """Put the value into the store. If the store does not accept it, add the reason to `refusals` and return False."""
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
