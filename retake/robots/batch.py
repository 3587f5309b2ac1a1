"""Create many items in few calls, each at most once, and report the result of each.

docs/protocol.md, section "NR.NSI.5". batch_plan.py decides on the next step; this module makes the calls.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from logging import getLogger
from typing import Any, Generic, NamedTuple, TypeVar, cast

from retake.attempts import steady
from retake.clock import Clock, wait
from retake.errors import Code, CodedError, Stopped
from retake.retrying.breaker import Breaker, BreakerOpen
from retake.retrying.guard import Guard, GuardResult
from retake.retrying.policy import RetryPolicy, checked
from retake.retrying.time_limit import OutOfTime, within
from retake.robots.batch_plan import (
    Answer,
    BatchLoad,
    BatchPlan,
    BatchPolicy,
    BatchTally,
    EndedItem,
    ItemFate,
    Look,
    Send,
    answered,
    begun,
    found,
    held,
    in_batches,
    looked,
    next_step,
    refused,
    undone,
)

_log = getLogger(__name__)
T = TypeVar("T")
A = TypeVar("A")


class BatchItem(NamedTuple):
    """An item to create."""

    key: str  # its idempotency key (idempotency.key_of)
    data: Mapping[str, Any]


class BatchCall(NamedTuple):
    """A call that creates items."""

    items: tuple[BatchItem, ...]  # at most the policy's batch size
    attempt: int  # from 1
    timeout_s: float | None  # a longer call is abandoned and not retried


class BatchParts(NamedTuple, Generic[T]):
    """The caller's functions for its kind of items. Each may raise CodedError."""

    find: Callable[[BatchItem], T | None]
    """Return what exists under the item's key, or None.

    Called before each attempt or, if the policy says so, only before the first.
    """
    send: Callable[[BatchCall], Mapping[str, Answer[T]]]
    """Create the items in one call and return an answer for each, by key. An exception is a failure of the whole
    call."""
    undo: Callable[[BatchItem, T], None]
    """Roll back a created item. May be called again for one that is already rolled back."""


class BatchStatistics(NamedTuple):
    """Counts of items, batches and calls."""

    items: int  # without duplicates
    created: int
    existing: int
    failed: int
    rolled_back: int
    not_undone: int  # created, but could not be rolled back
    batches: int
    batches_rolled_back: int
    tally: BatchTally


class BatchReport(NamedTuple, Generic[T]):
    """The result of each item, by key, and the statistics."""

    ended: Mapping[str, EndedItem[T]]
    statistics: BatchStatistics


Item = BatchItem
Parts = BatchParts
Report = BatchReport
"""Short names for callers that import the module: `batch.Item`, `batch.Parts`, `batch.Report`."""


class Batches(Generic[T]):
    """Creates items in batches.

    `random()` returns 0 to 1, for the jitter. `stop()` is asked before items are sent and every second of the wait
    before that; lookups and rollbacks are always finished. While the `breaker` refuses, items wait and no attempt is
    used up. Raises ValueError for a policy that is not valid (`retake.retrying.policy.checked`).
    """

    def __init__(
        self,
        parts: BatchParts[T],
        policy: BatchPolicy,
        clock: Clock,
        random: Callable[[], float],
        *,
        stop: Callable[[], bool] | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        self._parts, self._policy = parts, policy._replace(batch=checked(policy.batch))
        self._clock, self._now, self._random = clock, steady(clock), random
        self._stop, self._breaker = stop, breaker
        self._guard = Guard(policy.item, clock, random)

    def run(self, items: Iterable[BatchItem]) -> BatchReport[T]:
        """Create every item, one batch after another, and report the result of each.

        Of items with the same key only the first counts. Even if one batch is rolled back, the others are created.
        Raises Stopped (the next run finds what was created), and any exception that is not a CodedError.
        """
        known: dict[str, BatchItem] = {}
        for item in items:
            known.setdefault(item.key, item)
        plans = [self._made(keys, known) for keys in in_batches([*known], self._policy.size)]
        report = BatchReport({key: ended for plan in plans for key, ended in plan.ended.items()}, _statistics(plans))
        _log.info("batches: %s", report.statistics)
        return report

    def _made(self, keys: tuple[str, ...], items: Mapping[str, BatchItem]) -> BatchPlan[T]:
        plan: BatchPlan[T] = begun(self._policy, keys, self._now())
        while step := next_step(plan):
            if isinstance(step, Send):
                self._wait(step.load)
                plan = self._sent(plan, step.load, items)
            elif isinstance(step, Look):
                plan = looked(plan, self._there(step.keys, items))
            else:
                for key in step.keys:
                    result = self._undo(items[key], plan.ended[key])
                    plan = undone(plan, key, result.error, result.retries)
        return plan

    def _wait(self, load: BatchLoad) -> None:
        wait(self._clock, (load.due - self._now()).total_seconds(), self._stop)
        if self._stop and self._stop():
            raise Stopped(f"stopped before attempt {load.attempt} of {len(load.keys)} items")

    def _sent(self, plan: BatchPlan[T], load: BatchLoad, items: Mapping[str, BatchItem]) -> BatchPlan[T]:
        there: dict[str, T] = {}
        policy = self._policy.item if load.alone else self._policy.batch
        try:
            for key in self._in_question(plan, load):
                if (item := self._timed(policy, Code.TIMEOUT, partial(self._parts.find, items[key]))) is not None:
                    there[key] = item
        except BreakerOpen as refusal:
            return held(plan, load, self._now(), refusal.retry_after_s)
        except CodedError as error:
            return refused(plan, load, error, self._now(), self._random, sent=False)
        plan = found(plan, load, there)
        rest = load._replace(keys=tuple(key for key in load.keys if key not in there))
        if not rest.keys:
            return plan
        sending = BatchCall(tuple(items[key] for key in rest.keys), load.attempt, policy.timeout_s)
        try:
            answers = self._timed(policy, None, lambda: self._parts.send(sending))
        except BreakerOpen as refusal:
            return held(plan, rest, self._now(), refusal.retry_after_s)
        except CodedError as error:
            return refused(plan, rest, error, self._now(), self._random)
        return answered(plan, rest, answers, self._now(), self._random)

    def _timed(self, policy: RetryPolicy, code: str | None, call: Callable[[], A]) -> A:
        """Return the result of `call` within the policy's time limit. Raises BreakerOpen without calling it."""
        return self._breaker.call(lambda: _timed(policy, code, call)) if self._breaker else _timed(policy, code, call)

    def _in_question(self, plan: BatchPlan[T], load: BatchLoad) -> tuple[str, ...]:
        """Return the keys to look up before the call.

        They always include those of a first call: an earlier run that was cut off may have created them.
        """
        again = self._policy.check_before_retry
        return tuple(key for key in load.keys if again or key not in plan.sent)

    def _there(self, keys: tuple[str, ...], items: Mapping[str, BatchItem]) -> dict[str, T]:
        """Return the items that exist. If the lookup fails, the item counts as failed."""
        there = {key: self._found(items[key]) for key in keys}
        return {key: item for key, item in there.items() if item is not None}

    def _found(self, item: BatchItem) -> T | None:
        return self._guard.outcome(lambda call: self._parts.find(item)).value

    def _undo(self, item: BatchItem, ended: EndedItem[T]) -> GuardResult[None]:
        made = cast(T, ended.item)
        result = self._guard.outcome(lambda call: self._parts.undo(item, made))
        if result.error:
            _log.error("%s was made and could not be rolled back: %s", item.key, result.error)
        return result


def _timed(policy: RetryPolicy, code: str | None, call: Callable[[], T]) -> T:
    """Return the result of `call` within the policy's time limit; otherwise raise its `timeout_code`, or `code`."""
    try:
        return within(policy.timeout_s, call)
    except OutOfTime as error:
        raise error.as_error(policy.timeout_code or code) from None


def _statistics(plans: list[BatchPlan[T]]) -> BatchStatistics:
    count = {fate: sum(len(plan.of(fate)) for plan in plans) for fate in ItemFate}
    return BatchStatistics(
        items=sum(len(plan.keys) for plan in plans),
        created=count[ItemFate.CREATED],
        existing=count[ItemFate.EXISTING],
        failed=count[ItemFate.FAILED],
        rolled_back=count[ItemFate.ROLLED_BACK],
        not_undone=sum(len(plan.kept) for plan in plans),
        batches=len(plans),
        batches_rolled_back=sum(plan.must_roll_back for plan in plans),
        tally=BatchTally(*(sum(part) for part in zip(*(plan.tally for plan in plans), strict=True))),
    )
