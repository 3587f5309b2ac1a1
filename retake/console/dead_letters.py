"""`retake dead-letters list|show|requeue|drop`: what failed for good, or was cancelled."""

import json
from collections.abc import Sequence
from datetime import datetime

import click

from retake.console import consent
from retake.console.answer import Answer, Block, Cell, Facts, Heading, Raw, Sentence, Table, Tone, done_lines
from retake.console.command_context import CommandContext
from retake.console.group import CommandGroup
from retake.console.invocation import CONTEXT, console_command
from retake.console.several import Item, command_for_each
from retake.foreign_text import json_lines
from retake.operations import letters
from retake.operations.letters import LetterView
from retake.operations.port import Verb
from retake.operations.words import ago, code_of, moment, one_line, usd
from retake.plural import count
from retake.retrying.dead_letters import DEAD_LETTERS


@click.group("dead-letters", cls=CommandGroup, context_settings=CONTEXT)
def command() -> None:
    """What failed for good or was cancelled: kept whole in dead_letters/ until an operator decides what to do."""


@console_command("list")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Show at most this many.")
def list_letters(context: CommandContext, limit: int) -> Answer:
    """List the dead letters, the newest first."""
    found = letters.list_letters(context.operations, limit)
    document = {"dead_letters": [it.document() for it in found]}
    if not found:
        return Answer(document, [Sentence("There are no dead letters.")])
    now, many = context.clock.now(), len(context.operations.pipelines) > 1
    rows = [
        (it.letter.id, *((context.operations.named_as(it.pipeline) or "",) if many else ()), *_row(it, now))
        for it in found
    ]
    columns = ("id", *(("channel",) if many else ()), "ended", "at", "step", "error", "paid", "files")
    return Answer(document, [Table(columns, rows, right=("paid", "files"), brief=("error",))])


@console_command("show")
@click.argument("letter_id", metavar="ID")
def show_letter(context: CommandContext, letter_id: str) -> Answer:
    """Show one dead letter: what failed and why, which files are kept, and what requeueing it would do."""
    it = letters.find_letter(context.operations, letter_id)
    then, possible = it.requeue()
    keys = [f"{DEAD_LETTERS}{it.letter.id}/{name}" for name in it.files]
    document = {
        **it.document(),
        "report": it.letter.report,
        "keys": keys,
        "where": it.pipeline.bucket.url,
        "requeue": {"possible": possible, "then": then},
    }
    facts: list[tuple[str, str | Cell]] = [*_facts(it, context.clock.now()), ("requeue", then)]
    blocks: list[Block] = [Heading(f"dead letter {it.letter.id}"), Facts(facts)]
    if it.letter.error:
        text = json_lines(json.dumps(it.letter.error, ensure_ascii=False, indent=2))
        blocks += [Heading("Error"), Raw(text)]
    blocks += [Heading("Files"), *(Sentence(key, indent=2) for key in keys)]
    return Answer(document, blocks)


def _requeuable(context: CommandContext) -> list[Item]:
    operations = context.operations
    return [Item(it.letter.id, operations.named_as(it.pipeline)) for it in letters.requeuable(operations)]


@command_for_each("requeue", "letter_id", "ID", _requeuable)
def requeue_letter(context: CommandContext, letter_id: str) -> Answer:
    """Requeue a failed or cancelled generation at the step where it ended, with a full set of attempts.

    Everything before that step is kept and not paid for again. Only one generation is under way at a time in each of
    the CHANNELS: of several, the first is requeued, and the others are refused until it has ended.
    """
    from retake.console.ordering import order_target
    from retake.operations.orders import Target

    it = letters.find_letter(context.operations, letter_id)
    return order_target(context, Verb.REQUEUE, Target(it.pipeline, it.letter.id, None))


@command_for_each("drop", "letter_id", "ID")
@consent.option
def drop_letter(context: CommandContext, letter_id: str, yes: bool) -> Answer:
    """Remove a dead letter for good. What it cost stays on record."""
    it = letters.find_letter(context.operations, letter_id)
    if it.loss:
        consent.obtain(it.loss, yes=yes)
    document = it.drop()
    return Answer(document, done_lines(document["what"]))


for each in (list_letters, show_letter, requeue_letter, drop_letter):
    command.add_command(each)


def _row(it: LetterView, now: datetime) -> Sequence[str | Cell]:
    letter = it.letter
    return (
        Cell(it.how, Tone.BAD if it.how == "failed" else Tone.FAINT),
        moment(letter.failed_at, now) if letter.failed_at else "",
        it.step,
        letter.fault or f"{code_of(letter.error_code)} {one_line(it.message, 100_000)}".strip(),
        usd(it.paid_usd),
        str(len(letter.files)),
    )


def _facts(it: LetterView, now: datetime) -> list[tuple[str, str | Cell]]:
    letter, report = it.letter, it.letter.report
    facts: list[tuple[str, str | Cell]] = [("ended", Cell(it.how, Tone.BAD))]
    if letter.failed_at:
        facts.append(("at", f"{moment(letter.failed_at, now)} ({ago(letter.failed_at, now)})"))
    if letter.fault:
        facts.append(("fault", Cell(letter.fault, Tone.WARN)))
    if isinstance(cancelled := report.get("cancelled"), dict):
        facts.append(("by", str(cancelled.get("by") or "unknown")))
    if it.step:
        facts.append(("step", it.step))
    if isinstance(retries := report.get("retries"), dict) and retries:
        facts.append(("retries", ", ".join(f"{step}: {times}" for step, times in retries.items())))
    if letter.error:
        facts.append(("error", f"{code_of(letter.error_code)}: {one_line(it.message)}"))
    if isinstance(flight := report.get("tasks_in_flight"), list) and flight:
        facts.append(("in flight", Cell(", ".join(map(str, flight)), Tone.WARN)))
    return [*facts, ("paid", f"{count(len(it.calls), 'call')}, {usd(it.paid_usd)}")]
