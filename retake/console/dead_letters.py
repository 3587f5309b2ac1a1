"""`python -m retake dead-letters list|show|requeue|drop`: what failed for good, or was cancelled."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from retake.clock import stamp
from retake.console import consent
from retake.console.answer import Answer, Block, Cell, Facts, Heading, Line, Raw, Table, Tone
from retake.console.command_context import CONTEXT, CommandContext, Pipeline, console_command
from retake.console.day import day_before_paying
from retake.console.group import CommandGroup
from retake.console.several import Item, command_for_each
from retake.errors import RetakeError, RunError
from retake.foreign_text import json_lines
from retake.operations.orders import Target, done, intervention
from retake.operations.words import ago, code_of, moment, one_line, usd
from retake.retrying.dead_letters import DeadLetter, DeadLetters
from retake.story.operator_actions import OperatorActions
from retake.story.operator_rules import Refusal, next_tick
from retake.story.prices import prices


@click.group("dead-letters", cls=CommandGroup, context_settings=CONTEXT)
def command() -> None:
    """What failed for good, or was cancelled: kept whole in dead_letters/ until somebody decides what becomes of it."""


@console_command("list")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many at most.")
def list_letters(desk: CommandContext, limit: int) -> Answer:
    """The dead letters, the newest first."""
    found = [
        (pipeline, letter)
        for pipeline in desk.pipelines
        for letter in DeadLetters(pipeline.bucket, desk.clock).list(limit)
    ]
    found.sort(key=lambda it: it[1].failed_at.timestamp() if it[1].failed_at else 0.0, reverse=True)
    del found[limit:]
    document = {"dead_letters": [_document(pipeline, letter) for pipeline, letter in found]}
    if not found:
        return Answer(document, [Line("There are no dead letters.")])
    now = desk.clock.now()
    many = len(desk.pipelines) > 1
    rows = [(letter.id, *((pipeline.channel or "",) if many else ()), *_row(letter, now)) for pipeline, letter in found]
    columns = ("id", *(("channel",) if many else ()), "ended", "at", "step", "error", "paid", "files")
    return Answer(document, [Table(columns, rows, right=("paid", "files"), brief=("error",))])


@console_command("show")
@click.argument("letter_id", metavar="ID")
def show_letter(desk: CommandContext, letter_id: str) -> Answer:
    """One dead letter: what failed and why, what is kept of it, and what taking it up again would do."""
    pipeline, hands, letter = _letter(desk, letter_id)
    following, possible = _foretold(desk, pipeline, hands, letter)
    keys = [f"dead_letters/{letter.id}/{name}" for name in (*letter.files, *([] if letter.fault else ["report.json"]))]
    document = {**_document(pipeline, letter), "report": letter.report, "keys": keys, "where": pipeline.bucket.url}
    document |= {"requeue": {"possible": possible, "then": following}}
    facts: list[tuple[str, str | Cell]] = [*_facts(letter, desk.clock.now()), ("requeue", following)]
    blocks: list[Block] = [Heading(f"dead letter {letter.id}"), Facts(facts)]
    if letter.error:
        blocks += [Heading("error"), Raw(_json(letter.error))]
    blocks += [Heading("files"), *(Line(key, indent=2) for key in keys)]
    return Answer(document, blocks)


def _to_requeue(desk: CommandContext) -> list[Item]:
    """The generations among the dead letters, the oldest first; not what is only the remains of one."""
    found = []
    for pipeline in desk.pipelines:
        letters = [it for it in DeadLetters(pipeline.bucket, desk.clock).list(_MOST) if _how(it) in _TAKEN_UP]
        letters.sort(key=lambda it: (it.failed_at.timestamp() if it.failed_at else 0.0, it.id))
        found += [Item(letter.id, pipeline.channel) for letter in letters]
    return found


_MOST, _TAKEN_UP = 10_000, ("failed", "cancelled")


@command_for_each("requeue", "letter_id", "ID", _to_requeue)
def requeue_letter(desk: CommandContext, letter_id: str) -> Answer:
    """Take a failed or cancelled generation up again, at the step where it ended, with attempts anew.

    Everything before that step is kept and not paid for again. One generation is under way at a time, in each of the
    CHANNELS: of several the first is taken up, and the others are refused until it has ended.
    """
    pipeline, hands, letter = _letter(desk, letter_id)
    hands.check_requeue(letter.id, hands.look())
    after = hands.requeue(letter.id)
    what = f"{letter.id} is taken up again from its dead letter"
    return done(desk, Target(pipeline, letter.id, None, hands), "requeue", what, after)


@command_for_each("drop", "letter_id", "ID")
@consent.option
def drop_letter(desk: CommandContext, letter_id: str, yes: bool) -> Answer:
    """Remove a dead letter for good. What it cost stays on record."""
    _, hands, letter = _letter(desk, letter_id)
    if lost := _lost(letter):
        consent.obtain(f"dropping {letter.id} loses for good: {lost}", yes=yes)
    hands.drop(letter.id)
    gone = [*letter.files, *([] if letter.fault else ["report.json"])]
    what = f"the dead letter {letter.id} is dropped, {len(gone)} files"
    document = {"done": "drop", "generation_id": letter.id, "what": what, "files": gone, "lost": _lost(letter)}
    return Answer(document, [Line(f"Done: {what}.", Tone.GOOD)])


for each in (list_letters, show_letter, requeue_letter, drop_letter):
    command.add_command(each)


def _letter(desk: CommandContext, letter_id: str) -> tuple[Pipeline, OperatorActions, DeadLetter]:
    """Raises Refusal where there is none, RunError where several channels have one."""
    found = []
    for pipeline in desk.pipelines:
        hands = intervention(desk, pipeline)
        letter = hands.letter(letter_id)
        if letter:
            found.append((pipeline, hands, letter))
    if not found:
        raise Refusal(f"there is no dead letter {letter_id}; dead-letters list shows those that there are")
    if len(found) > 1:
        channels = ", ".join(str(pipeline.channel) for pipeline, _, _ in found)
        raise RunError(f"{letter_id} is a dead letter of several channels: {channels}; name the --channel")
    return found[0]


def _foretold(desk: CommandContext, pipeline: Pipeline, hands: OperatorActions, letter: DeadLetter) -> tuple[str, bool]:
    """What taking it up again would lead to, and whether that is possible now."""
    try:
        hands.check_requeue(letter.id, hands.look())
        documents = hands.requeued(letter.id)
    except RetakeError as error:
        return f"not now: {error}", False
    if documents is None:
        return "not possible: its document is not there", False
    today = day_before_paying(desk, pipeline, documents.midjourney)
    then = next_tick(documents, desk.settings.workflow, desk.clock.now(), prices(desk.settings), today)
    return f"possible; {then}", True


def _document(pipeline: Pipeline, letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "channel": pipeline.channel,
        "kind": letter.kind,
        "ended": _how(letter),
        "at": stamp(letter.failed_at) if letter.failed_at else None,
        "step": letter.report.get("failed_step"),
        "error_code": letter.error_code,
        "message": letter.error.get("message"),
        "paid_usd": _paid(letter),
        "files": list(letter.files),
        "fault": letter.fault or None,
    }


def _row(letter: DeadLetter, now: datetime) -> Sequence[str | Cell]:
    failed = _how(letter) == "failed"
    return (
        Cell(_how(letter), Tone.BAD if failed else Tone.FAINT),
        moment(letter.failed_at, now) if letter.failed_at else "",
        str(letter.report.get("failed_step") or ""),
        letter.fault or f"{code_of(letter.error_code)} {one_line(letter.error.get('message') or '', 100_000)}".strip(),
        usd(_paid(letter)),
        str(len(letter.files)),
    )


def _facts(letter: DeadLetter, now: datetime) -> list[tuple[str, str | Cell]]:
    report = letter.report
    facts: list[tuple[str, str | Cell]] = [("ended", Cell(_how(letter), Tone.BAD))]
    if letter.failed_at:
        facts.append(("at", f"{moment(letter.failed_at, now)} ({ago(letter.failed_at, now)})"))
    if letter.fault:
        facts.append(("fault", Cell(letter.fault, Tone.WARN)))
    if isinstance(cancelled := report.get("cancelled"), dict):
        facts.append(("by", str(cancelled.get("by"))))
    if report.get("failed_step"):
        facts.append(("step", str(report["failed_step"])))
    if isinstance(retries := report.get("retries"), dict) and retries:
        facts.append(("retries", ", ".join(f"{step}: {times}" for step, times in retries.items())))
    if letter.error:
        facts.append(("error", f"{code_of(letter.error_code)}: {one_line(letter.error.get('message') or '')}"))
    if flight := report.get("tasks_in_flight"):
        facts.append(("in flight", Cell(", ".join(map(str, flight)), Tone.WARN)))
    return [*facts, ("paid", f"{len(_calls(letter))} calls, {usd(_paid(letter))}")]


def _how(letter: DeadLetter) -> str:
    if letter.ended:
        return f"{letter.ended} (remains)"
    if letter.id.startswith("before-"):
        return "nobody's"
    return "cancelled" if letter.report.get("cancelled") else "failed"


def _lost(letter: DeadLetter) -> str:
    """What dropping it loses, in words."""
    if letter.ended:
        return ""  # only remains
    calls, files = _calls(letter), ", ".join(letter.files)
    results = f", results of {len(calls)} paid calls ({usd(_paid(letter))})" if calls else ""
    return f"{files or 'its report'}{results}"


def _calls(letter: DeadLetter) -> list[dict[str, Any]]:
    calls = letter.report.get("paid_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _paid(letter: DeadLetter) -> float:
    amounts = (call.get("price_usd") for call in _calls(letter))
    return round(sum(amount for amount in amounts if isinstance(amount, (int, float))), 6)


def _json(value: object) -> str:
    import json

    return json_lines(json.dumps(value, ensure_ascii=False, indent=2))
