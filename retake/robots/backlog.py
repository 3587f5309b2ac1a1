"""Backlogs: ordered queues in a StateStore, whose items wait until they have been delivered.

Each item is a document of its own, and one more document lists the items that wait, so no document grows with past
deliveries. A store has no transactions: the item is written before it is listed, and marked as done before it leaves
the list. A crash in between leaves an unlisted item, whose `put` has not returned and must be retried, or a listed item
that is done, which the next `drain` takes off the list.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from logging import getLogger
from typing import Any, NamedTuple

from retake import strict_json
from retake.clock import Clock, exact_stamp, parse_stamp
from retake.errors import LeaseLost, Stopped, in_words
from retake.retrying.state_store import Raw, StateCell, StateStore, state_name

_log = getLogger(__name__)


class BacklogItem(NamedTuple):
    """An item. Each `put` raises its version, so that a newer value is not mistaken for the one delivered."""

    key: str
    version: int
    at: datetime  # of the last put, or of the delivery
    waiting: bool
    value: Any  # None once it is done


class Backlog:
    """The backlog called `name`. Every method may raise StateError, StorageError.

    Any number of processes may add to it. Two that drain it at the same time deliver the same items.
    """

    def __init__(self, store: StateStore, name: str, clock: Clock) -> None:
        self.name = name
        self._store, self._clock = store, clock
        self._listed = StateCell(store, name, _decoded_list, _encoded_list)

    def put(self, key: str, value: Any, *, replace: bool) -> bool:
        """Add an item and return True; return False for a known key, even if its item is done.

        With `replace` the value of a known key is replaced, and the item waits again: in its old place if it was still
        waiting, otherwise at the end. Raises ValueError for a value that is not JSON.
        """
        now, value = self._clock.now(), strict_json.as_stored(value)

        def step(item: BacklogItem | None) -> tuple[BacklogItem | None, tuple[BacklogItem, bool]]:
            if item and not replace:
                return item, (item, False)
            new = BacklogItem(key, item.version + 1 if item else 1, now, True, value)
            return new, (new, True)

        item, is_new = self._cell(key).change(step)
        if item.waiting:
            self._listed.update(lambda listed: {**listed, key: max(item.version, listed.get(key, 0))})
        return is_new

    def keys(self) -> list[str]:
        """Return the keys of the waiting items, in the order in which they were first put."""
        return list(self._listed.get())

    def has(self, key: str) -> bool:
        """Return whether an item with this key waits."""
        return key in self._listed.get()

    def drain(self, hand_over: Callable[[BacklogItem], object]) -> int:
        """Deliver the waiting items in order, stop at the first failure, and return how many were delivered.

        An item is delivered twice if this process dies, or the store fails, before the delivery is recorded. An
        exception of `hand_over` is logged, and that item and the ones after it keep waiting; Stopped and LeaseLost are
        raised.
        """
        count = 0
        for key in self.keys():
            item = self._cell(key).get()
            if item is None or not item.waiting:
                self._unlist(key, item.version if item else None)
                continue
            try:
                hand_over(item)
            except (Stopped, LeaseLost):
                raise
            except Exception as error:  # noqa: BLE001  whatever it is, the item is not lost
                _log.error("%s: %s was not delivered and waits: %s", self.name, key, in_words(error))
                break
            self._done(item)
            count += 1
        return count

    def _done(self, item: BacklogItem) -> None:
        """Mark the item as done and take it off the list, unless it has been put again in the meantime."""
        ended = item._replace(waiting=False, value=None, at=self._clock.now())
        self._cell(item.key).update(lambda now: ended if now and now.version == item.version else now)
        self._unlist(item.key, item.version)

    def _unlist(self, key: str, version: int | None) -> None:
        def step(listed: Mapping[str, int]) -> Mapping[str, int]:
            if version is not None and listed.get(key, 0) > version:
                return listed
            return {name: it for name, it in listed.items() if name != key}

        self._listed.update(step)

    def _cell(self, key: str) -> "StateCell[BacklogItem | None]":
        name = state_name(self.name, key)
        return StateCell(self._store, name, lambda raw: _decoded_item(key, raw), _encoded_item)


def _encoded_list(listed: Mapping[str, int]) -> Raw:
    return {"waiting": dict(listed)}


def _decoded_list(raw: Raw | None) -> Mapping[str, int]:
    waiting = {} if raw is None else raw.get("waiting")
    if not isinstance(waiting, Mapping) or not all(type(version) is int for version in waiting.values()):
        raise ValueError("waiting: is not an object of versions")
    return waiting


def _encoded_item(item: BacklogItem | None) -> Raw:
    return {**item._asdict(), "at": exact_stamp(item.at)} if item else {}


def _decoded_item(key: str, raw: Raw | None) -> BacklogItem | None:
    if raw is None:
        return None
    try:
        version, at, waiting, value = raw["version"], parse_stamp(raw["at"]), raw["waiting"], raw["value"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"is not an item of a backlog ({error})") from error
    if type(version) is not int or type(waiting) is not bool:
        raise ValueError("version or waiting: is neither a number nor true or false")
    return BacklogItem(key, version, at, waiting, value)
