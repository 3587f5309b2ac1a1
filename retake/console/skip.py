"""`retake skip RUN`: go on without what failed."""

from retake.console.answer import Answer
from retake.console.command_context import CommandContext
from retake.console.ordering import order
from retake.console.several import command_for_each
from retake.operations.port import Verb


@command_for_each("skip", "run", "RUN")
def command(context: CommandContext, run: str) -> Answer:
    """Go on without what failed. RUN is a run's id, a generation's, or the beginning of one;
    several may be given.

    A picture or a video whose step failed is replaced by a mock made on this machine; its error stays on record as
    skipped. A held paid call is not made again: the generation then ends as one whose attempts are used up. The text
    cannot be skipped.
    """
    return order(context, Verb.SKIP, run)
