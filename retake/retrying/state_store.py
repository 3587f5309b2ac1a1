"""Small states shared by threads, processes and machines: one JSON object per name, changed by compare-and-set.

These states are hints (a breaker, a mode): a change that keeps losing against others fails after a bounded time, and
the caller continues without it. No lease is taken. A conditional write is atomic in every store except an S3 that
ignores conditions. There, two callers that change the same state at the same instant may both believe that they
succeeded. A lease would cost such a store seven requests per change, and a process can have only one lease with a kill
timer.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from retake import strict_json
from retake.attempts import attempts
from retake.bucket import ABSENT, Bucket, Conflict, Expect, NotFound, check_key
from retake.bucket.contract import is_key, scan, write_unsynced
from retake.clock import Clock
from retake.errors import StateError

S = TypeVar("S")
T = TypeVar("T")

Raw = Mapping[str, Any]
Change = Callable[[Raw | None], tuple[Raw | None, T]]
"""Takes the current state (None: there is none). Returns the new one (None: no change) and a result. It must be pure:
it may be called several times, and only the last call counts."""

_PAUSES_S = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.13, 0.21, 0.34, 0.55, 0.89)
"""Seconds between tries while others change the same state, two and a half in all."""

_REMEDY = "fix it or remove it"


class StateStore(Protocol):
    """A store of states. Every method may raise StorageError, and ValueError for a name that is not a valid key."""

    def where(self, name: str) -> str:
        """Return the location of this state, for messages."""
        ...

    def names(self) -> list[str]:
        """Return the names of all states."""
        ...

    def read(self, name: str) -> Raw | None:
        """Return the state, or None. Raises StateError if it is not a JSON object."""
        ...

    def change(self, name: str, change: Change[T]) -> T:
        """Replace the state by what `change` makes of it, atomically, and return the result of `change`.

        Raises StateError, and Conflict if others were faster each time for more than two seconds; nothing is changed.
        """
        ...


class MemoryStateStore:
    """The states of one process. Thread safe."""

    def __init__(self) -> None:
        self._kept: dict[str, Raw] = {}
        self._lock = threading.RLock()

    def where(self, name: str) -> str:
        return name

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._kept)

    def read(self, name: str) -> Raw | None:
        with self._lock:
            return self._kept.get(name)

    def change(self, name: str, change: Change[T]) -> T:
        with self._lock:
            new, result = change(self._kept.get(name))
            if new is not None:
                self._kept[name] = new
            return result


class BucketStateStore:
    """States in `folder` (which ends in "/") of `bucket`, as NAME.json. They outlive ticks and processes. Thread safe.

    No lease may be taken through a bucket made for `folder` (`Bucket.part`). `pauses_s` are the seconds between tries
    while others change the same state. Unless `synced`, a change may be lost in a power cut (see
    retake.bucket.contract). `remedy` is what the error for an invalid document advises.

    >>> from retake.bucket.memory import MemoryBucket
    >>> from retake.clock import SystemClock
    >>> states = BucketStateStore(MemoryBucket(), "counters/", SystemClock())
    >>> states.change("posters", lambda raw: ({"count": (raw or {"count": 0})["count"] + 1}, "counted"))
    'counted'
    >>> states.read("posters")
    {'count': 1}
    """

    def __init__(
        self,
        bucket: Bucket,
        folder: str,
        clock: Clock,
        *,
        pauses_s: Sequence[float] = _PAUSES_S,
        synced: bool = True,
        remedy: str = _REMEDY,
    ) -> None:
        self._bucket = bucket.part(folder)
        self._folder = folder
        self._clock = clock
        self._pauses_s = pauses_s
        self._remedy = remedy
        self._write = self._bucket.write if synced else partial(write_unsynced, self._bucket)

    def where(self, name: str) -> str:
        return f"{self._folder}{name}.json"

    def names(self, after: str = "") -> list[str]:
        """Return the names of all states, or of those that sort after `after`: the fewer, the cheaper."""
        keys = (entry.key for entry in scan(self._bucket, "", _key(after) if after else ""))
        return sorted(key.removesuffix(".json") for key in keys if key.endswith(".json") and "/" not in key)

    def read(self, name: str) -> Raw | None:
        return self._look(name)[0]

    def change(self, name: str, change: Change[T]) -> T:
        for attempt in attempts(self._pauses_s, self._clock.sleep):
            raw, version = self._look(name)
            new, result = change(raw)
            if new is None:
                return result
            try:
                self._write(_key(name), strict_json.encode(new), version)
            except Conflict:
                if attempt.last:
                    raise
            else:
                return result
        raise AssertionError

    def _look(self, name: str) -> tuple[Raw | None, str | Expect]:
        try:
            data, version = self._bucket.read(_key(name))
        except NotFound:
            return None, ABSENT
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise unreadable(self.where(name), f"not JSON ({error})", self._remedy) from error
        if not isinstance(value, dict):
            raise unreadable(self.where(name), "the whole document is not an object", self._remedy)
        return value, version


class StateCell(Generic[S]):
    """One state of a store, decoded.

    `decode` takes what is stored (None: nothing yet) and raises ValueError("field: what is wrong with it"). `encode` is
    its inverse. `remedy` is what the error for an invalid state advises.
    """

    def __init__(
        self,
        states: StateStore,
        name: str,
        decode: Callable[[Raw | None], S],
        encode: Callable[[S], Raw],
        *,
        remedy: str = _REMEDY,
    ) -> None:
        self._states, self._name, self._decode, self._encode = states, name, decode, encode
        self._remedy = remedy

    def get(self) -> S:
        """Return the current state. Raises StateError, StorageError."""
        return self._decoded(self._states.read(self._name))

    def change(self, step: Callable[[S], tuple[S, T]]) -> T:
        """Replace the state by what `step` makes of it, and return the result of `step`. An equal state is not written.

        Raises StateError, StorageError, and Conflict (see `StateStore.change`).
        """

        def change(raw: Raw | None) -> tuple[Raw | None, T]:
            state = self._decoded(raw)
            new, result = step(state)
            return (None if new == state else self._encode(new)), result

        return self._states.change(self._name, change)

    def update(self, step: Callable[[S], S]) -> S:
        """Replace the state by what `step` makes of it, and return the new state. Raises what `change` raises."""

        def change(state: S) -> tuple[S, S]:
            new = step(state)
            return new, new

        return self.change(change)

    def _decoded(self, raw: Raw | None) -> S:
        try:
            return self._decode(raw)
        except ValueError as error:
            raise unreadable(self._states.where(self._name), str(error), self._remedy) from error


def state_name(kind: str, text: str) -> str:
    """Return the name of a state of this kind about `text`, which may be any text: an id, a key, a path.

    It is KIND.TEXT if that is a valid key, so that people can find the document, and otherwise KIND.~DIGEST. Raises
    ValueError for what is not text, such as an id that is a number.
    """
    from hashlib import sha256

    if not isinstance(text, str):
        raise ValueError(f"{kind}: {text!r} is not text")  # noqa: TRY004  as for other arguments
    name = f"{kind}.{text}"
    if "/" in name or text.startswith("~") or not is_key(f"{name}.json"):
        return f"{kind}.~{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return name


def unreadable(where: str, what: str, remedy: str = _REMEDY) -> StateError:
    """Return the error for an invalid document."""
    return StateError(f"{where}: {what}. It is left as it is; {remedy}")


def _key(name: str) -> str:
    if "/" in name:
        raise ValueError(f"not a name: {name!r}")
    return f"{check_key(name)}.json"
