"""Idempotent creation: an item that is requested twice is created once and returned twice.

docs/protocol.md, section "NR.NSI.4": the key is made from the data, the item is looked up before each attempt, and a
refusal as a duplicate leads to the existing item. After five failed creations in a row nothing more is created
(read_only.py).

An item that was created but could not be finished is marked as incorrect, and rolled back after a day unless it is
confirmed (compensation.py).
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from logging import getLogger
from typing import Any, Generic, NamedTuple, TypeVar

from retake.clock import Clock
from retake.errors import Code, CodedError, RetakeError, Stopped
from retake.retrying.breaker import BreakerOpen
from retake.retrying.guard import Call, Guard
from retake.retrying.state_store import MemoryStateStore, StateCell, StateStore
from retake.robots.compensation import Unconfirmed
from retake.robots.follow_ups import When
from retake.robots.idempotency import key_of
from retake.robots.read_only import CreationMode, ReadOnly, decoded, encoded

_log = getLogger(__name__)
T = TypeVar("T")

Data = Mapping[str, Any]


class How(StrEnum):
    """Where the item came from."""

    MADE = "made"
    FOUND = "found"  # it existed before
    DUPLICATE = "duplicate"  # ours was refused as a duplicate, and the existing item found


class Created(NamedTuple, Generic[T]):
    """An item that exists now, no matter who created it."""

    key: str
    item: T
    how: How


class CreationPolicy(NamedTuple):
    """The numbers of docs/protocol.md, section "NR.NSI.4"."""

    duplicate_codes: frozenset[str] = frozenset({"ERR_BUSINESS_DUPLICATE_ITEM"})
    read_only_after: int | None = 5  # failed creations in a row; None: never
    read_only_if: When = When()  # the errors that count towards it
    confirm_within_s: float = 24 * 3600.0  # an unfinished item is rolled back after this time
    check_before_retry: bool = True  # look up the item before each retry, not only before the first attempt
    if_none_match: bool = False  # ask the other side to create it only if it does not exist
    key_from_data: bool = True  # False: the caller provides the item's key


class CreationParts(NamedTuple, Generic[T]):
    """The caller's functions for its kind of item. Each may raise CodedError."""

    find: Callable[[str, Data], T | None]
    """Return the item with this key, else the one that the data describe, else None."""
    make: Callable[[str, Data, Call], T]
    """Create the item.

    Send the key to the other side as Idempotency-Key and, if set, `call.if_none_match` as If-None-Match: a request for
    an existing item then fails with one of `duplicate_codes`.
    """
    finish: Callable[[T, Data], None] | None = None
    """Do what has to follow the creation. May be called again after a failure."""
    mark_incorrect: Callable[[T, CodedError], None] = lambda item, error: None
    """Make visible that the item exists but is not finished."""


Parts = CreationParts
"""Short name for callers that import the module: `creation.Parts`."""


class Creator(Generic[T]):
    """Creates items of one kind. Its state is kept in `states` under `name`, and lives as long as `states` does."""

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
        self.read_only_began = False  # whether the last failure of this creator began read-only mode
        self.unconfirmed = Unconfirmed(states, f"{name}.unconfirmed", clock, policy.confirm_within_s)
        self._mode = StateCell(states, name, decoded, encoded)
        self._parts, self._guard, self._clock = parts, guard, clock

    def create(self, data: Data, key: str | None = None) -> Created[T]:
        """Return the item that `data` describe: the existing one, or a new one.

        `key` is its idempotency key if the policy does not make it from the data. Raises the last CodedError when the
        guard gives up, ReadOnly, BreakerOpen, Stopped, StorageError, and ValueError for data without a key.
        """
        key = self._key(data, key)
        if probing := self.mode().read_only_since is not None:
            found = self._parts.find(key, data)
            if found is not None and not (self._parts.finish and self.unconfirmed.has(key)):
                return Created(key, found, How.FOUND)
            self._let_probe_through()
        work = _Work(key, data, self._parts, self.policy, self.unconfirmed)
        try:
            created = self._guard.call(work.attempt)
        except (BreakerOpen, Stopped):
            if probing and not work.begun:
                self._note(lambda mode: mode._replace(probe_ordered=mode.read_only_since is not None))
            raise
        except CodedError as error:
            code, now, limit = str(error.code), self._clock.now(), self.policy.read_only_after
            counts = self.policy.read_only_if.holds_for(error)
            self.read_only_began = counts and self._note(lambda mode: mode.after_failure(limit, code, now))
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
        """Return the current mode. Raises StateError, StorageError."""
        return self._mode.get()

    def probe(self) -> CreationMode:
        """Let one creation through in read-only mode, by order of an operator. Its success ends the mode."""
        return self._mode.update(lambda mode: mode._replace(probe_ordered=mode.read_only_since is not None))

    def reset(self) -> CreationMode:
        """End read-only mode, by order of an operator."""
        return self._mode.update(lambda mode: CreationMode())

    def _let_probe_through(self) -> None:
        """Raise ReadOnly, unless a probe is ordered that no other creation has taken."""
        if not self._mode.change(lambda mode: (mode._replace(probe_ordered=False), mode.probe_ordered)):
            raise ReadOnly(
                f"{self.name}: nothing more is created: {self.policy.read_only_after} creations in a row have failed; "
                "fix the cause, then order a probe or a reset"
            )

    def _note(self, step: Callable[[CreationMode], CreationMode]) -> bool:
        """Save a change of the mode, and return whether it began read-only mode.

        An error is only logged: the result of the creation matters more.
        """

        def change(mode: CreationMode) -> tuple[CreationMode, bool]:
            new = step(mode)
            return new, mode.read_only_since is None and new.read_only_since is not None

        try:
            return self._mode.change(change)
        except RetakeError as error:
            _log.warning("%s: the outcome of a creation could not be saved: %s", self.name, error)
            return False


class _Work(Generic[T]):
    """One creation with all its attempts."""

    def __init__(
        self, key: str, data: Data, parts: CreationParts[T], policy: CreationPolicy, unconfirmed: Unconfirmed
    ) -> None:
        self._key, self._data = key, data
        self._parts, self._policy, self._unconfirmed = parts, policy, unconfirmed
        self._item: T | None = None  # set when it is created
        self._under_way = 0  # the number of the current attempt; 0: none
        self._asked = False  # whether an earlier attempt asked the other side to create it

    @property
    def begun(self) -> bool:
        """Whether there was an attempt."""
        return self._under_way > 0

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
        """Keep an abandoned attempt from finishing the item, which stays unconfirmed and is rolled back when due."""
        if call.attempt != self._under_way:
            raise CodedError(Code.TIMEOUT, f"attempt {call.attempt} to make {self._key} was abandoned")

    def give_up(self, error: CodedError) -> None:
        """Mark the item as incorrect if it was created but could not be finished."""
        self._under_way = 0
        if self._item is None:
            return
        self._unconfirmed.failed(self._key, str(error.code))
        try:
            self._parts.mark_incorrect(self._item, error)
        except CodedError as trouble:
            _log.warning("%s could not be marked as incorrect: %s", self._key, trouble)

    def _created(self, call: Call) -> Created[T]:
        look = not self._asked or self._policy.check_before_retry
        found = self._parts.find(self._key, self._data) if look else None
        if found is None:
            return self._made(call._replace(if_none_match="*") if self._policy.if_none_match else call)
        unfinished = self._parts.finish is not None and self._unconfirmed.has(self._key)
        # An item that exists now, and did not before the first request, is ours: only the answer was lost.
        return Created(self._key, found, How.MADE if unfinished or self._asked else How.FOUND)

    def _made(self, call: Call) -> Created[T]:
        begun, ours, self._asked = None, self._asked, True
        if self._parts.finish:  # recorded first, so that a crash between creating and finishing leaves a trace
            begun, unfinished = self._unconfirmed.begun(self._key)
            ours = ours or unfinished
        try:
            return Created(self._key, self._parts.make(self._key, self._data, call), How.MADE)
        except CodedError as error:
            if error.code not in self._policy.duplicate_codes:
                raise
            if not ours:  # no earlier request can have created it: another caller did
                self._asked = False
                if begun:
                    self._unconfirmed.forget(begun)
            if (found := self._parts.find(self._key, self._data)) is None:
                raise
            return Created(self._key, found, How.MADE if ours and begun else How.DUPLICATE)
