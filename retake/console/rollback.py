"""`retake rollback RUN --to STEP`: give up what a step and later ones made, and repeat them."""

import click

from retake.console import consent
from retake.console.answer import Answer, done_answer
from retake.console.command_context import CommandContext
from retake.console.invocation import console_command
from retake.operations.orders import carry_out, plan_order, target
from retake.operations.port import Refusal, Verb
from retake.option_values import not_empty

STEPS = ("content", "imagine", "upscale", "runway")
"""The steps of a story. Those of one of the PIPELINES only that pipeline knows."""


@console_command("rollback")
@click.argument("run", metavar="RUN")
@click.option(
    "--to",
    "step",
    required=True,
    metavar=f"[{'|'.join(STEPS)}]",
    callback=not_empty,
    help="The step to repeat.",
)
@consent.option
def command(context: CommandContext, run: str, step: str, yes: bool) -> Answer:
    """Roll the generation under way back to STEP, which the next tick repeats. RUN is a run's id, a generation's, or
    the beginning of one.

    What STEP and later steps made is kept in a folder of dead_letters/. What was paid for it stays on record, and is
    paid again. Without --yes, only what would be given up is shown, and nothing is changed.
    """
    if step not in STEPS and not context.settings.pipelines:
        named = ", ".join(map(repr, STEPS))
        raise click.BadParameter(f"{step!r} is not one of {named}.", click.get_current_context(), param_hint="'--to'")
    meant = target(context.operations, run)
    plan = plan_order(meant, Verb.ROLLBACK, step)
    if not yes:
        lost = plan.lost or "nothing that was made"
        raise Refusal(
            f"rolling {meant.item_id} back to {step} gives up {lost}. Pass --yes to confirm. Nothing was changed"
        )
    return done_answer(carry_out(context.operations, meant, plan))
