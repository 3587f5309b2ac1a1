"""The work that a robot is given in a play, by the sections of its policy, and the world in which it fails as ordered.

Each piece of work is one call of the robot: `run` (with locks, a saga and an outbox, stores and snapshots, or a cache,
as the policy says), `create`, `create_all` or `validate`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from retake.bucket.memory import MemoryBucket
from retake.errors import CodedError, ErrorClass, RobotError
from retake.plural import count
from retake.retrying.guard import Call
from retake.retrying.policy import GiveUp
from retake.retrying.state_store import StateStore
from retake.robots import batch, creation
from retake.robots.batch_plan import Answer, Made
from retake.robots.deferred import Deferred
from retake.robots.fallback import Stores
from retake.robots.follow_ups import Do
from retake.robots.locks import Locks
from retake.robots.outbox import Outbox
from retake.robots.play.orders import FINISH, ITEM, FailureQueue
from retake.robots.play.timeline import PlayTimeline
from retake.robots.policies import RobotPolicy
from retake.robots.protocol import creation_policy
from retake.robots.robot import Result, Robot
from retake.robots.saga import Saga, SagaStep
from retake.robots.snapshots import Snapshots
from retake.robots.step_validation import OUT_OF_RANGE, STEP_VIOLATION, grid
from retake.robots.wording import length

CACHED = "payload"
"""The cache key of the robot's results, if it has a cache."""

_GRID, _GRID_IN_WORDS = grid(100, 200, 10), "100, 110, … 200"
_MEASURED = {STEP_VIOLATION: 123, OUT_OF_RANGE: 213}
"""The measured value that makes the robot itself find this error."""


class PlayStage(NamedTuple):
    """Everything that a piece of work needs."""

    policy: RobotPolicy
    robot: Robot
    timeline: PlayTimeline
    failures: FailureQueue
    states: StateStore

    def error(self, code: str) -> RobotError:
        return RobotError(code, self.policy.errors[code])


def world_of(stage: PlayStage) -> "CallingWorld":
    """Return the world for the work of this robot."""
    policy = stage.policy
    if policy.batch:
        return BatchWorld(stage)
    if policy.validation:
        return MeasuringWorld(stage)
    creates = policy.idempotency is not None and policy.idempotency.check_before_create
    return CreatingWorld(stage) if creates else CallingWorld(stage)


class CallingWorld:
    """Work that calls another system, and the deferred work of any robot."""

    def __init__(self, stage: PlayStage) -> None:
        self._stage, self._timeline, policy = stage, stage.timeline, stage.policy
        self._half_done = False
        self._away: CodedError | None = None  # why the main store does not accept values
        order, rules = policy.stores, policy.snapshots
        puts = [(name, self._put_into(name)) for name in order.order] if order else []
        self._stores = Stores(puts, buffer=stage.states, clock=self._timeline) if puts else None
        self._snapshots = (
            Snapshots(MemoryBucket(), "state/", self._timeline, rules.every_s, [MemoryBucket()]) if rules else None
        )
        self._outbox = Outbox(stage.states, self._timeline)

    def work(self, number: int) -> Result[Any]:
        """Have the robot do piece of work `number`, and return its result."""
        name, policy = f"work-{number}", self._stage.policy
        self._half_done = False
        self._timeline.begin(f"begins {name}")
        result = self._stage.robot.run(
            lambda call: self._attempt(call, name),
            correlation_id=name,
            input_data={"work": name},
            validate=self._validate,
            partly_done=lambda: self._half_done,
            cache_key=CACHED if policy.cache else None,
        )
        if result.cached_age_s is not None:
            age = length(60 * round(result.cached_age_s / 60))
            self._timeline.add(f"returns the result of {age} ago from the cache, for reading only")
        self._deliver()
        return result

    def take_up_deferred(self) -> list[Result[Any]]:
        """Have the robot do the deferred work that is due."""

        def attempt(deferred: Deferred, call: Call) -> Any:
            if call.attempt == 1:
                self._half_done = False
                self._timeline.begin(f"takes up the deferred {deferred.correlation_id} again")
            return self._attempt(call, deferred.correlation_id)

        found = [it for _, it in self._stage.robot.run_due(attempt, validate=lambda deferred: self._validate())]
        self._deliver()
        return found

    def next_due(self) -> datetime | None:
        """Return when the next thing besides deferred work is due, or None."""
        return None

    def do_due(self) -> None:
        """Do what is due now, besides deferred work."""

    def _attempt(self, call: Call, name: str) -> Any:
        self._timeline.check_breaker()
        failure, policy = self._stage.failures.take(), self._stage.policy
        error = self._stage.error(failure.code) if failure else None
        if self._snapshots and self._snapshots.take({"work": name}):
            self._timeline.add("takes a snapshot, and replicates it elsewhere")
        with self._lock():
            if self._stores:
                self._store(self._stores, f"{name}.{call.attempt}", error)
            if policy.compensation and policy.compensation.after == "partial_setup" and not self._half_done:
                self._half_done = True
                self._timeline.add("sets the first of two values")
            if policy.consistency and policy.consistency.saga:
                self._link(call, name, error)
            else:
                self._end(call, error, "sets the second one: done" if self._half_done else "succeeds")
        if self._stores and (copied := self._stores.sync()):
            self._timeline.add(f"{count(copied, 'buffered value')} copied to the main store")
        return {"work": name}

    def _end(self, call: Call, error: CodedError | None, done: str) -> None:
        if error:
            self._timeline.failed(call.attempt, error.code, f"fails: {error}")
            raise error
        self._timeline.add(done, attempt=call.attempt)

    def _link(self, call: Call, name: str, error: CodedError | None) -> None:
        """Do both steps of a saga; the second one fails as ordered."""
        steps = [
            SagaStep(
                "reserve",
                lambda: self._timeline.add("reserves both items, step 1 of the saga"),
                lambda: self._timeline.add("releases them: the saga is undone"),
            ),
            SagaStep("link", lambda: self._end(call, error, "links them, step 2 of the saga"), lambda: None),
        ]
        Saga(self._stage.states, self._timeline).run(name, steps)
        if self._stage.policy.consistency and self._stage.policy.consistency.outbox:
            self._outbox.put(name, {"linked": name})

    def _deliver(self) -> None:
        self._outbox.deliver(lambda message: self._timeline.add(f"the outbox delivers: {message['linked']} is linked"))

    def _validate(self) -> None:
        self._timeline.add("validates the data")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        rules = self._stage.policy.locks
        if rules is None:
            yield
            return
        locks = Locks(self._stage.states, self._timeline, wait_s=rules.wait_s, break_after_s=rules.break_after_s)
        with locks.write("values", self._stage.policy.id) as version:
            self._timeline.add(f"takes the lock of the values for writing, version {version}")
            try:
                yield
            finally:
                self._timeline.add("releases the lock")

    def _store(self, stores: Stores, key: str, error: CodedError | None) -> None:
        """Store a value, in a lower store if the main one is unreachable. Other errors leave no value to store."""
        if error and error.error_class is not ErrorClass.TEMPORARY:
            return
        self._away = error
        if (name := stores.put(key, {"value": key})) and error:
            self._timeline.add(f"{name} takes the value instead, for later")

    def _put_into(self, name: str) -> Callable[[str, Any], None]:
        def put(key: str, value: Any) -> None:
            order = self._stage.policy.stores
            if self._away and order and name == order.primary:
                raise self._away

        return put


class CreatingWorld(CallingWorld):
    """An item that is looked up, created and finished."""

    def __init__(self, stage: PlayStage) -> None:
        super().__init__(stage)
        self._policy = creation_policy(stage.policy)
        self._items: set[str] = set()
        self._attempt_number = 1
        finishes = stage.policy.compensation is not None
        self._parts: creation.CreationParts[str] = creation.CreationParts(
            self._find, self._make, self._finish if finishes else None, self._mark
        )

    def work(self, number: int) -> Result[Any]:
        """Have the robot create an item, and return its result."""
        name = f"item-{number}"
        self._timeline.begin(f"begins {name}")
        key = None if self._policy.key_from_data else name
        result = self._stage.robot.create(self._parts, {"item": name}, correlation_id=name, key=key)
        if result.value and result.value.how is not creation.How.MADE:
            self._timeline.add("returns the existing item", attempt=result.attempts, action=Do.RETURN_EXISTING.value)
        elif result.failures and not result.attempts:
            error = result.failures[0].error
            self._timeline.add(f"is refused: {error}", error_code=error.code)
        return result

    def next_due(self) -> datetime | None:
        """Return when the next unfinished item is rolled back, or None."""
        found = [it.since for it in self._unconfirmed().all() if it.key in self._items]
        return min(found) + timedelta(seconds=self._policy.confirm_within_s) if found else None

    def do_due(self) -> None:
        """Roll back the items that nobody has confirmed."""
        self._unconfirmed().roll_back_due(self._roll_back)

    def _unconfirmed(self) -> Any:
        return self._stage.robot.creator(self._parts).unconfirmed

    def _roll_back(self, key: str) -> None:
        if key in self._items:
            self._items.remove(key)
            self._timeline.add("rolls the item back: nobody has confirmed it", action=Do.ROLL_BACK.value)

    def _find(self, key: str, data: Mapping[str, Any]) -> str | None:
        there = key in self._items
        self._timeline.add(f"looks for the item: it {'exists' if there else 'does not exist'}")
        return key if there else None

    def _make(self, key: str, data: Mapping[str, Any], call: Call) -> str:
        self._timeline.check_breaker()
        self._attempt_number = call.attempt
        if failure := self._stage.failures.take():
            error = self._stage.error(failure.code)
            if error.code in self._policy.duplicate_codes:  # another program was faster
                self._items.add(key)
                self._timeline.add(f"is refused: {error}", error_code=error.code)
            else:
                self._timeline.failed(call.attempt, error.code, f"fails to create it: {error}")
            raise error
        self._items.add(key)
        if self._parts.finish:
            self._timeline.add("creates it")
        else:
            self._timeline.add("creates it", attempt=call.attempt)
        return key

    def _finish(self, item: str, data: Mapping[str, Any]) -> None:
        attempt = self._attempt_number
        if failure := self._stage.failures.take(FINISH):
            self._attempt_number += 1  # a retry only finishes the item
            error = self._stage.error(failure.code)
            self._timeline.failed(attempt, error.code, f"fails to finish it: {error}")
            raise error
        self._timeline.add("finishes it", attempt=attempt)

    def _mark(self, item: str, error: CodedError) -> None:
        self._timeline.add("marks the item as incorrect", action=Do.MARK.value)


class MeasuringWorld(CallingWorld):
    """A number that is measured and validated."""

    def work(self, number: int) -> Result[Any]:
        """Have the robot validate a number, and return its result."""
        name = f"value-{number}"
        self._timeline.begin(f"begins {name}, on the grid {_GRID_IN_WORDS}")
        result = self._stage.robot.validate(self._measure, _GRID, correlation_id=name)
        if (verdict := result.value) and verdict.code:
            self._timeline.add(f"{verdict.value} passes ({verdict.finding})", attempt=result.attempts)
        return result

    def _measure(self, call: Call) -> int:
        self._timeline.check_breaker()
        failure = self._stage.failures.take()
        if failure and failure.code in _MEASURED:
            value = _MEASURED[failure.code]
            self._timeline.add(f"measures {value}")
            return value
        self._end(call, self._stage.error(failure.code) if failure else None, "measures 120: an allowed value")
        return 120


class BatchWorld(CallingWorld):
    """Items that are created in batches."""

    def __init__(self, stage: PlayStage) -> None:
        super().__init__(stage)
        self._items: set[str] = set()
        self._tries: dict[str, int] = {}

    def work(self, number: int) -> Result[Any]:
        """Have the robot create a whole batch, and return its result."""
        size = self._stage.policy.batch.size if self._stage.policy.batch else 1
        names = [f"item-{(number - 1) * size + it}" for it in range(1, size + 1)]
        self._timeline.begin(f"begins a batch of {count(size, 'item')}")
        parts = batch.Parts(self._find, self._send, self._undo)
        items = [batch.Item(name, {"item": name}) for name in names]
        result = self._stage.robot.create_all(parts, items, correlation_id=f"batch-{number}")
        if result.value:
            it = result.value.statistics
            rolled_back = f", {it.rolled_back} rolled back" if it.rolled_back else ""
            self._timeline.add(f"ends the batch: {it.created} created, {it.failed} failed{rolled_back}")
        return result

    def _find(self, item: batch.Item) -> str | None:
        return item.key if item.key in self._items else None

    def _send(self, load: batch.BatchCall) -> Mapping[str, Answer[str]]:
        size = len(load.items)
        what = f"sends {count(size, 'item') if size > 1 else load.items[0].key}"
        if failure := self._stage.failures.take():
            error = self._stage.error(failure.code)
            self._timeline.failed(load.attempt, error.code, f"{what}: {error}")
            if self._stage.policy.batch and error.code in self._stage.policy.batch.split_after and size > 1:
                self._timeline.add("retries them in two halves", action=Do.SPLIT_BATCH.value)
            raise error
        answers = self._answers([it.key for it in load.items])
        failed = {key: it for key, it in answers.items() if isinstance(it, CodedError)}
        self._items |= answers.keys() - failed.keys()
        if not failed:
            self._timeline.add(f"{what}: created", attempt=load.attempt)
            return answers
        first = next(iter(failed.values()))
        about = next(iter(failed)) if len(failed) == 1 else f"{len(failed)} of them"
        which = f"{about} failed: " if size > 1 else ""
        self._timeline.failed(load.attempt, first.code, f"{what}: {which}{first}")
        self._add_given_up(failed)
        return answers

    def _answers(self, keys: list[str]) -> dict[str, Answer[str]]:
        """Return an answer for each item. Each takes one failure; the failures after a retried one are left for
        its retries."""
        answers: dict[str, Answer[str]] = {}
        repeated = False
        for key in keys:
            self._tries[key] = self._tries.get(key, 0) + 1
            failure = None if repeated else self._stage.failures.take(ITEM)
            answers[key] = error = self._stage.error(failure.code) if failure else Made(key)
            repeated = repeated or (isinstance(error, CodedError) and not self._is_given_up(key, error))
        return answers

    def _is_given_up(self, key: str, error: CodedError) -> bool:
        policy = self._stage.policy.item_retry
        return policy is None or isinstance(policy.decide(error, self._tries[key], lambda: 0.5), GiveUp)

    def _add_given_up(self, failed: Mapping[str, CodedError]) -> None:
        for key, error in failed.items():
            for action in self._stage.policy.last_failure.actions:
                if (
                    action.do is Do.CONTINUE_WITH_REST
                    and action.when.holds_for(error)
                    and self._is_given_up(key, error)
                ):
                    self._timeline.add(f"continues without {key}", action=action.do.value)

    def _undo(self, item: batch.Item, made: str) -> None:
        self._items.discard(item.key)
        self._timeline.add(f"rolls {item.key} back: too many of the batch have failed")
