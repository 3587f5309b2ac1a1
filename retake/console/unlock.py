"""`retake unlock`: unlock a pipeline whose manager is gone."""

from retake.console import consent
from retake.console.answer import Answer, Block, Sentence, Tone, done_lines
from retake.console.command_context import CommandContext
from retake.console.invocation import console_command
from retake.operations.unlocking import GOES_ON, plan_unlock, unlock


@console_command("unlock")
@consent.option
def command(context: CommandContext, yes: bool) -> Answer:
    """Break the lease of a manager that is gone, and lower a processing_lock that a crash left.

    On B2 and S3 a dead manager's lease expires after a few minutes; this ends it now. If its holder is alive after all,
    it and its scripts find that out before their next write or payment. In a directory the kernel holds the lease only
    for living processes: this says which, and ending them frees it.
    """
    plan = plan_unlock(context.pipeline, context.clock)
    if plan.lost:
        consent.obtain(plan.lost, yes=yes)
    done = unlock(plan)
    if not done.then:  # the lease was free
        return Answer(done.document, [*done_lines(done.document["what"]), Sentence(GOES_ON)])
    return Answer(done.document, [*done_lines(done.document["what"], done.then), *_follow_up(done.lowered)])


def _follow_up(lowered: bool | None) -> list[Block]:
    if lowered is None:
        return [Sentence("One of the documents is invalid; `status` says which.", Tone.WARN)]
    return [Sentence(f"{'processing_lock is lowered. ' if lowered else ''}{GOES_ON}")]
