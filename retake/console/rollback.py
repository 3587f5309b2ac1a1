"""`retake rollback RUN --to STEP`: throw away what a step and later ones made, and take it again."""

import click

from retake.console import consent
from retake.console.answer import Answer, done_answer
from retake.console.command_context import CommandContext
from retake.console.invocation import console_command
from retake.operations.orders import carry_out, plan_order, target
from retake.operations.port import Refusal, Verb


@console_command("rollback")
@click.argument("run", metavar="RUN")
@click.option(
    "--to",
    "step",
    required=True,
    type=click.Choice(["content", "imagine", "upscale", "runway"]),
    help="The step that is to be taken again.",
)
@consent.option
def command(context: CommandContext, run: str, step: str, yes: bool) -> Answer:
    """Roll the generation under way back to STEP, which the next tick takes again. RUN is a run's id, a generation's,
    or the beginning of one.

    What STEP and later steps made is kept in a folder of dead_letters/. What was paid for it stays on record, and is
    paid once more. Without --yes, what would be given up is told, and nothing is changed.
    """
    meant = target(context.operations, run)
    plan = plan_order(meant, Verb.ROLLBACK, step)
    if not yes:
        lost = plan.lost or "nothing that was made"
        raise Refusal(
            f"rolling {meant.item_id} back to {step} gives up {lost}. Say --yes if that is meant. Nothing was changed"
        )
    return done_answer(carry_out(context.operations, meant, plan))
