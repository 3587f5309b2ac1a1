"""`python -m retake skip RUN`: go on without what failed."""

from retake.console.answer import Answer
from retake.console.command_context import CommandContext
from retake.console.several import command_for_each
from retake.operations.orders import done, has_ended, target
from retake.story.operator_rules import Refusal, Verb


@command_for_each("skip", "run", "RUN")
def command(desk: CommandContext, run: str) -> Answer:
    """Go on without what failed. RUN is a run's id, a generation's, or the beginning of one;
    there may be several.

    A picture or a video that cannot be had is replaced by a mock made on this machine; its error stays on record as
    skipped. A held paid call is not made again: the generation then ends as one whose attempts are used up. The text
    cannot be skipped.
    """
    meant = target(desk, run)
    if meant.other:
        raise Refusal(
            f"{meant.other.run_id} is a run of {meant.other.pipeline}: only steps of a story can be skipped; cancel "
            f"{meant.other.run_id}, if it is not wanted any more"
        )
    documents = meant.hands.look()
    if not meant.under_way(documents):
        raise has_ended(meant, documents, "skip")
    name = str(meant.generation_id)
    meant.hands.planned(Verb.SKIP, name)  # what makes no sense is refused, whoever is at work
    plan, after = meant.hands.carry_out(Verb.SKIP, name, "")
    return done(desk, meant, "skip", plan.done, after, plan.warning)
