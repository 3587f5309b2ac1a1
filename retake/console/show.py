"""`python -m retake show RUN`: everything that happened to a run, in its order."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from retake.console.answer import Answer, Block, Cell, Facts, Heading, Line, Table, Tone
from retake.console.command_context import CommandContext, console_command
from retake.console.runs import TONES
from retake.operations.attempts import TAKEN_UP, Attempt, present, times_taken_up
from retake.operations.evidence import Evidence, evidence, total_usd
from retake.operations.lookup import Found, find
from retake.operations.status import run_document
from retake.operations.timeline import Moment, as_document, timeline
from retake.operations.words import ago, code_of, count, moment, one_line, size, span, usd
from retake.runs.states import RunStatus
from retake.story.documents import safe_id

NOTHING = Evidence([], [], None)


@console_command("show")
@click.argument("run", metavar="RUN")
def command(desk: CommandContext, run: str) -> Answer:
    """All that happened to a run: when, what, by whom, which attempt, and what went wrong; its files; what was paid.

    RUN is the id of a run or of a generation, or the beginning of one: then all of its runs are told.
    """
    found = find(desk, run)
    moments = timeline(event for it in found.runs for event in found.ledger.events(it.run_id))
    known = gather(desk, found)
    now_at = at_attempt(desk, known)
    start = moments[0].at if moments else found.runs[0].created_at
    document = {
        "task_id": found.task_id,
        **(now_at.document() if now_at else {"step": None, "step_attempt": None, "max_attempts": None}),
        "runs": [run_document(it) for it in found.runs],
        "timeline": [as_document(it, start) for it in moments],
        "files": [{"key": it.key, "size": it.size} for it in known.files],
        "paid_calls": known.calls,
        "paid_usd": total_usd(known.calls),
        "where": found.pipeline.bucket.url,
    }
    return Answer(document, _blocks(found, moments, known, now_at, start, desk.clock.now()))


def gather(desk: CommandContext, found: Found) -> Evidence:
    """What the bucket has of the generation; nothing for a task that is none."""
    if not found.runs[-1].pipeline.startswith("story") or not safe_id(found.generation_id):
        return NOTHING
    return evidence(desk.store(found.pipeline), found.generation_id)


def at_attempt(desk: CommandContext, known: Evidence) -> Attempt | None:
    """Return the attempt that the generation is at; None where it is not under way."""
    return present(known.doc, desk.settings.workflow) if known.doc else None


def _blocks(
    found: Found, moments: Sequence[Moment], known: Evidence, now_at: Attempt | None, start: datetime, now: datetime
) -> list[Block]:
    last = found.runs[-1]
    facts: list[tuple[str, str | Cell]] = [
        ("run" if len(found.runs) == 1 else "runs", ", ".join(run.run_id for run in found.runs)),
        ("status", Cell(last.status, TONES.get(last.status, Tone.PLAIN))),
        *([("step", now_at.words)] if now_at else []),
        (TAKEN_UP, times_taken_up(last)),
        ("began", f"{moment(start, now)} ({ago(start, now)})"),
    ]
    if last.ended:
        took = span((last.updated_at - start).total_seconds())
        facts.append(("ended", f"{moment(last.updated_at, now)}, after {took}"))
    if last.status is RunStatus.RETRY_SCHEDULED and last.next_retry_at:
        facts.append(("next retry", f"{moment(last.next_retry_at, now)} ({ago(last.next_retry_at, now)})"))
    if last.worker:
        facts.append(("worker", last.worker))
    if last.error_code:
        facts.append(("last error", Cell(code_of(last.error_code), Tone.WARN)))
    title = f"{last.pipeline} {last.task_id}".strip()
    return [
        Heading(title), Facts(facts), *_happened(moments, start, now), *_paid(known.calls), *_lies(found, known)
    ]  # fmt: skip


def _happened(moments: Sequence[Moment], start: datetime, now: datetime) -> list[Block]:
    rows: list[tuple[str | Cell, ...]] = []
    for it in moments:
        tone = Tone.BAD if it.status == RunStatus.FAILED else Tone.WARN if it.error else Tone.PLAIN
        tone = Tone.GOOD if it.status == RunStatus.SUCCEEDED else tone
        due = it.next_retry_at if it.next_retry_at and it.next_retry_at > it.at else None
        told = f"{it.told} at {moment(due, now)}" if due else it.told
        what = f"{told}. {it.failure}" if it.failure else told
        since = f"+{span((it.at - start).total_seconds())}"
        rows.append((moment(it.at, now), since, it.actor, str(it.step_attempt or ""), Cell(what, tone)))
    return [Heading("What happened"), Table(("when", "since", "who", "attempt", "what"), rows, ("since", "attempt"))]


def _paid(calls: Sequence[Mapping[str, Any]]) -> list[Block]:
    if not calls:
        return []
    rows = [call_row(call) for call in calls]
    total = f"Paid: {usd(total_usd(calls))} for {count(len(calls), 'call')}"
    return [Heading(total), Table(("asked", "step", "attempt", "outcome", "task", "price"), rows, ("attempt", "price"))]


def call_row(call: Mapping[str, Any]) -> tuple[str | Cell, ...]:
    """A paid call as a table shows it."""
    outcome = str(call.get("outcome") or "")
    doubt = bool(call.get("possible_duplicate"))
    told = f"{outcome}, possible duplicate" if doubt else outcome
    price = call.get("price_usd")
    return (
        one_line(call.get("requested_at_utc") or ""),
        one_line(call.get("step") or ""),
        one_line(call.get("attempt") or ""),
        Cell(told, Tone.WARN if doubt or outcome in ("unknown", "wasted") else Tone.PLAIN),
        one_line(call.get("task_id") or "", 40),
        f"{price:.3f}" if isinstance(price, (int, float)) else "",
    )


def _lies(found: Found, known: Evidence) -> list[Block]:
    if not known.files:
        return []
    rows = [(entry.key, size(entry.size)) for entry in known.files]
    return [
        Heading("Where it lies"),
        Table(("key", "size"), rows, ("size",)),
        Line(found.pipeline.bucket.url, Tone.FAINT),
    ]
