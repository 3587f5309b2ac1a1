"""Named locks for many readers or one writer, shared by processes (docs/protocol.md, section "NR.NSI.6").

    locks = Locks(store, clock)
    with locks.write("length", owner="robot-6 on host-1") as version:
        ...    # nobody else reads or writes

A lock does not expire, since a slow holder cannot be told from a dead one: a writer waits for it and then fails, and
only readers get through once it is old. An owner that takes a lock again after a crash gets it at once, in place of
what it held before. So an owner is one worker, with one `Locks`, and a name that it keeps across restarts. A lock is
only as good as the store's compare-and-set (see `retake.retrying.state_store`).
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from logging import getLogger
from types import MappingProxyType
from typing import Any, NamedTuple

from retake.attempts import countdown, repeating
from retake.bucket import Conflict
from retake.clock import Clock, exact_stamp, is_ahead, parse_stamp
from retake.errors import RetakeError, RobotError
from retake.retrying.state_store import Raw, StateCell, StateStore, state_name

POLL_INTERVALS_S = (0.25, 0.25, 0.5, 1.0)
"""Seconds between checks of a lock that another holds; the last interval repeats."""

_log = getLogger(__name__)


class LockTimeout(RobotError):
    """The lock was not free in time. Nothing was done under it."""

    def __init__(self, message: str) -> None:
        super().__init__("ERR_TEMPORARY_LOCK_TIMEOUT", message)


class LockHold(NamedTuple):
    """A hold on a lock by one owner."""

    owner: str
    since: datetime


Holds = Mapping[str, LockHold]
"""Holds by token. Each acquisition has its own token."""


class LockState(NamedTuple):
    """The holders of a lock."""

    writers: Holds = MappingProxyType({})
    readers: Holds = MappingProxyType({})
    version: int = 0  # how many times it was taken for writing

    def without(self, ends: Callable[[str, LockHold], bool]) -> "LockState":
        """Return the state without the holds for which `ends(token, hold)` is true."""
        writers, readers = (
            {token: hold for token, hold in holds.items() if not ends(token, hold)}
            for holds in (self.writers, self.readers)
        )
        return LockState(writers, readers, self.version)


class Locks:
    """The locks in `store`. Waits up to `wait_s` seconds; readers get through a lock that is `break_after_s` old.

    In the same thread an owner may take a lock that it holds once more, read within its own write, and write within its
    own read. Every method may raise StateError, StorageError.
    """

    def __init__(self, store: StateStore, clock: Clock, *, wait_s: float = 60, break_after_s: float = 90) -> None:
        self._store, self._clock = store, clock
        self._wait_s, self._break_after_s = wait_s, break_after_s
        self._alive: dict[str, int] = {}  # the thread of each token held or waited for in this process

    @contextmanager
    def write(self, name: str, owner: str) -> Iterator[int]:
        """Hold the lock exclusively, and yield its version: the number of times it was taken for writing.

        Raises LockTimeout after `wait_s`, no matter how old the lock is.
        """
        with self._hold(name, owner, writes=True) as version:
            yield version

    @contextmanager
    def read(self, name: str, owner: str) -> Iterator[int]:
        """Hold the lock with other readers, and yield its version.

        A reader gets through when the writer's hold is `break_after_s` old; this is logged, and what it reads may be
        half written. A higher version later means that there has been another writer. Raises LockTimeout after
        `wait_s`.
        """
        with self._hold(name, owner, writes=False) as version:
            yield version

    def holders(self, name: str) -> LockState:
        """Return the holders of the lock."""
        return self._cell(name).get()

    def release(self, name: str, owner: str) -> None:
        """End all holds of `owner`, by order of an operator who knows that it is dead."""
        self._cell(name).update(lambda state: state.without(lambda token, hold: hold.owner == owner))

    @contextmanager
    def _hold(self, name: str, owner: str, *, writes: bool) -> Iterator[int]:
        token = os.urandom(8).hex()
        self._alive[token] = threading.get_ident()
        try:
            yield self._taken(name, owner, token, writes=writes)
        except BaseException:
            try:
                self._end(name, token)
            except RetakeError as error:  # the original exception matters more
                _log.error("%s still has the lock %s, it could not be released: %s", owner, name, error)
            raise
        else:
            self._end(name, token)
        finally:
            del self._alive[token]

    def _taken(self, name: str, owner: str, token: str, *, writes: bool) -> int:
        """Wait for the lock, take it, and return its version. Raises LockTimeout."""
        left = countdown(self._wait_s, self._clock)
        others: list[LockHold] = []
        for pause_s in repeating(*POLL_INTERVALS_S):
            now = self._clock.now()
            try:
                version, others = self._tried(name, token, LockHold(owner, now), writes=writes)
            except Conflict:  # contention: other owners changed it each time
                version = None
            if version is not None:
                return version
            if (left_s := left()) <= 0:
                break
            broken_in_s = [self._break_after_s - (now - it.since).total_seconds() for it in others if not writes]
            self._clock.sleep(min([pause_s, left_s, *(it for it in broken_in_s if it > 0)]))
        who = ", ".join(f"{it.owner} since {exact_stamp(it.since)}" for it in others) or "others were faster"
        raise LockTimeout(
            f"{name} was locked for {self._wait_s:g} s: {who}. Try again later; if the holder is dead, have it take "
            "the lock again, or end its hold with Locks.release"
        )

    def _tried(self, name: str, token: str, new: LockHold, *, writes: bool) -> tuple[int | None, list[LockHold]]:
        """Take the lock if that is allowed now; return its version (None: not taken) and its other holders."""
        thread, term_s = threading.get_ident(), self._break_after_s
        term = timedelta(seconds=term_s)

        def step(state: LockState) -> tuple[LockState, tuple[int | None, list[LockHold]]]:
            alive = dict(self._alive)
            rest = state.without(lambda it, hold: hold.owner == new.owner and it not in alive)  # left by a crash
            held = [*rest.writers.items(), *(rest.readers.items() if writes else ())]
            others = [hold for it, hold in held if hold.owner != new.owner or alive[it] != thread]
            if others and (writes or any(is_ahead(it.since, new.since - term, longest_s=term_s) for it in others)):
                return state, (None, others)
            if writes:
                rest = rest._replace(writers={**rest.writers, token: new}, version=rest.version + 1)
            else:
                rest = rest._replace(readers={**rest.readers, token: new})
            return rest, (rest.version, others)

        version, others = self._cell(name).change(step)
        if version is not None and others:
            writer = others[0]
            _log.warning("%s reads %s while %s is writing, since %s", new.owner, name, *writer)
        return version, others

    def _end(self, name: str, token: str) -> None:
        self._cell(name).update(lambda state: state.without(lambda it, hold: it == token))

    def _cell(self, name: str) -> StateCell[LockState]:
        return StateCell(self._store, state_name("lock", name), _decoded, _encoded)


def _encoded(state: LockState) -> Raw:
    def held(holds: Holds) -> dict[str, Any]:
        return {token: {"owner": hold.owner, "since": exact_stamp(hold.since)} for token, hold in holds.items()}

    return {"writers": held(state.writers), "readers": held(state.readers), "version": state.version}


def _decoded(raw: Raw | None) -> LockState:
    if raw is None:
        return LockState()
    try:
        writers, readers = (
            {token: LockHold(str(it["owner"]), parse_stamp(it["since"])) for token, it in raw[name].items()}
            for name in ("writers", "readers")
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"writers or readers: are not holds with owner and time ({error})") from error
    if type(version := raw.get("version")) is not int:
        raise ValueError(f"version: {version!r} is not a number")
    return LockState(writers, readers, version)
