"""`python -m retake retry RUN`: what failed is tried again now."""

from retake.console.answer import Answer, Line, Tone
from retake.console.command_context import CommandContext
from retake.console.several import command_for_each
from retake.operations.orders import Target, done, has_ended, target
from retake.operations.status import run_document
from retake.runs import open_ledger
from retake.runs.run import Run
from retake.runs.states import RunStatus
from retake.story.operator_rules import ACTOR, Refusal, Verb


@command_for_each("retry", "run", "RUN")
def command(desk: CommandContext, run: str) -> Answer:
    """Try again what failed. RUN is a run's id, a generation's, or the beginning of one;
    there may be several.

    A step that waits for its next attempt is tried at the next tick; it gets no more attempts by that. What waits for
    a person (a refused key) goes on. A held paid call is made again, and may then be paid for twice. A failed
    generation is taken up again from its dead letter, at the step that failed. A failed run of another pipeline is
    queued once more.
    """
    meant = target(desk, run)
    if meant.other:
        return _queued_again(desk, meant, meant.other)
    name = str(meant.generation_id)
    documents = meant.hands.look()
    if meant.under_way(documents):
        meant.hands.planned(Verb.RETRY, name)  # what makes no sense is refused, whoever is at work
        plan, after = meant.hands.carry_out(Verb.RETRY, name, "")
        return done(desk, meant, "retry", plan.done, after, plan.warning)
    cancelled = meant.run is not None and meant.run.status is RunStatus.CANCELLED
    if cancelled or not meant.hands.has_letter(name):
        raise has_ended(meant, documents, "retry")
    meant.hands.check_requeue(name, documents)
    after = meant.hands.requeue(name)
    return done(desk, meant, "requeue", f"{name} is taken up again from its dead letter", after)


def _queued_again(desk: CommandContext, meant: Target, failed: Run) -> Answer:
    """A new run of the same task. Asked for twice, it is the same one."""
    if failed.status is not RunStatus.FAILED:
        raise Refusal(f"{failed.run_id} of {failed.pipeline} is {failed.status}: {_WAYS[failed.status]}")
    ledger = open_ledger(desk.settings.storage.ledger, desk.leasable(meant.pipeline), desk.clock)
    runs = ledger.of_task(failed.task_id)
    going = [run for run in runs if not run.ended]
    key = f"{failed.idempotency_key}+retry"
    if going and going[-1].idempotency_key != key:
        raise Refusal(f"{failed.run_id}: its task {failed.task_id} is being tried again already: {going[-1].run_id}")
    new = ledger.create_for_task(failed.task_id, key, actor=ACTOR, pipeline=failed.pipeline)
    what = f"{failed.task_id} is queued again as {new.run_id}, attempt {new.attempt}"
    document = {"done": "retry", "run": run_document(new), "what": what, "next_tick": None}
    return Answer(document, [Line(f"Done: {what}.", Tone.GOOD), Line(f"A worker of {failed.pipeline} takes it up.")])


_WAYS = {
    RunStatus.QUEUED: "a worker takes it up; wait for it, or cancel it",
    RunStatus.RUNNING: "it is being worked on; wait for it, or cancel it",
    RunStatus.RETRY_SCHEDULED: "it is tried again when that is due; wait for it, or cancel it",
    RunStatus.INTERRUPTED: "a worker takes it up again; wait for it, or cancel it",
    RunStatus.SUCCEEDED: "there is nothing to try again",
    RunStatus.CANCELLED: "it was not wanted any more; whoever wants it again creates a new run",
}
