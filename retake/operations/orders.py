"""What an acting command is about: the generation or run that was named, and who may act on it."""

from typing import NamedTuple

from retake.console.answer import Answer, Block, Line, Tone
from retake.console.command_context import CommandContext, Pipeline
from retake.console.day import day_before_paying
from retake.errors import RetakeError, RunError
from retake.operations.lookup import Found, find
from retake.runs import Ledger
from retake.runs.ledgers import Ledgers
from retake.runs.run import Run, UnknownRun
from retake.runs.states import RunStatus
from retake.story.documents import Documents, safe_id
from retake.story.generation import DEAD_LETTERS
from retake.story.operator_actions import OperatorActions
from retake.story.operator_rules import Refusal, next_tick
from retake.story.prices import prices
from retake.ticking.process import owner


class Target(NamedTuple):
    """What was named. A story's generation, or else a run of another pipeline on the same ledger."""

    pipeline: Pipeline
    generation_id: str | None  # None: of another pipeline
    run: Run | None  # the one that was named, or the generation's last; None: none is on record
    hands: OperatorActions

    @property
    def other(self) -> Run | None:
        """The run, where it is another pipeline's."""
        return None if self.generation_id else self.run

    def under_way(self, documents: Documents) -> bool:
        return self.generation_id is not None and documents.gen.generation_id == self.generation_id


def target(desk: CommandContext, text: str) -> Target:
    """What `text` names: a run's id or the beginning of it, or a generation's. Raises UnknownRun, RunError if it may
    mean several, Refusal for a run that is not its generation's last."""
    try:
        found = find(desk, text)
    except UnknownRun as unknown:
        pipeline = _unrecorded(desk, text)
        if pipeline is None:
            raise unknown from None
        return Target(pipeline, text, None, intervention(desk, pipeline))
    hands = intervention(desk, found.pipeline)
    run = found.runs[-1]
    if run.pipeline not in ("", found.pipeline.name):
        return Target(found.pipeline, None, run, hands)
    _refuse_former(found, run)
    return Target(found.pipeline, found.generation_id, run, hands)


def intervention(desk: CommandContext, pipeline: Pipeline) -> OperatorActions:
    """Who acts on the pipeline."""
    return OperatorActions(
        desk.settings,
        desk.leasable(pipeline),
        desk.clock,
        owner=owner(),
        pipeline=pipeline.name,
        ledgers=Ledgers(desk.settings.storage.ledger, desk.clock),
    )


def has_ended(meant: Target, documents: Documents, verb: str) -> RetakeError:
    """Why nothing can be done about a generation that is not under way (any more), and what can."""
    name, run = meant.generation_id, meant.run
    if meant.hands.has_letter(str(name)):
        way = f"it lies among the dead letters: dead-letters requeue {name} takes it up again"
    elif run and run.status is RunStatus.SUCCEEDED:
        way = "there is nothing to do"
    elif run and not run.ended:
        way = "its documents say that it has ended, and the next tick brings the ledger in line"
    else:
        way = "its dead letter was dropped, and cannot be taken up again; the next tick begins a new one"
    present = documents.gen.generation_id
    under_way = f"; under way is {present}" if present else ""
    return Refusal(f"{name} cannot be {_PAST[verb]}: it {_how(run)}, and {way}{under_way}")


_PAST = {"retry": "retried", "skip": "skipped", "cancel": "cancelled"}


def _how(run: Run | None) -> str:
    if run is None or not run.ended:
        return "is not under way"
    return {RunStatus.SUCCEEDED: "has succeeded", RunStatus.CANCELLED: "was cancelled"}.get(run.status, "has failed")


def done(desk: CommandContext, meant: Target, verb: str, what: str, documents: Documents, warning: str = "") -> Answer:
    """The answer of a command that has done something to a generation."""
    today = day_before_paying(desk, meant.pipeline, documents.midjourney)
    following = next_tick(documents, desk.settings.workflow, desk.clock.now(), prices(desk.settings), today)
    document = {
        "done": verb,
        "generation_id": meant.generation_id,
        "run": _run_id(desk, meant),
        "what": what,
        "warning": warning or None,
        "status": documents.midjourney.status,
        "next_tick": following,
    }
    blocks: list[Block] = [Line(f"Done: {what}.", Tone.GOOD)]
    if warning:
        blocks.append(Line(f"Mind: {warning}.", Tone.WARN))
    blocks.append(Line(f"{following[0].upper()}{following[1:]}."))
    return Answer(document, blocks)


def _run_id(desk: CommandContext, meant: Target) -> str | None:
    """Of the generation's run by now."""
    runs = _runs_of(desk.ledger(meant.pipeline), meant)
    return runs[-1].run_id if runs else None


def _runs_of(ledger: Ledger, meant: Target) -> list[Run]:
    channel = meant.pipeline.channel
    return ledger.of_task(f"{channel}/{meant.generation_id}" if channel else str(meant.generation_id))


def _refuse_former(found: Found, run: Run) -> None:
    if not run.ended:
        return
    last = found.ledger.of_task(run.task_id)[-1]
    if last.run_id != run.run_id:
        raise Refusal(
            f"{run.run_id} is a former run of {found.generation_id} and has ended ({run.status}); its last one is "
            f"{last.run_id} ({last.status}): name that, or {found.generation_id}"
        )


def _unrecorded(desk: CommandContext, text: str) -> Pipeline | None:
    """The pipeline in which a generation of that id is under way or among the dead letters, though no ledger knows.
    Raises RunError if there are several."""
    if not safe_id(text):
        return None
    found = [
        pipeline
        for pipeline in desk.pipelines
        if desk.store(pipeline).read().gen.generation_id == text or pipeline.bucket.list(f"{DEAD_LETTERS}{text}/")
    ]
    if len(found) > 1:
        channels = ", ".join(str(pipeline.channel) for pipeline in found)
        raise RunError(f"{text!r} may mean a generation of several channels: {channels}; name the --channel")
    return found[0] if found else None
