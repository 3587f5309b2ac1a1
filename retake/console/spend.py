"""`retake spend`: what was paid, by day, by step and by generation."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import click

from retake.console import consent
from retake.console.answer import Answer, Block, Cell, Heading, Sentence, Table, Tone, done_lines
from retake.console.command_context import CommandContext
from retake.console.invocation import console_command
from retake.console.since import read_day
from retake.exit_codes import ExitCode
from retake.operations.spend import as_document, plan_latest_day, spend_report
from retake.operations.words import usd
from retake.plural import count

MAX_SHOWN = 20
"""Maximum number of generations shown; JSON has all of them."""


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
    callback=read_day,
    metavar="YYYY-MM-DD",
    help="Count what is on record for later days on this one, after a clock was ahead.",
)
@consent.option
def command(context: CommandContext, days: int = 30, latest_day: date | None = None, yes: bool = False) -> Answer:
    """Show what was paid: by day, step and generation, with calls that may have been paid for twice; what is left of
    today's caps. Days are in UTC, and a call counts on the day on which it was requested.

    No call counts on a day before the latest on record. After a clock was far ahead, --latest-day corrects that.
    """
    if latest_day:
        return _correct(context, latest_day, yes=yes)
    report = spend_report(context.operations, days)
    document = as_document(report, MAX_SHOWN if context.as_text else None)
    exit_code = ExitCode.BAD_STATE if report.unreadable else ExitCode.OK
    return Answer(document, _blocks(document, report.number), exit_code)


def _correct(context: CommandContext, latest_day: date, *, yes: bool) -> Answer:
    """Make `latest_day` the latest on record. Raises Refusal."""
    plan = plan_latest_day(context.operations, latest_day)
    consent.obtain(f"this counts what is on record of later days ({plan.sums}) on {plan.day}", yes=yes)
    context.operations.caps.correct(plan.day)
    document = plan.document()
    return Answer(document, done_lines(document["what"], document["next"]))


def _blocks(document: Mapping[str, Any], generations: int) -> list[Block]:
    total, many = document["total"], any(row["channel"] for row in document["today"]["pipelines"])
    blocks: list[Block] = [
        Heading(f"Paid since {document['since']}: {usd(total['usd'])} for {count(total['calls'], 'call')}"),
        *(Sentence(text, Tone.BAD) for text in document["unreadable"]),
        Sentence(_today(document["today"])),
        *(Sentence(_own_day(it)) for it in document["today"]["pipelines"] if "pipeline" in it),
    ]
    if document["today"]["doubt"]:
        blocks.append(Sentence(f"today's calls are {document['today']['doubt']}", Tone.WARN))
    if total["unsure_calls"]:
        blocks.append(Sentence(_unsure(total), Tone.WARN))
    if total["calls"]:
        blocks += [
            Heading("By day"), _table("day", document["by_day"], {}),
            Heading("By step"), _table("step", document["by_step"], {}),
            Heading("By generation"), _by_generation(document["by_generation"], many),
        ]  # fmt: skip
        if (more := generations - MAX_SHOWN) > 0:
            blocks.append(Sentence(f"and {more} more; --json has all of them", Tone.FAINT))
    return blocks


def _unsure(total: Mapping[str, Any]) -> str:
    duplicates = total["possible_duplicates"]
    others = total["unsure_calls"] - duplicates
    parts = [count(duplicates, "possible duplicate")] if duplicates else []
    parts += [f"{count(others, 'call')} with an answer that got lost or was of no use"] if others else []
    return f"{usd(total['unsure_usd'])} of it may have been paid for in vain: {', '.join(parts)}"


def _own_day(it: Mapping[str, Any]) -> str:
    """Return a sentence about the day of a pipeline that keeps its own book."""
    spent = f"{it['pipeline']} today: {usd(it['settled_usd'])} settled, {usd(it['reserved_usd'])} reserved"
    cap = it["cap_usd"]
    return f"{spent}; " + (
        "it has no daily cap" if cap is None else f"{it['left_usd']:.3f} left of its cap of {usd(cap)}"
    )


def _today(today: Mapping[str, Any]) -> str:
    pipelines = [it for it in today["pipelines"] if "pipeline" not in it]
    settled = round(sum(it["settled_usd"] for it in pipelines), 6)
    reserved = round(sum(it["reserved_usd"] for it in pipelines), 6)
    spent = f"Today ({today['day']}): {usd(settled)} settled, {usd(reserved)} reserved"
    cap, own_cap = today["cap_usd"], today["channel_cap_usd"]
    if cap is None and own_cap is None:
        return f"{spent}; there is no daily cap"
    left = "" if cap is None else f"{today['left_usd']:.3f} left of the cap of {usd(cap)}"
    if left and today["spent_usd"] > round(settled + reserved, 6):
        left += f", of which others have spent {usd(today['spent_usd'] - settled - reserved)}"
    parts = [spent, left] if left else [spent]
    if own_cap is not None and len(pipelines) == 1:
        parts.append(f"{pipelines[0]['left_usd']:.3f} left for this channel, whose cap is {usd(own_cap)}")
    elif own_cap is not None:
        out = sum(not it["left_usd"] for it in pipelines)
        parts.append(f"each channel has a cap of {usd(own_cap)}, {out} have nothing left")
    return "; ".join(parts)


def _by_generation(rows: list[dict[str, Any]], many: bool) -> Table:
    shown = [{**row, "channel": row["channel"] or ""} for row in rows[:MAX_SHOWN]]
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
