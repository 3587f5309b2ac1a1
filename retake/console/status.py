"""`python -m retake status`: one look tells how it stands, and whether a person is needed."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from retake.clock import stamp
from retake.console import watch
from retake.console.answer import Answer, Block, Cell, Facts, Heading, Line, Table, Tone
from retake.console.command_context import CommandContext, Pipeline, console_command
from retake.console.day import the_day
from retake.console.runs import TONES
from retake.errors import RetakeError, StateError
from retake.operations.attempts import present
from retake.operations.status import ENDED_SHOWN, Overview, as_document, overview
from retake.operations.words import ago, code_of, moment, one_line, span, usd
from retake.paid.caps import Today
from retake.retrying.breaker import BreakerState, Phase, breakers_of, decoded
from retake.retrying.vendor_breakers import refusal
from retake.runs import Ledger
from retake.story.decision import Act, Action, vendor_of
from retake.story.documents import FAILED_STEP


@console_command("status")
@watch.option
def command(desk: CommandContext) -> Answer:
    """How each pipeline stands: what is under way, what it waits for, what failed last, and what the next tick does.

    Takes no lease and changes nothing. Ends with 69 if a person is needed, and says what for.
    """
    standing = breaker_states(desk)
    seen = look(desk, standing)
    now = desk.clock.now()
    pipelines = [as_document(it, desk.settings, now) for it in seen]
    healthy = not any(it.needs for it in seen)
    breakers = open_breakers(desk, standing)
    day = next((it.today for it in seen if it.today), None)
    document = {
        "at": stamp(now),
        "healthy": healthy,
        "pipelines": pipelines,
        "breakers": breakers,
        "caps": day and _caps(day),
    }
    blocks = _many(seen, desk, now) if len(seen) > 1 else _one(seen[0], pipelines[0], now)
    blocks += [
        Line(f"breaker {it['name']} is {it['phase']}, since {it['opened_at']}: {it['code']}", Tone.WARN)
        for it in breakers
    ]
    return Answer(document, blocks, 0 if healthy else 69)


def look(desk: CommandContext, breakers: Mapping[str, BreakerState | str] | None = None) -> list[Overview]:
    """Each pipeline, as many at once as a tick works on. Raises SettingsError, StorageError."""
    many = len(desk.pipelines) > 1
    desk.bucket, desk.settings  # noqa: B018  opened here, once, rather than by each thread
    today = _today(desk)
    standing = breaker_states(desk) if breakers is None else breakers

    def shut(action: Action) -> str:
        vendor = vendor_of(action)
        state = standing.get(vendor) if vendor else None
        if vendor is None or state is None or desk.settings.breaker.failures is None:
            return ""
        if isinstance(state, str):
            return f"the breaker {vendor} cannot be made sense of: {state}"
        return refusal(
            desk.settings.breaker, state, vendor, desk.clock.now(), desk.settings.workflow.script_timeout_seconds
        )

    def one(pipeline: Pipeline) -> Overview:
        return overview(
            pipeline.channel,
            pipeline.name,
            pipeline.bucket,
            _ledger(desk, pipeline),
            desk.settings,
            desk.clock,
            ended=0 if many else ENDED_SHOWN,
            today=today,
            shut=shut,
        )

    if not many:
        return [one(desk.pipelines[0])]
    _ledger(desk, desk.pipelines[0])
    with ThreadPoolExecutor(desk.settings.workflow.channel_concurrency) as pool:
        return list(pool.map(one, desk.pipelines))


def _today(desk: CommandContext) -> Today | StateError:
    try:
        return the_day(desk)
    except StateError as error:
        return error


def _caps(today: Today) -> dict[str, Any]:
    """The day's book, as JSON has it."""
    return {
        "day": today.day,
        "clock_day": today.clock_day,
        "spent_usd": today.book.spent,
        "cap_usd": today.limits.bucket_usd,
        "channel_cap_usd": today.limits.pipeline_usd,
    }


def breaker_states(desk: CommandContext) -> dict[str, BreakerState | str]:
    """Return each breaker on record by name: its state, or what is wrong with its document."""
    register, found = breakers_of(desk.bucket, desk.clock), dict[str, BreakerState | str]()
    for name in register.names():
        try:
            found[name] = decoded(register.read(name))
        except (RetakeError, ValueError) as error:
            found[name] = str(error)
    return found


def open_breakers(desk: CommandContext, states: Mapping[str, BreakerState | str] | None = None) -> list[dict[str, Any]]:
    """The circuit breakers that do not let everything through."""
    now, found = desk.clock.now(), []
    for name, state in (breaker_states(desk) if states is None else states).items():
        if isinstance(state, str):
            found.append({"name": name, "phase": "unreadable", "opened_at": None, "open_until": None, "code": state})
            continue
        if (phase := state.phase(now)) is not Phase.CLOSED:
            opened, until = (stamp(it) if it else None for it in (state.opened_at, state.open_until))
            found.append({"name": name, "phase": phase, "opened_at": opened, "open_until": until, "code": state.code})
    return found


def _ledger(desk: CommandContext, pipeline: Pipeline) -> Ledger | RetakeError:
    try:
        return desk.ledger(pipeline)
    except RetakeError as error:
        return error


# --- one pipeline ---------------------------------------------------------------------------------------------------


def _one(seen: Overview, document: dict[str, Any], now: datetime) -> list[Block]:
    title = ": ".join(part for part in (seen.channel, seen.generation_id, seen.words) if part)
    title = title if seen.generation_id else _capital(title)
    blocks: list[Block] = [Heading(title)]
    blocks += [Line(f"a person is needed: {need}", Tone.BAD) for need in seen.needs]
    blocks.append(Facts(_facts(seen, document, now)))
    blocks += [Line(f"note: {note}", Tone.WARN) for note in seen.notes]
    if seen.ended:
        rows = [
            (
                moment(run.updated_at, now),
                run.task_id,
                Cell(run.status, TONES.get(run.status, Tone.PLAIN)),
                code_of(run.error_code),
            )
            for run in seen.ended
        ]
        blocks += [Heading("The last that ended"), Table(("ended", "task", "how", "last error"), rows)]
    return blocks


def _facts(seen: Overview, document: dict[str, Any], now: datetime) -> list[tuple[str, str | Cell]]:
    facts: list[tuple[str, str | Cell]] = []
    if seen.generation_id:
        facts.append(("step", f"{document['step']}, attempt {document['attempt']} of {document['max_attempts']}"))
    if seen.waiting:
        since = seen.waiting.since
        when = f", since {moment(since, now)} ({ago(since, now)})" if since else ""
        facts.append(("waits for", f"{seen.waiting.whom}: {seen.waiting.what}{when}"))
    if seen.next_retry_at:
        facts.append(("next retry", f"{moment(seen.next_retry_at, now)} ({ago(seen.next_retry_at, now)})"))
    facts += _error_facts(seen, now)
    facts.append(("lease", _lease(seen, now)))
    facts.append(("next tick", seen.next_tick))
    facts.append(("spent today", _spent(seen)))
    if seen.counts:
        shown = ", ".join(f"{n} {status}" for status, n in seen.counts.items() if n)
        facts.append(("runs", shown or "none yet"))
    if seen.dead_letters:
        facts.append(("dead letters", f"{seen.dead_letters} (see: dead-letters list)"))
    return facts


def _error_facts(seen: Overview, now: datetime) -> list[tuple[str, str | Cell]]:
    error = seen.doc.error
    if not error or not seen.generation_id:
        return []
    when = error.at
    told = f"{code_of(error.code)}: {error.message}"
    facts: list[tuple[str, str | Cell]] = [
        ("last error", Cell(one_line(told, 400) + (f" ({ago(when, now)})" if when else ""), Tone.WARN))
    ]
    return facts


def _lease(seen: Overview, now: datetime) -> str:
    holder = seen.holder
    if not holder:
        return "free: nobody is at work"
    since = f" since {moment(holder.since, now)} ({ago(holder.since, now)})" if holder.since else ""
    until = f"; free at {moment(holder.until, now)} unless renewed" if holder.until else ""
    return f"held by {holder.owner}{since}{until}"


def _spent(seen: Overview) -> str:
    """What the pipeline has spent, and what is spent of the caps."""
    today, sums = seen.today, seen.sums
    if today is None or sums is None:
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


# --- many -----------------------------------------------------------------------------------------------------------


def _many(seen: Sequence[Overview], desk: CommandContext, now: datetime) -> list[Block]:
    columns = 6 if any(it.dead_letters for it in seen) else 5
    rows = [_row(it, desk, now)[:columns] for it in seen]
    needing = [it for it in seen if it.needs]
    busy = sum(it.generation_id is not None for it in seen)
    held = sum(it.holder is not None for it in seen)
    blocks: list[Block] = [
        Heading(f"{len(seen)} channels: {busy} with a generation under way, {held} at work now, "
                f"{len(needing)} need{'s' * (len(needing) == 1)} a person"),
        Table(("channel", "generation", "step", "stands", "last error", "dead letters")[:columns], rows),
    ]  # fmt: skip
    day = next((it.today for it in seen if it.today), None)
    if day and (day.limits.bucket_usd is not None or day.doubt):
        of = f" of {usd(day.limits.bucket_usd)}" if day.limits.bucket_usd is not None else ""
        doubt = f"; {day.doubt}" if day.doubt else ""
        blocks.append(Line(f"spent today by all channels: {day.book.spent:.3f}{of}{doubt}"))
    if needing:
        blocks.append(Heading("A person is needed"))
        blocks += [Line(f"{it.channel}: {need}", Tone.BAD) for it in needing for need in it.needs]
    return blocks


def _row(seen: Overview, desk: CommandContext, now: datetime) -> list[str | Cell]:
    doc = seen.doc
    stands = _stands(seen, now)
    step = present(doc, desk.settings.workflow).short
    return [
        Cell(seen.channel or "", stands.tone if stands.tone is not Tone.FAINT else Tone.PLAIN),
        seen.generation_id or "",
        step if seen.generation_id else "",
        stands,
        code_of(doc.error.code) if seen.generation_id else "",
        str(seen.dead_letters or ""),
    ]


def _stands(seen: Overview, now: datetime) -> Cell:
    """How a pipeline stands, in a few words."""
    if not seen.documents:
        return Cell("unreadable", Tone.BAD)
    if seen.needs:
        return Cell("needs a person", Tone.BAD)
    if seen.holder:
        return Cell("at work", Tone.GOOD)
    if seen.generation_id is None:
        return Cell("idle", Tone.FAINT)
    if seen.doc.status in FAILED_STEP:
        due = seen.next_retry_at
        return Cell(f"failed, again {ago(due, now)}" if due and due > now else "failed", Tone.WARN)
    if seen.waiting:
        since = f", {span((now - seen.waiting.since).total_seconds())}" if seen.waiting.since else ""
        return Cell(f"waits for {seen.waiting.whom}{since}")
    return Cell("rests" if seen.action and seen.action.act is Act.WAIT else "goes on")
