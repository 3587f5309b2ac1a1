"""`python -m retake spend`: what was paid, by day, by step and by generation."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import click

from retake.bucket import Bucket, NotFound
from retake.clock import stamp
from retake.console.answer import Answer, Block, Cell, Heading, Line, Table, Tone
from retake.console.desk import Desk, Pipeline, console_command
from retake.console.evidence import total_usd, unsure
from retake.console.words import count, read_moment, usd
from retake.errors import StateError
from retake.story.generation import DEAD_LETTERS, SPEND

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


class Today(NamedTuple):
    """The day's counter of one pipeline, which the cap is held against."""

    channel: str | None
    settled_usd: float
    reserved_usd: float


@console_command("spend")
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    metavar="N",
    default=30,
    show_default=True,
    help="How many days to look back.",
)
def command(desk: Desk, days: int) -> Answer:
    """What was paid: by day, step and generation, with calls that may have been paid for twice; what is left of today's
    cap. Days are days in UTC, and a call counts on the day on which it was asked."""
    now = desk.clock.now()
    first = (now.astimezone(UTC) - timedelta(days=days - 1)).strftime("%Y-%m-%d")
    bills, today = look(desk, first)
    document = _document(bills, today, desk, now, first)
    return Answer(document, _blocks(document, len(desk.pipelines) > 1))


def look(desk: Desk, first_day: str) -> tuple[list[Bill], list[Today]]:
    """The bills with calls since that day, cut to these, and the day's counters. Raises StateError, StorageError."""

    def one(pipeline: Pipeline) -> tuple[list[Bill], Today]:
        return _pipeline(desk, pipeline, first_day)

    with ThreadPoolExecutor(desk.settings.workflow.channel_concurrency) as pool:
        found = list(pool.map(one, desk.pipelines))
    return [bill for bills, _ in found for bill in bills], [today for _, today in found]


def _pipeline(desk: Desk, pipeline: Pipeline, first_day: str) -> tuple[list[Bill], Today]:
    documents = desk.store(pipeline).read()
    doc, present = documents.midjourney, documents.gen.generation_id
    bills = {it.generation_id: it for it in _ended(pipeline, first_day)}
    if present and doc.paid_calls:  # a generation that was taken up again has its old calls in its document too
        bills[present] = Bill(pipeline.channel, present, UNDER_WAY, doc.paid_calls)
    counted = doc.spend.on(stamp(desk.clock.now())[:10])
    cut = (bill._replace(calls=[call for call in bill.calls if day_of(call) >= first_day]) for bill in bills.values())
    return [bill for bill in cut if bill.calls], Today(pipeline.channel, counted.settled, counted.reserved)


def day_of(call: Mapping[str, Any]) -> str:
    """The day (UTC) on which the call was asked; "" where the record does not say."""
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


def _document(bills: list[Bill], today: list[Today], desk: Desk, now: datetime, first: str) -> dict[str, Any]:
    calls = [call for bill in bills for call in bill.calls]
    days: dict[str, list[Mapping[str, Any]]] = {}
    steps: dict[str, list[Mapping[str, Any]]] = {}
    for call in calls:
        days.setdefault(day_of(call), []).append(call)
        steps.setdefault(str(call.get("step") or ""), []).append(call)
    cap = desk.settings.workflow.daily_cap_usd
    counters = [
        {
            "channel": it.channel,
            "settled_usd": it.settled_usd,
            "reserved_usd": it.reserved_usd,
            "left_usd": None if cap is None else max(0.0, round(cap - it.settled_usd - it.reserved_usd, 6)),
        }
        for it in today
    ]
    newest = sorted(bills, key=lambda bill: (max(map(day_of, bill.calls)), bill.generation_id), reverse=True)
    return {
        "since": first,
        "total": _sum(calls),
        "today": {"day": stamp(now)[:10], "cap_usd": cap, "pipelines": counters},
        "by_day": [{"day": day, **_sum(days[day])} for day in sorted(days, reverse=True)],
        "by_step": [{"step": step, **_sum(found)} for step, found in sorted(steps.items())],
        "by_generation": [
            {"channel": it.channel, "generation_id": it.generation_id, "outcome": it.outcome, **_sum(it.calls)}
            for it in newest
        ],
    }


# --- the view -------------------------------------------------------------------------------------------------------


def _blocks(document: Mapping[str, Any], many: bool) -> list[Block]:
    total = document["total"]
    blocks: list[Block] = [
        Heading(f"Paid since {document['since']}: {usd(total['usd'])} for {count(total['calls'], 'call')}"),
        Line(_today(document["today"])),
    ]
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
    if today["cap_usd"] is None:
        return f"{spent}; there is no daily cap"
    if len(today["pipelines"]) == 1:
        return f"{spent}; {today['pipelines'][0]['left_usd']:.3f} left of the cap of {usd(today['cap_usd'])}"
    out = sum(not it["left_usd"] for it in today["pipelines"])
    return f"{spent}; each channel has a cap of {usd(today['cap_usd'])}, {out} have used theirs up"


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
