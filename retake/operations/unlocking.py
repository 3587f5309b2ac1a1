"""Unlock a pipeline whose manager is gone."""

from datetime import datetime
from typing import Any, NamedTuple

from retake.bucket import Bucket, Holder, this_process
from retake.clock import Clock, stamp
from retake.errors import LeaseHeld, StateError
from retake.operations.events import OPERATOR
from retake.operations.port import OperatedPipeline, Refusal
from retake.operations.words import ago

GOES_ON = "The next tick continues from what is on record."


class UnlockPlan(NamedTuple):
    """A plan to unlock a pipeline."""

    pipeline: OperatedPipeline
    bucket: Bucket
    holder: Holder | None  # None: the lease is free, and at most a flag is left
    who: str
    actor: str = OPERATOR

    @property
    def lost(self) -> str:
        """A sentence that the operator must agree to; "" if nothing is lost."""
        if self.holder is None or self.holder.until is None:
            return ""
        return f"this breaks the lease of {self.pipeline.name}, held by {self.who}"


class Unlocked(NamedTuple):
    """The result of unlocking: its JSON document, and what follows in words."""

    document: dict[str, Any]
    then: str = ""
    lowered: bool | None = True  # whether a flag was lowered; None: its document is invalid


def plan_unlock(pipeline: OperatedPipeline, clock: Clock, actor: str = OPERATOR) -> UnlockPlan:
    """Plan to unlock the pipeline. Raises Refusal."""
    if pipeline.lease_name is None:
        raise Refusal(f"{pipeline.name} takes no lease: there is nothing to unlock")
    bucket = pipeline.leasable()
    holder = bucket.holder(pipeline.lease_name)
    return UnlockPlan(pipeline, bucket, holder, _describe_holder(holder, clock.now()) if holder else "", actor)


def unlock(plan: UnlockPlan) -> Unlocked:
    """Break the planned holder's lease, unless somebody else has taken it meanwhile, and lower the flag that a crash
    left. Raises Refusal, StateError."""
    pipeline = plan.pipeline
    assert pipeline.lease_name is not None, "planned"
    holder = plan.bucket.holder(pipeline.lease_name)
    if holder is None:
        return _lower_flag_only(pipeline)
    if plan.holder is None or holder.owner != plan.holder.owner:
        raise Refusal(f"the lease of {pipeline.name} now has another holder: {holder.owner}. Nothing was changed")
    try:
        token = plan.bucket.break_lease(pipeline.lease_name, f"{plan.actor}@{this_process()}")
    except LeaseHeld as held:
        raise Refusal(f"{held}. A lease that the kernel holds for a living process cannot be broken") from None
    try:
        lowered = _lower_flag(pipeline)
    except LeaseHeld:  # a new tick has already taken the lease, and lowers the flag itself
        lowered = False
    document = {
        "done": "unlock",
        "pipeline": pipeline.name,
        "what": f"the lease of {pipeline.name} is broken; it was held by {plan.who}",
        "held_by": holder.owner,
        "last_sign": stamp(holder.since) if holder.since else None,
        "token": token,
        "flag_lowered": lowered,
    }
    return Unlocked(document, f"writes of its former holder are refused: the fencing token is now {token}", lowered)


def _lower_flag_only(pipeline: OperatedPipeline) -> Unlocked:
    """Lower the flag that may be left although the lease is free. Raises Refusal; StateError for an invalid
    document."""
    state = pipeline.state(None, lambda vendor: "")
    if not state.readable:
        raise StateError(state.needs[0])
    if not state.interrupted or not _lower_flag(pipeline):
        raise Refusal(
            "there is nothing to unlock: the lease is free and processing_lock is down. A tick can begin at any time"
        )
    what = "processing_lock, which a crash left, is lowered; the lease was free"
    document = {"done": "unlock", "pipeline": pipeline.name, "what": what, "held_by": None, "flag_lowered": True}
    return Unlocked(document)


def _lower_flag(pipeline: OperatedPipeline) -> bool | None:
    """Lower the flag, and return whether it was up. None if its document is invalid, which other commands deal with."""
    try:
        return pipeline.lower_flag()
    except StateError:
        return None


def _describe_holder(holder: Holder, now: datetime) -> str:
    sign = f", last heartbeat {ago(holder.since, now)}" if holder.since else ""
    free = f", expires {ago(holder.until, now)}" if holder.until else ""
    return f"{holder.owner}{sign}{free}"
