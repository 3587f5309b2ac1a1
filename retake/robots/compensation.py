"""Unconfirmed items: recorded before their creation, confirmed when finished, rolled back after a day.

docs/protocol.md, section "NR.NSI.4". There are no timers: a program that runs periodically asks what is due.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from retake.clock import Clock, exact_stamp, parse_stamp
from retake.errors import LeaseLost, Stopped
from retake.retrying.state_store import Raw, StateCell, StateStore


class UnconfirmedItem(NamedTuple):
    """An item that is neither confirmed nor rolled back."""

    key: str  # its idempotency key
    since: datetime  # when its creation began
    code: str | None = None  # of the error that kept it from being finished; None: unknown


class Unconfirmed:
    """The unconfirmed items of one kind. Every method may raise StateError, StorageError."""

    def __init__(self, states: StateStore, name: str, clock: Clock, after_s: float) -> None:
        self._cell = StateCell(states, name, decoded, encoded)
        self._clock = clock
        self._after_s = after_s

    def begun(self, key: str) -> tuple[UnconfirmedItem, bool]:
        """Record that the creation of the item begins. The time until its rollback counts from here.

        Return the record, and whether it existed already, from a creation that was not finished.
        """
        item = UnconfirmedItem(key, self._clock.now())
        return self._cell.change(lambda items: ({**items, key: item}, (item, key in items)))

    def failed(self, key: str, code: str) -> None:
        """Record that the item was created but could not be finished."""
        item = UnconfirmedItem(key, self._clock.now(), code)
        self._cell.update(lambda items: {**items, key: items.get(key, item)._replace(code=code)})

    def confirm(self, key: str) -> None:
        """Record that the item is correct: finished, or checked by a person."""
        self._cell.update(lambda items: {name: it for name, it in items.items() if name != key})

    def forget(self, item: UnconfirmedItem) -> None:
        """Remove the record of an item that does not exist or is not ours, unless its creation was begun again."""
        known = item.key, item.since
        self._cell.update(lambda items: {key: it for key, it in items.items() if (key, it.since) != known})

    def has(self, key: str) -> bool:
        return key in self._cell.get()

    def all(self) -> list[UnconfirmedItem]:
        """Return all unconfirmed items, oldest first."""
        return sorted(self._cell.get().values(), key=lambda item: item.since)

    def due(self) -> list[UnconfirmedItem]:
        """Return the items whose time is up, oldest first."""
        before = self._clock.now() - timedelta(seconds=self._after_s)
        return [item for item in self.all() if item.since <= before]

    def roll_back_due(self, undo: Callable[[str], object]) -> list[UnconfirmedItem]:
        """Roll back the items whose time is up, and return them.

        `undo(key)` may be called for an item that was never created or is already rolled back. If it fails, the item
        stays due and the others are still rolled back; the first error is raised at the end. Only Stopped and LeaseLost
        are raised at once.
        """
        self._restart_wrong()
        done, errors = list[UnconfirmedItem](), list[Exception]()
        for item in self.due():
            if not self.has(item.key):
                continue  # confirmed in the meantime
            try:
                undo(item.key)
            except (Stopped, LeaseLost):
                raise
            except Exception as error:  # noqa: BLE001  raised below
                errors.append(error)
                continue
            self.forget(item)
            done.append(item)
        if errors:
            raise errors[0]
        return done

    def _restart_wrong(self) -> None:
        """Restart the time of items that were begun by a clock far ahead, since their age is unknown."""
        now = self._clock.now()
        latest = now + timedelta(seconds=self._after_s)
        if any(item.since > latest for item in self.all()):
            self._cell.update(
                lambda items: {key: it._replace(since=now) if it.since > latest else it for key, it in items.items()}
            )


def encoded(items: Mapping[str, UnconfirmedItem]) -> Raw:
    return {key: {"since": exact_stamp(item.since), "code": item.code} for key, item in items.items()}


def decoded(raw: Raw | None) -> Mapping[str, UnconfirmedItem]:
    """Decode a stored state. Raises ValueError, naming the field."""
    return {key: _item(key, value) for key, value in (raw or {}).items()}


def _item(key: str, value: Any) -> UnconfirmedItem:
    try:
        since, code = parse_stamp(value["since"]), value["code"]
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f'{key}: is not {{"since", "code"}}') from error
    if not isinstance(code, str | None):
        raise ValueError(f"{key}: code: is not text")  # noqa: TRY004  a document's fault, not a caller's
    return UnconfirmedItem(key, since, code)
