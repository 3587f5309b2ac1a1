"""What `retry`, `skip`, `cancel` and `dead-letters requeue` share: an order is planned, agreed to and carried out."""

from retake.console import consent
from retake.console.answer import Answer, done_answer
from retake.console.command_context import CommandContext
from retake.operations.orders import Target, carry_out, loss, plan_order, target
from retake.operations.port import Verb


def order(context: CommandContext, verb: Verb, text: str, *, yes: bool = True) -> Answer:
    """Do `verb` to what `text` names. What would be lost by it the operator must agree to. Raises Refusal."""
    return order_target(context, verb, target(context.operations, text), yes=yes)


def order_target(context: CommandContext, verb: Verb, meant: Target, *, yes: bool = True) -> Answer:
    """Do `verb` to what is meant. An order that does not fit is refused whoever is at work."""
    plan = plan_order(meant, verb)
    if lost := loss(meant, plan):
        consent.obtain(lost, yes=yes)
    return done_answer(carry_out(context.operations, meant, plan))
