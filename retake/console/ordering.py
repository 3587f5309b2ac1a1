"""Plan an order, get the operator's agreement, and carry it out: for `retry`, `skip`, `cancel` and requeueing."""

from retake.console import consent
from retake.console.answer import Answer, done_answer
from retake.console.command_context import CommandContext
from retake.operations.orders import Target, carry_out, loss, plan_order, target
from retake.operations.port import Verb


def order(context: CommandContext, verb: Verb, text: str, *, yes: bool = True) -> Answer:
    """Apply `verb` to what `text` names. The operator must agree to any loss. Raises Refusal."""
    return order_target(context, verb, target(context.operations, text), yes=yes)


def order_target(context: CommandContext, verb: Verb, meant: Target, *, yes: bool = True) -> Answer:
    """Apply `verb` to a target. An order that does not fit its state is refused even while a tick is running."""
    plan = plan_order(meant, verb)
    if lost := loss(meant, plan):
        consent.obtain(lost, yes=yes)
    return done_answer(carry_out(context.operations, meant, plan))
