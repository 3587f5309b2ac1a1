"""`retake show RUN`: everything that happened to a run, in order."""

from collections.abc import Sequence
from datetime import datetime

import click

from retake.console.answer import RUN_TONES, Answer, Block, Cell, Facts, Heading, Sentence, Table, Tone
from retake.console.command_context import CommandContext
from retake.console.invocation import console_command
from retake.operations.attempts import TAKEN_UP, times_taken_up
from retake.operations.bills import UNSURE, total_usd
from retake.operations.report import History, history
from retake.operations.words import ago, code_of, moment, one_line, size, span, usd, when_due
from retake.paid.bills import Call, price_of
from retake.plural import count
from retake.runs.states import RunStatus


@console_command("show")
@click.argument("run", metavar="RUN")
def command(context: CommandContext, run: str) -> Answer:
    """Show the history of a run: what happened and when, who did it, at which attempt, and what went wrong; the run's
    files; what was paid for.

    RUN is the id of a run or of a generation, or the beginning of one. For a generation, all of its runs are shown.
    """
    past = history(context.operations, run)
    return Answer(past.document(), _blocks(past, context.clock.now()))


def _blocks(past: History, now: datetime) -> list[Block]:
    runs, step, start = past.found.runs, past.evidence.step, past.start
    last = runs[-1]
    facts: list[tuple[str, str | Cell]] = [
        ("run" if len(runs) == 1 else "runs", ", ".join(run.run_id for run in runs)),
        ("status", Cell(last.status, RUN_TONES.get(last.status, Tone.PLAIN))),
        *([("step", step.words)] if step else []),
        (TAKEN_UP, times_taken_up(last)),
        ("began", f"{moment(start, now)} ({ago(start, now)})"),
    ]
    if last.ended:
        took = span((last.updated_at - start).total_seconds())
        facts.append(("ended", f"{moment(last.updated_at, now)}, after {took}"))
    if last.status is RunStatus.RETRY_SCHEDULED and last.next_retry_at:
        facts.append(("next retry", f"{moment(last.next_retry_at, now)} ({when_due(last.next_retry_at, now)})"))
    if last.worker:
        facts.append(("worker", last.worker))
    if last.error_code:
        facts.append(("last error", Cell(code_of(last.error_code), Tone.WARN)))
    title = f"{last.pipeline} {last.task_id}".strip()
    return [Heading(title), Facts(facts), *_timeline(past, now), *_paid(past.evidence.calls), *_files(past)]


def _timeline(past: History, now: datetime) -> list[Block]:
    rows: list[tuple[str | Cell, ...]] = []
    for it in past.entries:
        tone = Tone.BAD if it.status == RunStatus.FAILED else Tone.WARN if it.error else Tone.PLAIN
        tone = Tone.GOOD if it.status == RunStatus.SUCCEEDED else tone
        due = it.next_retry_at if it.next_retry_at and it.next_retry_at > it.at else None
        told = f"{it.description} at {moment(due, now)}" if due else it.description
        what = f"{told}. {it.failure}" if it.failure else told
        since = f"+{span((it.at - past.start).total_seconds())}"
        rows.append((moment(it.at, now), since, it.actor, str(it.step_attempt or ""), Cell(what, tone)))
    return [Heading("What happened"), Table(("when", "since", "who", "attempt", "what"), rows, ("since", "attempt"))]


def _paid(calls: Sequence[Call]) -> list[Block]:
    if not calls:
        return []
    rows = [_call_row(call) for call in calls]
    tasks: list[tuple[str | Cell, ...]] = [
        (*_of_step(call), one_line(call["task_id"])) for call in calls if call.get("task_id")
    ]
    total = f"Paid: {usd(total_usd(calls))} for {count(len(calls), 'call')}"
    blocks: list[Block] = [
        Heading(total),
        Table(("asked", "step", "attempt", "outcome", "price"), rows, ("attempt", "price")),
    ]
    if tasks:
        blocks += [Heading("Tasks"), Table(("step", "attempt", "task"), tasks, ("attempt",))]
    return blocks


def _call_row(call: Call) -> tuple[str | Cell, ...]:
    """Return the table row of a paid call."""
    outcome = str(call.get("outcome") or "")
    doubt = bool(call.get("possible_duplicate"))
    told = f"{outcome}, possible duplicate" if doubt else outcome
    return (
        one_line(call.get("requested_at_utc") or ""),
        *_of_step(call),
        Cell(told, Tone.WARN if doubt or outcome in UNSURE else Tone.PLAIN),
        f"{price_of(call):.3f}" if "price_usd" in call else "",
    )


def _of_step(call: Call) -> tuple[str, str]:
    return one_line(call.get("step") or ""), one_line(call.get("attempt") or "")


def _files(past: History) -> list[Block]:
    if not past.evidence.files:
        return []
    rows = [(entry.key, size(entry.size)) for entry in past.evidence.files]
    where = Sentence(past.found.pipeline.bucket.url, Tone.FAINT)
    return [Heading("Files"), Table(("key", "size"), rows, ("size",)), where]
