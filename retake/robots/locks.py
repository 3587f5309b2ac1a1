"""Named locks of many readers or one writer, shared by processes (docs/protocol.md, section "NR.NSI.6").

    locks = Locks(store, clock)
    with locks.write("length", owner="robot-6 on host-1") as version:
        ...    # nobody else reads or writes

A lock has no expiry, since nobody can tell a slow holder from a dead one: a write waits for it and then fails, and only
a read gets through once it is old. An owner that takes a lock again after its own crash has it at once, in place of
what it held before. So each owner is one worker, with a name that it keeps when it is started again.
"""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from logging import getLogger
from typing import Any, NamedTuple

from retake.attempts import repeating
from retake.bucket import Conflict
from retake.clock import Clock, exact_stamp, parse_stamp
from retake.errors import RetakeError, RobotError
from retake.retrying.state_store import Raw, StateCell, StateStore, state_name

LOOK_AGAIN_S = (0.25, 0.25, 0.5, 1.0)
"""Seconds between two looks at a lock that another holds; the last one repeats."""

_log = getLogger(__name__)


class LockTimeout(RobotError):
    """The lock was not free in time. Nothing was done under it."""

    def __init__(self, message: str) -> None:
        super().__init__("ERR_TEMPORARY_LOCK_TIMEOUT", message)


class LockHold(NamedTuple):
    """A lock as one owner holds it."""

    token: str  # different each time it is taken
    since: datetime


class LockState(NamedTuple):
    """Who holds a lock."""

    writers: Mapping[str, LockHold] = {}  # by owner, at most one
    readers: Mapping[str, LockHold] = {}  # by owner
    version: int = 0  # how often it was taken for writing

    def others(self, owner: str, *, writes: bool) -> list[LockHold]:
        """Return the holds that keep `owner` from writing or reading."""
        holds = [*self.writers.items(), *(self.readers.items() if writes else ())]
        return [hold for holder, hold in holds if holder != owner]


class Locks:
    """The locks in `store`. Waits up to `wait_s` seconds; reads get through a lock that is `break_after_s` old.

    An owner may read within its own write, write within its own read, and take what it holds once more. Every method
    may raise StateError, StorageError.
    """

    def __init__(self, store: StateStore, clock: Clock, *, wait_s: float = 60, break_after_s: float = 90) -> None:
        self._store, self._clock = store, clock
        self._wait_s, self._break_after_s = wait_s, break_after_s
        self._held: dict[tuple[str, str, bool], int] = {}
        self._guard = threading.Lock()

    @contextmanager
    def write(self, name: str, owner: str) -> Iterator[int]:
        """Hold the lock alone, and return its version: the number of times it was taken for writing.

        Raises LockTimeout after `wait_s`, however old the lock is.
        """
        with self._hold(name, owner, writes=True) as version:
            yield version

    @contextmanager
    def read(self, name: str, owner: str) -> Iterator[int]:
        """Hold the lock with other readers, and return its version.

        Where every hold of a writer is `break_after_s` old the reader gets through beside it, and may read what is half
        written; it is logged. A later version tells that there has been another writer. Raises LockTimeout after
        `wait_s`.
        """
        with self._hold(name, owner, writes=False) as version:
            yield version

    def holders(self, name: str) -> LockState:
        """Return who holds the lock."""
        return self._cell(name).get()

    def release(self, name: str, owner: str) -> None:
        """End all holds of `owner`, by order of an operator who knows that it is dead."""
        self._cell(name).change(lambda state: (_without(state, owner, None), None))

    @contextmanager
    def _hold(self, name: str, owner: str, *, writes: bool) -> Iterator[int]:
        nested = self._entered((name, owner, writes), 1) > 1
        token, version = None, 0
        try:
            if nested:
                version = self.holders(name).version
            else:
                token = os.urandom(8).hex()
                version = self._taken(name, owner, token, writes=writes)
            yield version
        except BaseException:
            if token:
                self._let_go(name, owner, token)
            raise
        else:
            if token:
                self._cell(name).change(lambda state: (_without(state, owner, token), None))
        finally:
            self._entered((name, owner, writes), -1)

    def _entered(self, what: tuple[str, str, bool], change: int) -> int:
        """Return how often this owner is inside this lock, after a change of that number."""
        with self._guard:
            self._held[what] = count = self._held.get(what, 0) + change
            if not count:
                del self._held[what]
            return count

    def _taken(self, name: str, owner: str, token: str, *, writes: bool) -> int:
        """Wait for the lock, take it, and return its version. Raises LockTimeout."""
        deadline = self._clock.now() + timedelta(seconds=self._wait_s)
        state = LockState()
        for pause_s in repeating(*LOOK_AGAIN_S):
            now = self._clock.now()
            try:
                state, taken = self._tried(name, owner, LockHold(token, now), writes=writes)
            except Conflict:  # many others want it too
                taken = False
            if taken:
                return state.version
            left_s = (deadline - now).total_seconds()
            if left_s <= 0:
                break
            self._clock.sleep(min(pause_s, left_s, *self._until_broken(state, owner, now, writes=writes)))
        raise LockTimeout(_refusal(name, owner, state, self._wait_s, writes=writes))

    def _tried(self, name: str, owner: str, hold: LockHold, *, writes: bool) -> tuple[LockState, bool]:
        """Take the lock if that is allowed now; return its state, and whether it was taken."""

        inside = (name, owner, not writes) in self._held

        def step(state: LockState) -> tuple[LockState, tuple[LockState, bool]]:
            others = state.others(owner, writes=writes)
            if others and (writes or any(_age_s(it, hold.since) < self._break_after_s for it in others)):
                return state, (state, False)
            new = _with(state if inside else _without(state, owner, None), owner, hold, writes=writes)
            return new, (new, True)

        state, taken = self._cell(name).change(step)
        if taken and (broken := state.others(owner, writes=writes)):
            age_s = max(_age_s(it, hold.since) for it in broken)
            _log.warning("%s reads %s although it has been locked for writing for %.0f s", owner, name, age_s)
        return state, taken

    def _until_broken(self, state: LockState, owner: str, now: datetime, *, writes: bool) -> list[float]:
        """Return the seconds until a reader gets through, if it ever does."""
        others = [] if writes else state.others(owner, writes=False)
        left = [self._break_after_s - _age_s(it, now) for it in others]
        return [max(left)] if left and max(left) > 0 else []

    def _let_go(self, name: str, owner: str, token: str) -> None:
        """Release the lock while an exception is on its way, which matters more than one of the store."""
        try:
            self._cell(name).change(lambda state: (_without(state, owner, token), None))
        except RetakeError as error:
            _log.error("%s still has the lock %s, it could not be released: %s", owner, name, error)

    def _cell(self, name: str) -> StateCell[LockState]:
        return StateCell(self._store, state_name("lock", name), _decoded, _encoded)


def _age_s(hold: LockHold, now: datetime) -> float:
    return (now - hold.since).total_seconds()


def _with(state: LockState, owner: str, hold: LockHold, *, writes: bool) -> LockState:
    if writes:
        return state._replace(writers={**state.writers, owner: hold}, version=state.version + 1)
    return state._replace(readers={**state.readers, owner: hold})


def _without(state: LockState, owner: str, token: str | None) -> LockState:
    """Return the state without the hold of that token; with None, without all holds of `owner`."""

    def rest(holds: Mapping[str, LockHold]) -> Mapping[str, LockHold]:
        return {it: hold for it, hold in holds.items() if it != owner or token not in (None, hold.token)}

    return state._replace(writers=rest(state.writers), readers=rest(state.readers))


def _refusal(name: str, owner: str, state: LockState, wait_s: float, *, writes: bool) -> str:
    holds = [*state.writers.items(), *(state.readers.items() if writes else ())]
    who = ", ".join(f"{it} since {exact_stamp(hold.since)}" for it, hold in holds if it != owner)
    return (
        f"{name} was locked for {wait_s:g} s: {who or 'others were faster'}. Try again later; "
        "if the holder is dead, have it take the lock again, or end its hold with Locks.release"
    )


def _encoded(state: LockState) -> Raw:
    def held(holds: Mapping[str, LockHold]) -> dict[str, Any]:
        return {owner: {"token": hold.token, "since": exact_stamp(hold.since)} for owner, hold in holds.items()}

    return {"writers": held(state.writers), "readers": held(state.readers), "version": state.version}


def _decoded(raw: Raw | None) -> LockState:
    if raw is None:
        return LockState()
    try:
        writers, readers = (
            {owner: LockHold(str(it["token"]), parse_stamp(it["since"])) for owner, it in raw[name].items()}
            for name in ("writers", "readers")
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"writers or readers: are no owners with token and time ({error})") from error
    if type(version := raw.get("version")) is not int:
        raise ValueError(f"version: {version!r} is no number")
    return LockState(writers, readers, version)
