"""An operator's orders: resolve a name, plan what an order would do, and carry it out.

An item of a pipeline is acted on through the pipeline. A run that belongs to none of the pipelines (a worker's, on the
same ledger) is queued again or cancelled on the ledger itself.
"""

from typing import NamedTuple

from retake.errors import RunError, StateError
from retake.operations.letters import letter_of
from retake.operations.lookup import PREFIX, Found, find
from retake.operations.pipelines import Operations
from retake.operations.port import ItemOrder, OperatedPipeline, OrderDone, OrderPlan, OrderResult, Refusal, Verb
from retake.operations.status import run_document
from retake.runs.run import Run, UnknownRun
from retake.runs.states import RunStatus, Trigger

_OF_ITEMS = ("story", "music")
"""The beginnings of the names of pipelines whose runs are about items, even where several share a ledger, besides those
of PIPELINES."""

_ROBOT = "robot"
_UNCLAIMED = {
    "story": "which the settings do not have (CHANNELS): no tick would work on it",
    _ROBOT: "which only records what a program did: nothing would work on it. Run that program again",
}
"""Why no worker claims a run, by the beginning of its pipeline's name."""


class Target(NamedTuple):
    """The target of an order: an item of a pipeline, or a worker's run on the same ledger."""

    pipeline: OperatedPipeline
    item_id: str | None  # None: a worker's run
    run: Run | None  # the named run, or the item's last; None: none is on record
    left_over: bool = False  # whether that run was named and is open, although its item has ended or has a later one

    def about_item(self, verb: Verb) -> bool:
        """Return whether the order is about the item, and not just about the run: a left-over run is cancelled without
        its item."""
        return self.item_id is not None and not (self.left_over and verb is Verb.CANCEL)

    def order(self, verb: Verb, step: str | None = None) -> ItemOrder:
        return ItemOrder(verb, str(self.item_id), self.run, step)


def target(operations: Operations, text: str) -> Target:
    """Return the target that `text` names by the id of a run or an item, or its beginning. Raises UnknownRun, RunError
    if it is ambiguous, Refusal for a run that is not its item's last, or whose pipeline is not the one that the
    operator named."""
    try:
        found = find(operations, text)
    except UnknownRun as unknown:
        pipeline = _unrecorded(operations, text)
        if pipeline is None:
            raise unknown from None
        return Target(pipeline, text, None)
    run = found.runs[-1]
    if not is_of_item(found):
        if operations.named and _kind(run) in (*_OF_ITEMS, *operations.terms.own_pipelines):
            named = found.pipeline.channel or found.pipeline.name
            raise Refusal(f"{run.run_id} is a run of {run.pipeline}, but the channel named is {named}")
        return Target(found.pipeline, None, run)
    _refuse_former(found, run)
    return Target(found.pipeline, found.item_id, run, text.startswith(PREFIX) and _is_left_over(found, run))


def plan_order(meant: Target, verb: Verb, step: str | None = None) -> OrderPlan:
    """Return what the order would do. `step` is for a ROLLBACK. Raises Refusal."""
    if meant.about_item(verb):
        return meant.pipeline.plan(meant.order(verb, step))
    run = meant.run
    assert run is not None, "a worker's run is on record"
    match verb:
        case Verb.RETRY if run.status is not RunStatus.FAILED:
            raise Refusal(f"{run.run_id} of {_name(run)} is {run.status}: {_WAYS[run.status]}")
        case Verb.RETRY if _kind(run) in _UNCLAIMED:
            raise Refusal(f"{run.run_id} is a run of {run.pipeline}, {_UNCLAIMED[_kind(run)]}")
        case Verb.CANCEL if run.ended:
            raise Refusal(f"{run.run_id} of {_name(run)} has already ended ({run.status}): there is nothing to cancel")
        case Verb.SKIP:
            raise Refusal(
                f"{run.run_id} is a run of {_name(run)}: only steps of a story can be skipped; cancel "
                f"{run.run_id}, if it is no longer wanted"
            )
        case Verb.ROLLBACK:
            raise Refusal(f"{run.run_id} is a run of {_name(run)}: only a story can be rolled back to one of its steps")
    return OrderPlan(ItemOrder(verb, run.task_id, run))


def loss(meant: Target, plan: OrderPlan) -> str:
    """Return a sentence that the operator must agree to before a CANCEL, or "" if nothing is lost."""
    if plan.order.verb is not Verb.CANCEL or not plan.lost:
        return ""
    return f"cancelling {meant.item_id} gives up {plan.lost}"


def carry_out(operations: Operations, meant: Target, plan: OrderPlan) -> OrderDone:
    """Carry out a plan that the operator has agreed to. Raises Refusal, LeaseHeld."""
    if meant.about_item(plan.order.verb):
        return _order_done(operations, meant, meant.pipeline.carry_out(plan.order, plan.lost))
    assert meant.run is not None, "a worker's run is on record"
    act = _queue_again if plan.order.verb is Verb.RETRY else _cancel
    return act(operations, meant.pipeline, meant.run)


def _order_done(operations: Operations, meant: Target, result: OrderResult) -> OrderDone:
    document = {
        "done": result.order.verb.value,
        "generation_id": meant.item_id,
        "run": _run_id(operations, meant),
        "what": result.what,
        "warning": result.warning or None,
        "status": result.status,
        "next_tick": result.next_tick,
    }
    return OrderDone(document, result.what, result.next_tick, result.warning)


def _queue_again(operations: Operations, pipeline: OperatedPipeline, failed: Run) -> OrderDone:
    """Create a new run of the same task. Idempotent: ordered twice, it returns the same run."""
    ledger = operations.writable_ledger(pipeline)
    every = ledger.of_task(failed.task_id)
    going = [run for run in every if not run.ended]
    key = f"{failed.idempotency_key}+retry"
    if going and going[-1].idempotency_key != key:
        raise Refusal(f"{failed.run_id}: its task {failed.task_id} is already being retried: {going[-1].run_id}")
    last = every[-1]
    if last.ended and last.run_id != failed.run_id:
        way = f"retry {last.run_id}" if last.status is RunStatus.FAILED else _WAYS[last.status]
        raise Refusal(
            f"{failed.run_id} is an earlier run of {failed.task_id}; the latest one is {last.run_id} ({last.status}): "
            f"{way}"
        )
    new = ledger.create_for_task(failed.task_id, key, actor=operations.actor, pipeline=failed.pipeline)
    what = f"{failed.task_id} is queued again as {new.run_id}, attempt {new.attempt}"
    document = {"done": "retry", "run": run_document(new), "what": what, "next_tick": None}
    return OrderDone(document, what, f"a worker of {_name(failed)} claims it")


def _cancel(operations: Operations, pipeline: OperatedPipeline, run: Run) -> OrderDone:
    ended = operations.writable_ledger(pipeline).move(run, Trigger.CANCEL_COMMAND, actor=operations.actor)
    what = f"{run.run_id} of {_name(run)} is cancelled"
    worker = f"the worker {run.worker}, which has it, learns of this at its next heartbeat, and saves nothing more"
    if _kind(run) == _ROBOT:
        worker = f"if {run.worker} is still working, it continues: this only ends the record"
    document = {"done": "cancel", "run": run_document(ended), "what": what, "next_tick": None}
    return OrderDone(document, what, worker if run.worker else "")


_WAYS = {
    RunStatus.QUEUED: "a worker claims it; wait for it, or cancel it",
    RunStatus.RUNNING: "it is being worked on; wait for it, or cancel it",
    RunStatus.RETRY_SCHEDULED: "it is retried when that is due; wait for it, or cancel it",
    RunStatus.INTERRUPTED: "a worker resumes it; wait for it, or cancel it",
    RunStatus.SUCCEEDED: "there is nothing to retry",
    RunStatus.CANCELLED: "it was no longer wanted; create a new run to do it after all",
}


def _kind(run: Run) -> str:
    return run.pipeline.partition("/")[0]


def _name(run: Run) -> str:
    return run.pipeline or "no pipeline"


def is_of_item(found: Found) -> bool:
    """Return whether the last of the runs is about an item of the pipeline, rather than a worker's on the same ledger.

    A run that names no pipeline is about an item if the pipeline keeps anything about it: then it is from an old
    version of the pipeline. Otherwise it belongs to a worker that takes runs of any pipeline.
    """
    name = found.runs[-1].pipeline
    if name:
        return name == found.pipeline.name
    kept = found.pipeline.evidence(found.item_id)
    return bool(kept.files or kept.calls or kept.step)


def _run_id(operations: Operations, meant: Target) -> str | None:
    """Return the id of the item's last run now."""
    channel = meant.pipeline.channel
    task_id = f"{channel}/{meant.item_id}" if channel else str(meant.item_id)
    runs = operations.ledger(meant.pipeline).of_task(task_id)
    return runs[-1].run_id if runs else None


def _refuse_former(found: Found, run: Run) -> None:
    if not run.ended:
        return
    last = found.ledger.of_task(run.task_id)[-1]
    if last.run_id != run.run_id:
        raise Refusal(
            f"{run.run_id} is an earlier run of {found.item_id} and has ended ({run.status}); the latest one is "
            f"{last.run_id} ({last.status}): name that, or {found.item_id}"
        )


def _is_left_over(found: Found, run: Run) -> bool:
    """Return whether a run is open although its item has a later one or, where ticks work on items, has ended."""
    if run.ended:
        return False
    if found.ledger.of_task(run.task_id)[-1].run_id != run.run_id:
        return True
    return bool(found.pipeline.lease_name) and all(it.item_id != found.item_id for it in found.pipeline.present())


def _unrecorded(operations: Operations, text: str) -> OperatedPipeline | None:
    """Return the pipeline in which an item with that id is under way or among the dead letters, although no ledger has
    it. Raises RunError if there are several, and StateError if a pipeline cannot say whether it has one: an order must
    not be about the wrong item."""

    def has(pipeline: OperatedPipeline) -> bool:
        try:
            under_way = any(it.item_id == text for it in pipeline.present())
        except StateError as error:
            if len(operations.pipelines) == 1:
                raise
            raise StateError(
                f"{error}. So whether {text} is one of {pipeline.name} is not known: mend that, or name the --channel"
            ) from error
        return under_way or letter_of(pipeline.bucket, operations.clock, text) is not None

    found = [pipeline for pipeline in operations.pipelines if has(pipeline)]
    if len(found) > 1:
        channels = ", ".join(pipeline.channel or pipeline.name for pipeline in found)
        raise RunError(f"{text!r} may mean a generation of several channels: {channels}; name the --channel")
    return found[0] if found else None
