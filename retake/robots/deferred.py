"""Deferred work: kept until it is due, and until it is done.

A robot with `deferred_retry` in its policy keeps work here when its own retries are used up. It is stored in the
robot's StateStore under ID.deferred; in a bucket it outlives the process. There are no timers: a program that runs
periodically asks what is due.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from retake.clock import Clock, exact_stamp, is_ahead, parse_stamp
from retake.errors import Stopped
from retake.retrying.state_store import Raw, StateCell, StateStore
from retake.robots.idempotency import key_of

LEASE_S = 3600.0
"""Seconds after its last attempt until taken work becomes available to others, as its taker is presumed dead.

A robot that waits for longer than half of this between two attempts gets more.
"""


class TakenOver(Stopped):
    """Another process has taken over deferred work after one attempt took too long. This process does not repeat it."""


class Deferred(NamedTuple):
    """A piece of work that is due later."""

    key: str  # the idempotency key of the next two fields
    correlation_id: str
    input_data: Mapping[str, Any]
    due_at: datetime
    since: datetime  # when it was first deferred
    times: int  # how often it was deferred
    code: str  # of its last error
    taken_until: datetime | None = None  # a taker is working on it

    def is_due(self, now: datetime, longest_s: float, lease_s: float) -> bool:
        """Return whether it is due and not taken. Work is deferred for at most `longest_s`, and taken for `lease_s`."""
        taken = self.taken_until is not None and is_ahead(self.taken_until, now, longest_s=lease_s)
        return not taken and not is_ahead(self.due_at, now, longest_s=longest_s)


class Deferrals:
    """The deferred work of one robot, each piece deferred for at most `longest_s` seconds, and taken for `lease_s`.

    Every method may raise StateError, StorageError.
    """

    def __init__(self, states: StateStore, robot_id: str, clock: Clock, longest_s: float, lease_s: float) -> None:
        self._cell = StateCell(states, f"{robot_id}.deferred", decoded, encoded)
        self._clock, self._longest_s, self._lease_s = clock, longest_s, lease_s

    def put(self, correlation_id: str, input_data: Mapping[str, Any], after_s: float, code: str) -> Deferred:
        """Defer a piece of work for `after_s` seconds. Work with the same id and data is deferred again.

        Raises ValueError for data that are not JSON.
        """
        key = key_of({"correlation_id": correlation_id, "input_data": dict(input_data)})
        now = self._clock.now()
        due_at = now + timedelta(seconds=after_s)

        def step(known: Mapping[str, Deferred]) -> tuple[Mapping[str, Deferred], Deferred]:
            before = known.get(key)
            since, times = (before.since, before.times + 1) if before else (now, 1)
            new = Deferred(key, correlation_id, dict(input_data), due_at, since, times, code)
            return {**known, key: new}, new

        return self._cell.change(step)

    def all(self) -> list[Deferred]:
        """Return all deferred work, earliest first."""
        return sorted(self._cell.get().values(), key=lambda it: (it.due_at, it.key))

    def due(self, now: datetime) -> list[Deferred]:
        """Return the work that is due at `now` and not taken."""
        return [it for it in self.all() if it.is_due(now, self._longest_s, self._lease_s)]

    def take(self, key: str) -> Deferred | None:
        """Take a piece of work for `lease_s`. Return None if it is no longer due or somebody else has taken it."""
        now = self._clock.now()

        def step(known: Mapping[str, Deferred]) -> tuple[Mapping[str, Deferred], Deferred | None]:
            it = known.get(key)
            if it is None or not it.is_due(now, self._longest_s, self._lease_s):
                return known, None
            taken = it._replace(taken_until=now + timedelta(seconds=self._lease_s))
            return {**known, key: taken}, taken

        return self._cell.change(step)

    def renew(self, taken: Deferred) -> Deferred:
        """Keep work that was taken for another `lease_s`. Raises TakenOver."""
        kept = taken._replace(taken_until=self._clock.now() + timedelta(seconds=self._lease_s))

        def step(known: Mapping[str, Deferred]) -> tuple[Mapping[str, Deferred], bool]:
            return ({**known, taken.key: kept}, True) if _is_taken(known, taken) else (known, False)

        if not self._cell.change(step):
            raise TakenOver(f"another process has taken over {taken.correlation_id}, which took too long here")
        return kept

    def done(self, taken: Deferred) -> None:
        """Remove work that was taken, unless it has been deferred again in the meantime."""
        self._cell.update(lambda known: _without(known, taken))

    def give_back(self, taken: Deferred) -> None:
        """Return work that was taken but not done: it is due again, behind everything already due."""
        back = {taken.key: taken._replace(taken_until=None, due_at=self._clock.now())}
        self._cell.update(lambda known: {**known, **back} if _is_taken(known, taken) else known)


def _is_taken(known: Mapping[str, Deferred], taken: Deferred) -> bool:
    it = known.get(taken.key)
    return it is not None and (it.times, it.taken_until) == (taken.times, taken.taken_until)


def _without(known: Mapping[str, Deferred], taken: Deferred) -> Mapping[str, Deferred]:
    return {key: it for key, it in known.items() if key != taken.key} if _is_taken(known, taken) else known


def encoded(known: Mapping[str, Deferred]) -> Raw:
    return {
        it.key: {
            "correlation_id": it.correlation_id,
            "input_data": it.input_data,
            "due_at": exact_stamp(it.due_at),
            "since": exact_stamp(it.since),
            "times": it.times,
            "code": it.code,
            "taken_until": exact_stamp(it.taken_until) if it.taken_until else None,
        }
        for it in known.values()
    }


def decoded(raw: Raw | None) -> Mapping[str, Deferred]:
    """Decode a stored state. Raises ValueError, naming the field."""
    return {key: _deferred(key, value) for key, value in (raw or {}).items()}


def _deferred(key: str, value: Any) -> Deferred:
    try:
        due_at, since, until = (_moment(value[name]) for name in ("due_at", "since", "taken_until"))
        texts, data, times = (value["correlation_id"], value["code"]), value["input_data"], value["times"]
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{key}: is not deferred work ({error})") from error
    if due_at is None or since is None or type(times) is not int:
        raise ValueError(f"{key}: has no due_at, since or times")
    if not all(isinstance(text, str) for text in texts) or not isinstance(data, Mapping):
        raise ValueError(f"{key}: has no correlation_id, code or input_data")
    return Deferred(key, texts[0], data, due_at, since, times, texts[1], until)


def _moment(value: Any) -> datetime | None:
    return None if value is None else parse_stamp(value)
