"""The plan of a batch: the next step, and how its result changes the plan. Pure; batch.py carries it out.

docs/protocol.md, section "NR.NSI.5": a batch has at most 10 items, partial success is allowed, above 50 % of failures
the whole batch is rolled back, and a batch that is too large for the other side is split. If the call fails, the batch
is retried as a whole (3 times); if the answer reports the failure of an item, that item is retried alone (5 times).

The percentage refers to the original batch: split in halves it is still one batch.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from retake.errors import CodedError, RobotError
from retake.retrying.backoff import Intervals
from retake.retrying.policy import Decision, Retry, RetryPolicy, decide_on_paid
from retake.retrying.time_limit import Overrun

T = TypeVar("T")

UNANSWERED = "ERR_TEMPORARY_BATCH_FAILURE"
"""The error of an item that the answer does not mention."""


class BatchPolicy(NamedTuple):
    """The numbers of docs/protocol.md, section "NR.NSI.5"."""

    batch: RetryPolicy = RetryPolicy(3, Intervals((5.0, 25.0, 125.0)))
    item: RetryPolicy = RetryPolicy(5, Intervals((1.0, 3.0, 9.0, 27.0, 81.0)))
    size: int = 10  # maximum number of items
    roll_back_above_percent: float = 50.0  # of a batch's items failed; exactly this share is not enough
    split_codes: frozenset[str] = frozenset({"ERR_CRITICAL_MEMORY_OVERFLOW"})
    check_before_retry: bool = True  # look up an item before it is sent again


class Made(NamedTuple, Generic[T]):
    """The call created this item."""

    item: T


class Exists(NamedTuple, Generic[T]):
    """The item already existed: the other side refused ours as a duplicate."""

    item: T


Answer = Made[T] | Exists[T] | CodedError
"""The answer for one item."""


class ItemFate(StrEnum):
    """How an item ended."""

    CREATED = "created"
    EXISTING = "existing"  # it existed before and is never rolled back
    FAILED = "failed"
    ROLLED_BACK = "rolled back"


class EndedItem(NamedTuple, Generic[T]):
    """An item that is finished."""

    fate: ItemFate
    item: T | None  # None if it failed
    error: CodedError | None = None  # why it failed, or why it could not be rolled back
    retries: int = 0  # number of retries, alone or with other items; of the rollback if that failed


class BatchLoad(NamedTuple):
    """Items for one call."""

    keys: tuple[str, ...]
    due: datetime
    attempt: int = 1
    alone: bool = False  # one item that failed in a larger call: the policy for items applies
    retries: int = 0  # how often its items were tried before, in this load or others


class BatchTally(NamedTuple):
    """How many calls and retries a batch took."""

    calls: int = 0
    batch_repeats: int = 0
    item_repeats: int = 0
    splits: int = 0


class BatchPlan(NamedTuple, Generic[T]):
    """The progress of one batch. Each key is in exactly one of the loads or in `ended`."""

    policy: BatchPolicy
    keys: tuple[str, ...]  # all different
    loads: tuple[BatchLoad, ...]
    ended: Mapping[str, EndedItem[T]]
    began: datetime
    sent: frozenset[str] = frozenset()  # keys that were part of a call, and may exist whatever its answer was
    verified: bool = False  # failed items have been looked up
    kept: frozenset[str] = frozenset()  # created, but could not be rolled back
    tally: BatchTally = BatchTally()

    def of(self, fate: ItemFate) -> tuple[str, ...]:
        """Return the keys with this result, in order."""
        return tuple(key for key in self.keys if key in self.ended and self.ended[key].fate is fate)

    @property
    def must_roll_back(self) -> bool:
        """Whether too many items have failed."""
        return 100 * len(self.of(ItemFate.FAILED)) > self.policy.roll_back_above_percent * len(self.keys)


class Send(NamedTuple):
    """Call at `load.due` for those of its keys that do not exist yet. Look up each key first."""

    load: BatchLoad


class Look(NamedTuple):
    """Look up whether these exist after all."""

    keys: tuple[str, ...]


class Undo(NamedTuple):
    """Roll these back."""

    keys: tuple[str, ...]


BatchStep = Send | Look | Undo


def in_batches(keys: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """Return the distinct `keys`, in order, in as few batches as possible."""
    different = tuple(dict.fromkeys(keys))
    return [different[start : start + size] for start in range(0, len(different), size)]


def begun(policy: BatchPolicy, keys: tuple[str, ...], now: datetime) -> BatchPlan[T]:
    """Return the plan of a batch before its first step."""
    return BatchPlan(policy, keys, (BatchLoad(keys, now),) if keys else (), {}, now)


def next_step(plan: BatchPlan[T]) -> BatchStep | None:
    """Return the next step, the earliest first, or None if every item is finished."""
    if plan.loads:
        return Send(min(plan.loads, key=lambda load: load.due))
    if not plan.verified and (doubtful := tuple(key for key in plan.of(ItemFate.FAILED) if key in plan.sent)):
        return Look(doubtful)
    if plan.must_roll_back and (left := tuple(key for key in plan.of(ItemFate.CREATED) if key not in plan.kept)):
        return Undo(left)
    return None


def found(plan: BatchPlan[T], load: BatchLoad, there: Mapping[str, T]) -> BatchPlan[T]:
    """Return the plan after the keys in `there` were found to exist.

    An item counts as created by us if an earlier call sent it and its answer was lost.
    """
    ended = {
        key: EndedItem(ItemFate.CREATED if key in plan.sent else ItemFate.EXISTING, item, retries=load.retries)
        for key, item in there.items()
        if key in load.keys
    }
    rest = load._replace(keys=tuple(key for key in load.keys if key not in ended))
    return _with(plan, load, (rest,) if rest.keys else (), ended)


def answered(
    plan: BatchPlan[T], load: BatchLoad, answers: Mapping[str, Answer[T]], now: datetime, random: Callable[[], float]
) -> BatchPlan[T]:
    """Return the plan after the call returned an answer for each item."""
    loads: list[BatchLoad] = []
    ended: dict[str, EndedItem[T]] = {}
    for key in load.keys:
        answer = answers.get(key) or RobotError(UNANSWERED, f"the answer says nothing about {key}")
        if isinstance(answer, CodedError):
            again = _again(plan, answer, key, load, now, random)
            if again:
                loads.append(again)
            else:
                ended[key] = EndedItem(ItemFate.FAILED, None, answer, load.retries)
        else:
            fate = ItemFate.CREATED if isinstance(answer, Made) else ItemFate.EXISTING
            ended[key] = EndedItem(fate, answer.item, retries=load.retries)
    return _called(_with(plan, load, loads, ended), load)


def held(plan: BatchPlan[T], load: BatchLoad, now: datetime, wait_s: float) -> BatchPlan[T]:
    """Return the plan after the breaker refused the call: it was not made, and is due in `wait_s` seconds."""
    return _with(plan, load, (load._replace(due=now + timedelta(seconds=wait_s)),), {})


def refused(
    plan: BatchPlan[T],
    load: BatchLoad,
    error: CodedError,
    now: datetime,
    random: Callable[[], float],
    *,
    sent: bool = True,
) -> BatchPlan[T]:
    """Return the plan after the whole call failed or, if nothing was `sent`, the lookup before it."""
    after = _called(plan, load) if sent else plan
    if load.alone:
        again = _again(plan, error, load.keys[0], load, now, random)
        return _with(after, load, (again,), {}) if again else _failed(after, load, error)
    if error.code in plan.policy.split_codes and len(load.keys) > 1:
        middle = (len(load.keys) + 1) // 2
        halves = [BatchLoad(half, now, retries=load.retries + 1) for half in (load.keys[:middle], load.keys[middle:])]
        return _with(after, load, halves, {})._replace(tally=after.tally._replace(splits=after.tally.splits + 1))
    decision = _decided(plan, plan.policy.batch, error, load.attempt, now, random)
    if not isinstance(decision, Retry):
        return _failed(after, load, error)
    due = now + timedelta(seconds=decision.after_s)
    again = load._replace(attempt=decision.attempt, due=due, retries=load.retries + 1)
    return _with(after, load, (again,), {})


def looked(plan: BatchPlan[T], there: Mapping[str, T]) -> BatchPlan[T]:
    """Return the plan after these items, which seemed to have failed, were found after all."""
    ended = {key: EndedItem(ItemFate.CREATED, item, retries=plan.ended[key].retries) for key, item in there.items()}
    return plan._replace(ended={**plan.ended, **ended}, verified=True)


def undone(plan: BatchPlan[T], key: str, error: CodedError | None, retries: int = 0) -> BatchPlan[T]:
    """Return the plan after this item was rolled back or, with `error`, could not be, after this many `retries`."""
    was = plan.ended[key]
    if error:
        kept = was._replace(error=error, retries=retries)
        return plan._replace(ended={**plan.ended, key: kept}, kept=plan.kept | {key})
    return plan._replace(ended={**plan.ended, key: was._replace(fate=ItemFate.ROLLED_BACK)})


def _decided(
    plan: BatchPlan[T],
    policy: RetryPolicy,
    error: CodedError,
    attempt: int,
    now: datetime,
    random: Callable[[], float],
) -> Decision:
    """Decide on a retry. A call whose answer was lost may be repeated, since items are looked up first.

    An abandoned call may still be in progress, so a lookup proves nothing.
    """
    decide = decide_on_paid if isinstance(error, Overrun) else RetryPolicy.decide
    return decide(policy, error, attempt, random, elapsed_s=(now - plan.began).total_seconds())


def _again(
    plan: BatchPlan[T], error: CodedError, key: str, load: BatchLoad, now: datetime, random: Callable[[], float]
) -> BatchLoad | None:
    decision = _decided(plan, plan.policy.item, error, load.attempt if load.alone else 1, now, random)
    if not isinstance(decision, Retry):
        return None
    due = now + timedelta(seconds=decision.after_s)
    return BatchLoad((key,), due, decision.attempt, alone=True, retries=load.retries + 1)


def _failed(plan: BatchPlan[T], load: BatchLoad, error: CodedError) -> BatchPlan[T]:
    return _with(plan, load, (), {key: EndedItem(ItemFate.FAILED, None, error, load.retries) for key in load.keys})


def _with(
    plan: BatchPlan[T], load: BatchLoad, loads: Sequence[BatchLoad], ended: Mapping[str, EndedItem[T]]
) -> BatchPlan[T]:
    """Return the plan with `loads` in place of `load`, which may have shrunk since, and these items ended."""
    others = tuple(it for it in plan.loads if not set(it.keys) & set(load.keys))
    return plan._replace(loads=(*others, *loads), ended={**plan.ended, **ended})


def _called(plan: BatchPlan[T], load: BatchLoad) -> BatchPlan[T]:
    tally = plan.tally._replace(
        calls=plan.tally.calls + 1,
        batch_repeats=plan.tally.batch_repeats + (not load.alone and load.attempt > 1),
        item_repeats=plan.tally.item_repeats + load.alone,
    )
    return plan._replace(sent=plan.sent | set(load.keys), tally=tally)
