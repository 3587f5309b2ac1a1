"""`retake retry RUN`: retry what failed now."""

from retake.console.answer import Answer
from retake.console.command_context import CommandContext
from retake.console.ordering import order
from retake.console.several import command_for_each
from retake.operations.port import Verb


@command_for_each("retry", "run", "RUN")
def command(context: CommandContext, run: str) -> Answer:
    """Retry what failed. RUN is a run's id, a generation's, or the beginning of one;
    several may be given.

    A step that waits for its next attempt is retried at the next tick; this gives it no extra attempts. A step that
    waits for a person (a refused key) continues. A held paid call is made again, and may then be paid for twice. A
    failed generation is requeued from its dead letter, at the step that failed. A failed run of another pipeline is
    queued again.
    """
    return order(context, Verb.RETRY, run)
