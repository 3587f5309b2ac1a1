"""Batches carried out: many items made in few calls, each at most once, and what became of each.

Seed 003, «NR.NSI.5 … Batch Processing». What to do next is planned in batch_plan.py; here the calls are made.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from logging import getLogger
from typing import Any, Generic, NamedTuple, TypeVar, cast

from retake.clock import Clock
from retake.errors import Code, CodedError, Stopped
from retake.retrying.guard import Guard, sleep
from retake.retrying.policy import RetryPolicy
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
    in_batches,
    looked,
    next_step,
    refused,
    undone,
)

_log = getLogger(__name__)
T = TypeVar("T")


class BatchItem(NamedTuple):
    """Something to be made."""

    key: str  # its idempotency key (idempotency.key_of)
    data: Mapping[str, Any]


class BatchCall(NamedTuple):
    """One call."""

    items: tuple[BatchItem, ...]  # as many as the policy allows in a batch, at most
    attempt: int  # 1: the first time for these
    timeout_s: float | None  # what it may take; it is abandoned then, and not made again


class BatchParts(NamedTuple, Generic[T]):
    """What a batch is made of: the owner's own calls. Each may raise CodedError."""

    find: Callable[[BatchItem], T | None]
    """The thing that has this key; None if there is none. Asked before each attempt, or, where the policy says so, only
    before the first."""
    send: Callable[[BatchCall], Mapping[str, Answer[T]]]
    """Make the items in one call: by key, what it says about each. An error raised is about the call as a whole."""
    undo: Callable[[BatchItem, T], None]
    """Roll back what was made. May be called for what is undone already."""


class BatchStatistics(NamedTuple):
    """How many came to what, and what it took."""

    items: int  # different ones
    created: int
    existing: int
    failed: int
    rolled_back: int
    not_undone: int  # of those created: they were to be rolled back, and could not be
    batches: int
    batches_rolled_back: int
    tally: BatchTally


class BatchReport(NamedTuple, Generic[T]):
    """What became of every item, by key, and the figures."""

    ended: Mapping[str, EndedItem[T]]
    statistics: BatchStatistics


Item, Parts, Report = BatchItem, BatchParts, BatchReport
"""The names for callers that import the module: `batch.Item`, `batch.Parts`, `batch.Report`."""


class Batches(Generic[T]):
    """Makes items in batches. `random()` gives 0 … 1, for jitter. `stop()`, where it is given, is asked before each
    call and every second of a wait."""

    def __init__(
        self,
        parts: BatchParts[T],
        policy: BatchPolicy,
        clock: Clock,
        random: Callable[[], float],
        *,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self._parts, self._policy = parts, policy
        self._clock, self._random = clock, random
        self._stop = stop
        self._guard = Guard(policy.item, clock, random)

    def run(self, items: Iterable[BatchItem]) -> BatchReport[T]:
        """Make every item, a batch after the other; of items with one key the first. A batch that was rolled back does
        not keep the others from being made. Raises Stopped (what was made is there, and is found the next time), and
        whatever else is no CodedError."""
        known: dict[str, BatchItem] = {}
        for item in items:
            known.setdefault(item.key, item)
        plans = [self._made(keys, known) for keys in in_batches([*known], self._policy.size)]
        report = BatchReport({key: ended for plan in plans for key, ended in plan.ended.items()}, _statistics(plans))
        _log.info("batches: %s", report.statistics)
        return report

    def _made(self, keys: tuple[str, ...], items: Mapping[str, BatchItem]) -> BatchPlan[T]:
        plan: BatchPlan[T] = begun(self._policy, keys, self._clock.now())
        while step := next_step(plan):
            if isinstance(step, Send):
                self._wait(step.load)
                plan = self._sent(plan, step.load, items)
            elif isinstance(step, Look):
                plan = looked(plan, self._there(step.keys, items))
            else:
                for key in step.keys:
                    plan = undone(plan, key, self._undo(items[key], plan.ended[key]))
        return plan

    def _wait(self, load: BatchLoad) -> None:
        sleep(self._clock, (load.due - self._clock.now()).total_seconds(), self._stop)
        if self._stop and self._stop():
            raise Stopped(f"stopped before attempt {load.attempt} of {len(load.keys)} items")

    def _sent(self, plan: BatchPlan[T], load: BatchLoad, items: Mapping[str, BatchItem]) -> BatchPlan[T]:
        there: dict[str, T] = {}
        policy = self._policy.item if load.alone else self._policy.batch
        try:
            for key in self._in_question(plan, load):
                if (item := _timed(policy, Code.TIMEOUT, partial(self._parts.find, items[key]))) is not None:
                    there[key] = item
        except CodedError as error:
            return refused(plan, load, error, self._clock.now(), self._random, sent=False)
        plan = found(plan, load, there)
        rest = load._replace(keys=tuple(key for key in load.keys if key not in there))
        if not rest.keys:
            return plan
        sending = BatchCall(tuple(items[key] for key in rest.keys), load.attempt, policy.timeout_s)
        try:
            answers = _timed(policy, None, lambda: self._parts.send(sending))
        except CodedError as error:
            return refused(plan, rest, error, self._clock.now(), self._random)
        return answered(plan, rest, answers, self._clock.now(), self._random)

    def _in_question(self, plan: BatchPlan[T], load: BatchLoad) -> tuple[str, ...]:
        """The keys that are looked for before the call: those of a first call always, for an earlier run that was cut
        off may have made them."""
        again = self._policy.check_before_retry
        return tuple(key for key in load.keys if again or key not in plan.sent)

    def _there(self, keys: tuple[str, ...], items: Mapping[str, BatchItem]) -> dict[str, T]:
        """Those that are there. What cannot be asked counts as not there: it is reported as failed."""
        there = {key: self._found(items[key]) for key in keys}
        return {key: item for key, item in there.items() if item is not None}

    def _found(self, item: BatchItem) -> T | None:
        return self._guard.outcome(lambda call: self._parts.find(item)).value

    def _undo(self, item: BatchItem, ended: EndedItem[T]) -> CodedError | None:
        made = cast(T, ended.item)
        error = self._guard.outcome(lambda call: self._parts.undo(item, made)).error
        if error:
            _log.error("%s was made and could not be rolled back: %s", item.key, error)
        return error


def _timed(policy: RetryPolicy, code: str | None, call: Callable[[], T]) -> T:
    """What `call` returns within the policy's time. `code` is the error else, unless the policy names one."""
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
        batches_rolled_back=sum(plan.spoilt for plan in plans),
        tally=BatchTally(*(sum(part) for part in zip(*(plan.tally for plan in plans), strict=True))),
    )
