"""`retake cancel RUN`: cancel a generation or a run."""

from retake.console import consent
from retake.console.answer import Answer
from retake.console.command_context import CommandContext
from retake.console.ordering import order
from retake.console.several import command_for_each
from retake.operations.port import Verb


@command_for_each("cancel", "run", "RUN")
@consent.option
def command(context: CommandContext, run: str, yes: bool) -> Answer:
    """Cancel a generation, or a run of another pipeline. RUN is a run's id, a generation's, or the beginning of one;
    several may be given.

    Everything made for a generation is kept in dead_letters/, from where it can be requeued. It does not count as
    failed. A task in flight at a vendor stays paid for, and its result is not fetched.
    """
    return order(context, Verb.CANCEL, run, yes=yes)
