"""Idempotent creation: asked twice for the same thing, it is made once and returned twice.

Seed 003, «NR.NSI.4 … Идемпотентность»: a key made from the data, a look before each attempt whether the thing is there
already, and a duplicate that the other side refuses is the thing itself. After five creations in a row that failed
nothing is made any more (read_only.py).

What was made and then could not be finished is marked as incorrect, and rolled back after a day unless somebody has
confirmed it (compensation.py).
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from logging import getLogger
from typing import Any, Generic, NamedTuple, TypeVar

from retake.clock import Clock
from retake.errors import Code, CodedError, RetakeError
from retake.retrying.breaker import BreakerOpen
from retake.retrying.guard import Call, Guard
from retake.retrying.state_store import MemoryStateStore, StateCell, StateStore
from retake.robots.compensation import Unconfirmed
from retake.robots.idempotency import key_of
from retake.robots.read_only import CreationMode, ReadOnly, decoded, encoded

_log = getLogger(__name__)
T = TypeVar("T")

Data = Mapping[str, Any]


class How(StrEnum):
    """Where the thing came from."""

    MADE = "made"
    FOUND = "found"  # it was there when we looked
    DUPLICATE = "duplicate"  # it was refused as a duplicate, and then it was there


class Created(NamedTuple, Generic[T]):
    """The thing, whoever made it."""

    key: str
    item: T
    how: How


class CreationPolicy(NamedTuple):
    """The numbers of seed 003, «NR.NSI.4»."""

    duplicate_codes: frozenset[str] = frozenset({"ERR_BUSINESS_DUPLICATE_ITEM"})
    read_only_after: int | None = 5  # creations in a row that failed; None: never
    confirm_within_s: float = 24 * 3600.0  # else what could not be finished is rolled back
    check_before_retry: bool = True  # look whether it is there before each repeat; before the first attempt always
    if_none_match: bool = False  # ask the other side to make it only if it is not there
    key_from_data: bool = True  # False: the thing has a key of its own


class CreationParts(NamedTuple, Generic[T]):
    """What creation is made of: the owner's own calls. Each may raise CodedError."""

    find: Callable[[str, Data], T | None]
    """The thing that has this key, or is otherwise the one that these data describe; None if there is none."""
    make: Callable[[str, Data, Call], T]
    """Make it. The key is for the other side: an Idempotency-Key. So is `call.if_none_match`, where it is set: the
    request is refused then if the thing is there, which is an error of `duplicate_codes`."""
    finish: Callable[[T, Data], None] | None = None
    """What belongs to it and comes after it was made. May be called again after it failed."""
    mark_incorrect: Callable[[T, CodedError], None] = lambda item, error: None
    """Make visible that it is there and not finished."""


Parts = CreationParts
"""The name for callers that import the module: `creation.Parts`."""


class Creator(Generic[T]):
    """Creates things of one kind. `name` is that of its state in `states`, which survives where that does."""

    def __init__(
        self,
        name: str,
        parts: CreationParts[T],
        guard: Guard,
        clock: Clock,
        policy: CreationPolicy = CreationPolicy(),  # noqa: B008  immutable
        states: StateStore | None = None,
    ) -> None:
        states = states or MemoryStateStore()
        self.name = name
        self.policy = policy
        self.unconfirmed = Unconfirmed(states, f"{name}.unconfirmed", clock, policy.confirm_within_s)
        self._mode = StateCell(states, name, decoded, encoded)
        self._parts, self._guard, self._clock = parts, guard, clock

    def create(self, data: Data, key: str | None = None) -> Created[T]:
        """The thing that `data` describe: the one that is there, or a new one. `key` is its idempotency key, where the
        policy does not make that from the data.

        Raises the last CodedError when the guard has given up, ReadOnly, BreakerOpen, Stopped, StorageError, and
        ValueError for data that have no key.
        """
        key = self._key(data, key)
        if self.mode().read_only_since:
            if (found := self._parts.find(key, data)) is not None:
                return Created(key, found, How.FOUND)
            self._let_probe_through()
        work = _Work(key, data, self._parts, self.policy, self.unconfirmed)
        try:
            created = self._guard.call(work.attempt)
        except BreakerOpen:
            raise  # nothing was tried
        except CodedError as error:
            code, now, limit = str(error.code), self._clock.now(), self.policy.read_only_after
            self._note(lambda mode: mode.after_failure(limit, code, now))
            work.give_up(error)
            raise
        if created.how is not How.FOUND:
            self._note(lambda mode: CreationMode())
        return created

    def _key(self, data: Data, given: str | None) -> str:
        if self.policy.key_from_data:
            if given is not None:
                raise ValueError(f"{self.name} makes idempotency keys from the data, and one was given: {given}")
            return key_of(data)
        if not given or not given.strip():
            raise ValueError(f"{self.name} takes the idempotency key from the item, and none was given")
        return given

    def mode(self) -> CreationMode:
        """Raises StateError, StorageError."""
        return self._mode.get()

    def probe(self) -> CreationMode:
        """Let one creation through although it is read-only, by an operator's order: its success ends that."""
        return self._mode.change(lambda mode: _both(mode._replace(probe_ordered=mode.read_only_since is not None)))

    def reset(self) -> CreationMode:
        """Make things again, by an operator's order."""
        return self._mode.change(lambda mode: _both(CreationMode()))

    def _let_probe_through(self) -> None:
        """Raises ReadOnly, unless a probe is ordered and nobody else has taken it up."""
        if not self._mode.change(lambda mode: (mode._replace(probe_ordered=False), mode.probe_ordered)):
            raise ReadOnly(
                f"{self.name}: nothing is made any more, {self.policy.read_only_after} creations in a row have failed; "
                "mend the cause, then order a probe or a reset"
            )

    def _note(self, step: Callable[[CreationMode], CreationMode]) -> None:
        """Whatever goes wrong here, what came of the creation counts for more."""
        try:
            self._mode.change(lambda mode: (step(mode), None))
        except RetakeError as error:
            _log.warning("%s: how a creation ended could not be noted: %s", self.name, error)


class _Work(Generic[T]):
    """One creation, over its attempts."""

    def __init__(
        self, key: str, data: Data, parts: CreationParts[T], policy: CreationPolicy, unconfirmed: Unconfirmed
    ) -> None:
        self._key, self._data = key, data
        self._parts, self._policy, self._unconfirmed = parts, policy, unconfirmed
        self._item: T | None = None  # once it is made
        self._under_way = 0  # the attempt that is waited for

    def attempt(self, call: Call) -> Created[T]:
        self._under_way = call.attempt
        created = self._created(call) if self._item is None else Created(self._key, self._item, How.MADE)
        if created.how is How.MADE and self._parts.finish:
            self._check(call)
            self._item = created.item
            self._parts.finish(created.item, self._data)
            self._check(call)
            self._unconfirmed.confirm(self._key)
        return created

    def _check(self, call: Call) -> None:
        """Keep an attempt that was abandoned from finishing what nobody waits for: it stays unconfirmed, and is rolled
        back in its time."""
        if call.attempt != self._under_way:
            raise CodedError(Code.TIMEOUT, f"attempt {call.attempt} to make {self._key} was abandoned")

    def give_up(self, error: CodedError) -> None:
        """Mark what was made and could not be finished."""
        self._under_way = 0
        if self._item is None:
            return
        self._unconfirmed.failed(self._key, str(error.code))
        try:
            self._parts.mark_incorrect(self._item, error)
        except CodedError as trouble:
            _log.warning("%s could not be marked as incorrect: %s", self._key, trouble)

    def _created(self, call: Call) -> Created[T]:
        look = call.attempt == 1 or self._policy.check_before_retry
        found = self._parts.find(self._key, self._data) if look else None
        if found is None:
            return self._made(call._replace(if_none_match="*") if self._policy.if_none_match else call)
        unfinished = self._parts.finish is not None and self._unconfirmed.has(self._key)
        # What is there before a repeat and was not before the first call is ours: only the answer was lost.
        return Created(self._key, found, How.MADE if unfinished or call.attempt > 1 else How.FOUND)

    def _made(self, call: Call) -> Created[T]:
        if self._parts.finish:  # noted before: that somebody died between making and finishing must be found out
            self._unconfirmed.begun(self._key)
        try:
            return Created(self._key, self._parts.make(self._key, self._data, call), How.MADE)
        except CodedError as error:
            found = self._parts.find(self._key, self._data) if error.code in self._policy.duplicate_codes else None
            if found is None:
                raise
        if self._parts.finish:
            self._unconfirmed.confirm(self._key)  # it is somebody else's
        return Created(self._key, found, How.DUPLICATE)


def _both(mode: CreationMode) -> tuple[CreationMode, CreationMode]:
    return mode, mode
