"""`python -m retake cancel RUN`: end what is not wanted any more."""

from retake.console import consent
from retake.console.answer import Answer, Line, Tone
from retake.console.command_context import CommandContext
from retake.console.several import command_for_each
from retake.operations.orders import Target, done, has_ended, target
from retake.operations.status import run_document
from retake.runs import open_ledger
from retake.runs.run import Run
from retake.runs.states import Trigger
from retake.story.operator_rules import ACTOR, Refusal, Verb


@command_for_each("cancel", "run", "RUN")
@consent.option
def command(desk: CommandContext, run: str, yes: bool) -> Answer:
    """End a generation, or a run of another pipeline. RUN is a run's id, a generation's, or the beginning of one;
    there may be several.

    Everything that there is of a generation is kept in dead_letters/, from where it can be taken up again. It does not
    count as failed. What is in flight at a vendor stays paid for, and nobody fetches it.
    """
    meant = target(desk, run)
    if meant.other:
        return _cancelled(desk, meant, meant.other)
    documents, name = meant.hands.look(), str(meant.generation_id)
    if not meant.under_way(documents):
        raise has_ended(meant, documents, "cancel")
    lost = meant.hands.planned(Verb.CANCEL, name).lost
    if lost:
        consent.obtain(f"cancelling {name} gives up {lost}", yes=yes)
    plan, after = meant.hands.carry_out(Verb.CANCEL, name, lost)
    return done(desk, meant, "cancel", plan.done, after, f"given up: {plan.lost}" if plan.lost else "")


def _cancelled(desk: CommandContext, meant: Target, run: Run) -> Answer:
    if run.ended:
        raise Refusal(f"{run.run_id} of {run.pipeline} has {run.status} already: there is nothing to cancel")
    ledger = open_ledger(desk.settings.storage.ledger, desk.leasable(meant.pipeline), desk.clock)
    ended = ledger.move(run, Trigger.CANCEL_COMMAND, actor=ACTOR)
    what = f"{run.run_id} of {run.pipeline} is cancelled"
    blocks = [Line(f"Done: {what}.", Tone.GOOD)]
    if run.worker:
        blocks.append(Line(f"{run.worker}, who has it, learns of it at its next sign of life, and saves nothing more."))
    return Answer({"done": "cancel", "run": run_document(ended), "what": what, "next_tick": None}, blocks)
