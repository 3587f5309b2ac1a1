"""`retake unlock`: free the pipeline of a manager that is gone."""

from datetime import datetime

from retake.bucket import Holder
from retake.clock import stamp
from retake.console import consent
from retake.console.answer import Answer, Block, Sentence, Tone, done_lines
from retake.console.command_context import CommandContext
from retake.console.invocation import console_command
from retake.errors import LeaseHeld, StateError
from retake.operations.events import OPERATOR
from retake.operations.port import OperatedPipeline, Refusal
from retake.operations.words import ago
from retake.ticking.process import owner


@console_command("unlock")
@consent.option
def command(context: CommandContext, yes: bool) -> Answer:
    """Break the lease of a manager that is gone, and lower a processing_lock that a crash left.

    On B2 and S3 a dead manager's lease ends by itself after a few minutes; this ends it now. Should its holder live
    after all, it and its scripts find that out before their next write or payment. On a directory the kernel holds
    the lease for living processes alone: this says which, and ending them frees it.
    """
    pipeline = context.pipeline
    if pipeline.lease_name is None:
        raise Refusal(f"{pipeline.name} takes no lease: there is nothing to unlock")
    bucket = pipeline.leasable()
    holder = bucket.holder(pipeline.lease_name)
    if holder is None:
        return _flag_alone(pipeline)
    who = _who(holder, context.clock.now())
    if holder.until is not None:
        consent.obtain(f"this breaks the lease of {pipeline.name}, held by {who}", yes=yes)
    try:
        token = bucket.break_lease(pipeline.lease_name, f"{OPERATOR}@{owner()}")
    except LeaseHeld as held:
        raise Refusal(f"{held}. A lease that the kernel keeps for a living process cannot be broken") from None
    lowered = _lowered(pipeline)
    what = f"the lease of {pipeline.name} is broken; it was held by {who}"
    fenced = f"writes of its former holder are refused from token {token} on"
    document = {
        "done": "unlock",
        "pipeline": pipeline.name,
        "what": what,
        "held_by": holder.owner,
        "last_sign": stamp(holder.since) if holder.since else None,
        "token": token,
        "flag_lowered": lowered,
    }
    return Answer(document, [*done_lines(what, fenced), *_told(lowered)])


def _flag_alone(pipeline: OperatedPipeline) -> Answer:
    """The lease is free: there may be a flag left. Raises StateError where a document is invalid."""
    state = pipeline.state(None, lambda vendor: "")
    if not state.readable:
        raise StateError(state.needs[0])
    if not state.interrupted or not _lowered(pipeline):
        raise Refusal(
            "there is nothing to unlock: the lease is free and processing_lock is down. A tick can begin at any time"
        )
    what = "processing_lock, which a crash left, is lowered; the lease was free"
    document = {"done": "unlock", "pipeline": pipeline.name, "what": what, "held_by": None, "flag_lowered": True}
    return Answer(document, [*done_lines(what), Sentence(_GOES_ON)])


_GOES_ON = "The next tick goes on from what is on record."


def _lowered(pipeline: OperatedPipeline) -> bool | None:
    """Whether a flag was up and is lowered now; None where its document makes no sense: that is for another command."""
    try:
        return pipeline.lower_flag()
    except StateError:
        return None


def _told(lowered: bool | None) -> list[Block]:
    if lowered is None:
        return [Sentence("One of the documents is invalid; `status` says which.", Tone.WARN)]
    return [Sentence(f"{'processing_lock is lowered. ' if lowered else ''}{_GOES_ON}")]


def _who(holder: Holder, now: datetime) -> str:
    sign = f", last sign of life {ago(holder.since, now)}" if holder.since else ""
    free = f", free by itself {ago(holder.until, now)}" if holder.until else ""
    return f"{holder.owner}{sign}{free}"
