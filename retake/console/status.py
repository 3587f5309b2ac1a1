"""`retake status`: the state of everything at a glance, and whether a person is needed."""

from collections.abc import Sequence
from datetime import datetime

from retake.console import watch
from retake.console.answer import RUN_TONES, Answer, Block, Cell, Facts, Heading, Sentence, Table, Tone
from retake.console.command_context import CommandContext
from retake.console.invocation import console_command
from retake.exit_codes import ExitCode
from retake.operations.status import PipelineStatus, day_of, status_report, told_by_all
from retake.operations.words import ago, code_of, moment, one_line, span, usd, when_due


@console_command("status")
@watch.option
def command(context: CommandContext) -> Answer:
    """Show how each pipeline stands: what is under way, what it waits for, what failed last, what the next tick does.

    Takes no lease and changes nothing. Exits with 69 if a person is needed, and says what for.
    """
    found = status_report(context.operations, context.settings.workflow.daily_cap_usd)
    seen, now = found.pipelines, found.at
    blocks = _many(seen, now) if len(seen) > 1 else _one(seen[0], now)
    for it in found.breakers:
        since = f", since {it['opened_at']}" if it["opened_at"] else ""
        why = f": {it['code']}" if it["code"] else ""
        blocks.append(Sentence(f"breaker {it['name']} is {it['phase']}{since}{why}", Tone.WARN))
    return Answer(found.document(), blocks, ExitCode.OK if found.healthy else ExitCode.FAILED)


# --- one pipeline ---


def _one(seen: PipelineStatus, now: datetime) -> list[Block]:
    title = ": ".join(part for part in (seen.label, seen.state.item_id, seen.state.words) if part)
    title = title if seen.label or seen.state.item_id else _capital(title)
    blocks: list[Block] = [Heading(title)]
    blocks += [Sentence(f"a person is needed: {need}", Tone.BAD) for need in seen.needs]
    blocks.append(Facts(_facts(seen, now)))
    blocks += [Sentence(f"note: {note}", Tone.WARN) for note in seen.notes]
    if seen.ended:
        rows = [
            (
                moment(run.updated_at, now),
                run.task_id,
                Cell(run.status, RUN_TONES.get(run.status, Tone.PLAIN)),
                code_of(run.error_code),
            )
            for run in seen.ended
        ]
        blocks += [Heading("Last ended"), Table(("ended", "task", "how", "last error"), rows)]
    return blocks


def _facts(seen: PipelineStatus, now: datetime) -> list[tuple[str, str | Cell]]:
    facts: list[tuple[str, str | Cell]] = []
    state = seen.state
    if state.step:
        facts.append(("step", state.step.words))
    if state.waiting:
        since = state.waiting.since
        when = f" (since {moment(since, now)}, {ago(since, now)})" if since else ""
        facts.append(("waits for", f"{state.waiting.party}: {state.waiting.what}{when}"))
    if state.next_retry_at:
        facts.append(("next retry", f"{moment(state.next_retry_at, now)} ({when_due(state.next_retry_at, now)})"))
    facts += _error_facts(seen, now)
    if seen.leased:
        facts.append(("lease", _lease(seen, now)))
        facts.append(("next tick", seen.next_tick))
    facts.append(("spent today", spent_today(seen)))
    if seen.counts:
        shown = ", ".join(f"{n} {status}" for status, n in seen.counts.items() if n)
        facts.append(("runs", shown or "none yet"))
    if seen.dead_letters:
        facts.append(("dead letters", f"{seen.dead_letters} (see: dead-letters list)"))
    return facts


def _error_facts(seen: PipelineStatus, now: datetime) -> list[tuple[str, str | Cell]]:
    error = seen.state.error
    if not error:
        return []
    when = error.at
    told = f"{code_of(error.code)}: {error.message}"
    facts: list[tuple[str, str | Cell]] = [
        ("last error", Cell(one_line(told, 400) + (f" ({ago(when, now)})" if when else ""), Tone.WARN))
    ]
    return facts


def _lease(seen: PipelineStatus, now: datetime) -> str:
    holder = seen.holder
    if not holder:
        return "free: nobody is at work"
    since = f" since {moment(holder.since, now)} ({ago(holder.since, now)})" if holder.since else ""
    until = f"; free at {moment(holder.until, now)} unless renewed" if holder.until else ""
    return f"held by {holder.owner}{since}{until}"


def spent_today(seen: PipelineStatus) -> str:
    """Return what the pipeline has spent today, and how much of the caps is used."""
    today, sums = seen.today, seen.sums
    if today is None or sums is None:
        if seen.state.own_book:
            return "not known: its database cannot be read"
        what = "the day's book" if today is None else "the pipeline's document"
        return f"not known: {what} cannot be read"
    cap, own_cap = today.limits.bucket_usd, today.limits.pipeline_usd
    parts = [f"{usd(sums.settled)}, no cap" if cap is None and own_cap is None else usd(sums.settled)]
    if cap is not None and today.book.spent == sums.spent:
        parts = [f"{sums.settled:.3f} of {usd(cap)}"]
    elif cap is not None:
        parts.append(f"{today.book.spent:.3f} of {usd(cap)} by all channels")
    if own_cap is not None:
        parts.append(f"{sums.spent:.3f} of {usd(own_cap)} for one channel")
    return "; ".join([*parts, *([f"{usd(sums.reserved)} reserved"] if sums.reserved else [])])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# --- many ---


def _many(seen: Sequence[PipelineStatus], now: datetime) -> list[Block]:
    columns = 6 if any(it.dead_letters for it in seen) else 5
    rows = [_row(it, now)[:columns] for it in seen]
    needing = [it for it in seen if it.needs]
    busy = sum(it.state.item_id is not None or not (it.leased or it.state.idle) for it in seen)
    what = "channels" if all(it.channel for it in seen) else "pipelines"
    held = sum(it.holder is not None for it in seen)
    shared, for_all = told_by_all([it.notes for it in seen]), told_by_all([it.needs for it in seen])
    blocks: list[Block] = [
        Heading(f"{len(seen)} {what}: {busy} with a generation under way, {held} at work now, "
                f"{len(needing)} need{'s' * (len(needing) == 1)} a person"),
        Table((what[:-1], "generation", "step", "stands", "last error", "dead letters")[:columns], rows),
    ]  # fmt: skip
    day = day_of(seen)
    if day and (day.limits.bucket_usd is not None or day.doubt):
        of = f" of {usd(day.limits.bucket_usd)}" if day.limits.bucket_usd is not None else ""
        doubt = f"; {day.doubt}" if day.doubt else ""
        blocks.append(Sentence(f"spent today by all channels: {day.book.spent:.3f}{of}{doubt}"))
    blocks += [Sentence(f"spent today by {it.label}: {spent_today(it)}") for it in seen if it.state.own_book]
    blocks += [Sentence(f"note: {note}", Tone.WARN) for note in shared]
    if needing:
        blocks.append(Heading("A person is needed"))
        blocks += [Sentence(need, Tone.BAD) for need in for_all]
        own = ((it.label, need) for it in needing for need in it.needs if need not in for_all)
        blocks += [Sentence(f"{label}: {need}", Tone.BAD) for label, need in own]
    return blocks


def _row(seen: PipelineStatus, now: datetime) -> list[str | Cell]:
    stands, state = _stands(seen, now), seen.state
    return [
        Cell(seen.label or "", stands.tone if stands.tone is not Tone.FAINT else Tone.PLAIN),
        state.item_id or "",
        state.step.short if state.step else "",
        stands,
        code_of(state.error.code),
        str(seen.dead_letters or ""),
    ]


def _stands(seen: PipelineStatus, now: datetime) -> Cell:
    """Return the state of a pipeline in a few words."""
    state = seen.state
    if not state.readable:
        return Cell("unreadable", Tone.BAD)
    if seen.needs:
        return Cell("needs a person", Tone.BAD)
    if seen.holder:
        return Cell("at work", Tone.GOOD)
    if not seen.leased and not state.idle:
        return Cell(state.words)
    if state.item_id is None:
        return Cell("idle", Tone.FAINT)
    if state.failing:
        due = state.next_retry_at
        return Cell(f"failed, again {ago(due, now)}" if due and due > now else "failed", Tone.WARN)
    if state.waiting:
        since = f", {span((now - state.waiting.since).total_seconds())}" if state.waiting.since else ""
        return Cell(f"waits for {state.waiting.party}{since}")
    return Cell("waits" if state.idle else "continues")
