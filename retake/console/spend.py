"""`python -m retake spend`: what was paid, by day, by step and by generation."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import click

from retake.bucket import Bucket, NotFound
from retake.console import consent
from retake.console.answer import Answer, Block, Cell, Heading, Line, Table, Tone
from retake.console.command_context import CommandContext, Pipeline, console_command
from retake.console.day import as_seen_by, caps_of, the_day
from retake.errors import StateError
from retake.operations.evidence import total_usd, unsure
from retake.operations.words import count, read_moment, usd
from retake.paid.caps import Today
from retake.story.generation import DEAD_LETTERS, SPEND
from retake.story.operator_rules import Refusal

SHOWN = 20
"""How many generations are told one by one; JSON has all of them."""

UNDER_WAY = "under way"
NOBODYS = "nobody's"
"""The outcome of paid work that belonged to no generation any more."""


class Bill(NamedTuple):
    """What a generation has cost."""

    channel: str | None
    generation_id: str
    outcome: str  # «done», «failed», «cancelled», UNDER_WAY, NOBODYS
    calls: list[dict[str, Any]]


@console_command("spend")
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    metavar="N",
    default=30,
    show_default=True,
    help="How many days to look back.",
)
@click.option(
    "--latest-day",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="YYYY-MM-DD",
    help="Count what is on record of later days on this one, where a clock was once ahead.",
)
@consent.option
def command(desk: CommandContext, days: int = 30, latest_day: datetime | None = None, yes: bool = False) -> Answer:
    """What was paid: by day, step and generation, with calls that may have been paid for twice; what is left of today's
    caps. Days are days in UTC, and a call counts on the day on which it was asked.

    No call counts on a day before the latest on record. Where a clock was once far ahead, --latest-day corrects that.
    """
    if latest_day:
        return _corrected(desk, latest_day.strftime("%Y-%m-%d"), yes=yes)
    first = (desk.clock.now().astimezone(UTC) - timedelta(days=days - 1)).strftime("%Y-%m-%d")
    bills, today = look(desk, first)
    document = _document(bills, today, desk, first)
    return Answer(document, _blocks(document, len(desk.pipelines) > 1))


def _corrected(desk: CommandContext, day: str, *, yes: bool) -> Answer:
    """Make `day` the latest on record. Raises Refusal."""
    caps = caps_of(desk)
    later, clock_day = caps.later(day), caps.clock_day()
    if day > clock_day:
        raise Refusal(f"{day} has not come: the clock says {clock_day}. Set the clock first if that is wrong")
    if not later:
        raise Refusal(f"no day after {day} is on record: there is nothing to correct")
    sums = ", ".join(f"{book.day}: {usd(book.spent)}" for book in later)
    consent.obtain(f"this counts what is on record of later days ({sums}) on {day}", yes=yes)
    caps.correct(day)
    what = f"{day} is the latest day on record, and counts what was on later ones ({sums})"
    then = f"the next payment counts on {max(day, clock_day)}"
    days = [{"day": book.day, "usd": book.spent} for book in later]
    document = {"done": "latest-day", "day": day, "moved": days, "what": what, "next": then}
    return Answer(document, [Line(f"Done: {what}.", Tone.GOOD), Line(f"{then[0].upper()}{then[1:]}.")])


def look(desk: CommandContext, first_day: str) -> tuple[list[Bill], list[Today]]:
    """The bills with calls since that day, cut to these, and the day as each pipeline sees it. Raises StateError,
    StorageError."""
    today = the_day(desk)

    def one(pipeline: Pipeline) -> tuple[list[Bill], Today]:
        return _pipeline(desk, pipeline, first_day, today)

    with ThreadPoolExecutor(desk.settings.workflow.channel_concurrency) as pool:
        found = list(pool.map(one, desk.pipelines))
    return [bill for bills, _ in found for bill in bills], [today for _, today in found]


def _pipeline(desk: CommandContext, pipeline: Pipeline, first_day: str, today: Today) -> tuple[list[Bill], Today]:
    documents = desk.store(pipeline).read()
    doc, present = documents.midjourney, documents.gen.generation_id
    bills = {it.generation_id: it for it in _ended(pipeline, first_day)}
    if present and doc.paid_calls:  # a generation that was taken up again has its old calls in its document too
        bills[present] = Bill(pipeline.channel, present, UNDER_WAY, doc.paid_calls)
    cut = (bill._replace(calls=[call for call in bill.calls if day_of(call) >= first_day]) for bill in bills.values())
    return [bill for bill in cut if bill.calls], as_seen_by(today, pipeline.name, doc)


def day_of(call: Mapping[str, Any]) -> str:
    """The day (UTC) on which the call counts: that on which it was asked, or the latest on record by then; "" where the
    record does not say."""
    if isinstance(counted := call.get("counted_on"), str):
        return counted
    asked = read_moment(call.get("requested_at_utc"))
    return asked.strftime("%Y-%m-%d") if asked else ""


def _ended(pipeline: Pipeline, first_day: str) -> Iterator[Bill]:
    """A spend document is written when its generation ends, so one that is older has no call of these days."""
    since = datetime.fromisoformat(f"{first_day}T00:00:00+00:00").timestamp() - 3600  # clocks may differ a little
    for entry in pipeline.bucket.list(SPEND):
        if entry.modified >= since and entry.key.endswith(".json"):
            value = _object(pipeline.bucket, entry.key)
            name = entry.key.removeprefix(SPEND).removesuffix(".json")
            yield Bill(pipeline.channel, name, str(value.get("outcome") or ""), _calls(value))
    for entry in pipeline.bucket.list(f"{DEAD_LETTERS}before-"):
        if entry.modified >= since and entry.key.endswith(".json"):
            name = entry.key.removeprefix(DEAD_LETTERS).partition("/")[0]
            yield Bill(pipeline.channel, name, NOBODYS, _calls(_object(pipeline.bucket, entry.key)))


def _object(bucket: Bucket, key: str) -> dict[str, Any]:
    try:
        value = json.loads(bucket.read(key)[0])
    except NotFound:
        return {}
    except (ValueError, RecursionError) as error:
        raise StateError(f"{key}: not JSON ({error}); mend it or remove it") from error
    return value if isinstance(value, dict) else {}


def _calls(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls = value.get("paid_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


# --- sums -----------------------------------------------------------------------------------------------------------


def _sum(calls: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    calls = list(calls)
    doubtful = unsure(calls)
    duplicates = [call for call in calls if call.get("possible_duplicate")]
    return {
        "calls": len(calls),
        "usd": total_usd(calls),
        "unsure_calls": len(doubtful),
        "unsure_usd": total_usd(doubtful),
        "possible_duplicates": len(duplicates),
    }


def _document(bills: list[Bill], today: list[Today], desk: CommandContext, first: str) -> dict[str, Any]:
    calls = [call for bill in bills for call in bill.calls]
    days: dict[str, list[Mapping[str, Any]]] = {}
    steps: dict[str, list[Mapping[str, Any]]] = {}
    for call in calls:
        days.setdefault(day_of(call), []).append(call)
        steps.setdefault(str(call.get("step") or ""), []).append(call)
    newest = sorted(bills, key=lambda bill: (max(map(day_of, bill.calls)), bill.generation_id), reverse=True)
    return {
        "since": first,
        "total": _sum(calls),
        "today": _day_document([it.channel for it in desk.pipelines], today),
        "by_day": [{"day": day, **_sum(days[day])} for day in sorted(days, reverse=True)],
        "by_step": [{"step": step, **_sum(found)} for step, found in sorted(steps.items())],
        "by_generation": [
            {"channel": it.channel, "generation_id": it.generation_id, "outcome": it.outcome, **_sum(it.calls)}
            for it in newest
        ],
    }


def _day_document(channels: list[str | None], today: list[Today]) -> dict[str, Any]:
    day = today[0]
    cap, spent = day.limits.bucket_usd, day.book.spent
    return {
        "day": day.day,
        "clock_day": day.clock_day,
        "cap_usd": cap,
        "channel_cap_usd": day.limits.pipeline_usd,
        "spent_usd": spent,  # by all channels
        "left_usd": None if cap is None else max(0.0, round(cap - spent, 6)),
        "doubt": day.doubt or None,
        "pipelines": [
            {
                "channel": channel,
                "settled_usd": it.sums.settled,
                "reserved_usd": it.sums.reserved,
                "left_usd": it.left,
            }
            for channel, it in zip(channels, today, strict=True)
        ],
    }


# --- the view -------------------------------------------------------------------------------------------------------


def _blocks(document: Mapping[str, Any], many: bool) -> list[Block]:
    total = document["total"]
    blocks: list[Block] = [
        Heading(f"Paid since {document['since']}: {usd(total['usd'])} for {count(total['calls'], 'call')}"),
        Line(_today(document["today"])),
    ]
    if document["today"]["doubt"]:
        blocks.append(Line(f"today's calls are {document['today']['doubt']}", Tone.WARN))
    if total["unsure_calls"]:
        blocks.append(Line(_unsure(total), Tone.WARN))
    if total["calls"]:
        blocks += [
            Heading("By day"), _table("day", document["by_day"], {}),
            Heading("By step"), _table("step", document["by_step"], {}),
            Heading("By generation"), _by_generation(document["by_generation"], many),
        ]  # fmt: skip
        more = len(document["by_generation"]) - SHOWN
        if more > 0:
            blocks.append(Line(f"and {more} more; --json has all of them", Tone.FAINT))
    return blocks


def _unsure(total: Mapping[str, Any]) -> str:
    duplicates = total["possible_duplicates"]
    others = total["unsure_calls"] - duplicates
    parts = [count(duplicates, "possible duplicate")] if duplicates else []
    parts += [f"{count(others, 'call')} with an answer that got lost or was of no use"] if others else []
    return f"{usd(total['unsure_usd'])} of it may have been paid for in vain: {', '.join(parts)}"


def _today(today: Mapping[str, Any]) -> str:
    settled = round(sum(it["settled_usd"] for it in today["pipelines"]), 6)
    reserved = round(sum(it["reserved_usd"] for it in today["pipelines"]), 6)
    spent = f"Today ({today['day']}): {usd(settled)} settled, {usd(reserved)} reserved"
    cap, own_cap, pipelines = today["cap_usd"], today["channel_cap_usd"], today["pipelines"]
    if cap is None and own_cap is None:
        return f"{spent}; there is no daily cap"
    parts = [spent] if cap is None else [spent, f"{today['left_usd']:.3f} left of the cap of {usd(cap)}"]
    if own_cap is not None and len(pipelines) == 1:
        parts.append(f"{pipelines[0]['left_usd']:.3f} left for this channel, whose cap is {usd(own_cap)}")
    elif own_cap is not None:
        out = sum(not it["left_usd"] for it in pipelines)
        parts.append(f"each channel has a cap of {usd(own_cap)}, {out} have nothing left")
    return "; ".join(parts)


def _by_generation(rows: list[dict[str, Any]], many: bool) -> Table:
    shown = [{**row, "channel": row["channel"] or ""} for row in rows[:SHOWN]]
    return _table("generation_id", shown, {**({"channel": "channel"} if many else {}), "outcome": "outcome"})


def _table(first: str, rows: Sequence[Mapping[str, Any]], more: Mapping[str, str]) -> Table:
    doubtful = any(row["unsure_calls"] for row in rows)
    sums = ("calls", "USD", *(("unsure", "unsure USD") if doubtful else ()))
    shown: list[list[str | Cell]] = []
    for row in rows:
        cells: list[str | Cell] = [str(row[first]), *(str(row[name]) for name in more)]
        cells += [str(row["calls"]), f"{row['usd']:.3f}"]
        if doubtful:
            told = (str(row["unsure_calls"]), f"{row['unsure_usd']:.3f}") if row["unsure_calls"] else ("", "")
            cells += [Cell(text, Tone.WARN) for text in told]
        shown.append(cells)
    return Table((first.removesuffix("_id"), *more.values(), *sums), shown, sums)
