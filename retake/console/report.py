"""`python -m retake report RUN`: the incident report of a run, as Markdown (seed 003, «Артефакты»)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import click

from retake.clock import stamp
from retake.console import markdown
from retake.console.answer import Answer, Markdown, Raw
from retake.console.command_context import CommandContext, console_command
from retake.console.markdown import code, section, table, text
from retake.console.show import at_attempt, gather
from retake.operations.attempts import TAKEN_UP, Attempt, times_taken_up
from retake.operations.evidence import Evidence, total_usd, unsure
from retake.operations.incident import TARGET_S, Incident, incident
from retake.operations.incident import as_document as outage_document
from retake.operations.lookup import Found, find
from retake.operations.recommendations import recommendations
from retake.operations.status import run_document
from retake.operations.timeline import Moment, as_document, timeline
from retake.operations.words import count, span, usd
from retake.runs.states import FINAL, RunStatus
from retake.story.documents import UNKNOWN

LAST_RUNS = 50
"""How many other runs are looked at for a pattern."""


class Report(NamedTuple):
    """Everything that the report tells."""

    found: Found
    incident: Incident
    moments: Sequence[Moment]
    known: Evidence
    advice: Sequence[str]
    now: datetime
    now_at: Attempt | None  # of the generation under way


@console_command("report")
@click.argument("run", metavar="RUN")
@click.option("--markdown", "as_markdown", is_flag=True, help="Markdown on a terminal too, not rendered.")
def command(desk: CommandContext, run: str, as_markdown: bool = False) -> Answer:
    """The incident report of a run, as Markdown: what happened and how bad it was, timeline, cause, time to recovery,
    actions taken, what was paid in vain, recommendations.

    RUN is the id of a run or of a generation, or the beginning of one.
    """
    report = made(desk, run)
    words = "\n".join(lines(report))
    return Answer(document(report), [Raw(words) if as_markdown else Markdown(words)])


def made(desk: CommandContext, run: str) -> Report:
    """Raises RunError for a run that is not there."""
    found = find(desk, run)
    moments = timeline(event for it in found.runs for event in found.ledger.events(it.run_id))
    what, known = incident(found.runs, moments, desk.clock.now()), gather(desk, found)
    asked = desk.settings.workflow.on_unknown_outcome
    advice = recommendations(what, known.calls, _others(found), asked, held=_held(found, known))
    return Report(found, what, moments, known, advice, desk.clock.now(), at_attempt(desk, known))


def _held(found: Found, known: Evidence) -> str:
    """What a person has to decide about a paid call that is held; "" if none is."""
    pending = known.doc.pending if known.doc else None
    if pending is None or pending.outcome != UNKNOWN:
        return ""
    name = found.generation_id
    return (
        f"Nobody can tell whether the {pending.step} call was carried out: look at the vendor's account, then "
        f"`retry {name}` (it is made again) or `skip {name}`"
    )


def _others(found: Found) -> Mapping[str, int]:
    """In how many of the last other runs of the pipeline each code was the last error."""
    own = {run.run_id for run in found.runs}
    last = found.ledger.runs(status=FINAL, pipeline=found.runs[-1].pipeline, limit=LAST_RUNS)
    return Counter(run.error_code for run in last if run.error_code and run.run_id not in own)


# --- as data --------------------------------------------------------------------------------------------------------


def document(report: Report) -> dict[str, Any]:
    """The report as JSON has it."""
    it, calls = report.incident, report.known.calls
    doubtful = unsure(calls)
    return {
        "task_id": report.found.task_id,
        "runs": [run_document(run) for run in report.found.runs],
        **(report.now_at.document() if report.now_at else {"step": None, "step_attempt": None, "max_attempts": None}),
        "summary": summary(report),
        "recovered": it.recovered,
        "first_trouble": stamp(it.first_trouble) if it.first_trouble else None,
        "failed_step": it.step,
        "cause": dict(it.cause.error) if it.cause and it.cause.error else None,
        "failures": len(it.failures),
        "failures_by_code": dict(it.codes),
        "interruptions": len(it.interruptions),
        "outages": [outage_document(outage, it.until) for outage in it.outages],
        "mttr_s": it.mttr_s,
        "mttr_at_least": it.mttr_at_least,
        "mttr_target_s": TARGET_S,
        "actions": [{"who": who, "what": what, "times": times} for who, what, times in it.actions],
        "paid_usd": total_usd(calls),
        "paid_calls": calls,
        "unsure_usd": total_usd(doubtful),
        "unsure_calls": [dict(call) for call in doubtful],
        "files": [{"key": entry.key, "size": entry.size} for entry in report.known.files],
        "recommendations": list(report.advice),
        "timeline": [as_document(moment, it.began) for moment in report.moments],
    }


def summary(report: Report) -> str:
    """What happened and how bad it was, in a sentence or two."""
    it = report.incident
    if not it.happened:
        return f"Nothing went wrong: the run is {it.run.status}." if it.run.ended else "Nothing has gone wrong so far."
    steps = Counter(failure.step or "no step" for failure in it.failures)
    where = ", ".join(f"{step} {times}" for step, times in steps.items())
    trouble = count(len(it.failures), "failure") + (
        f" ({where})" if len(steps) > 1 else f" at {where.split()[0]}" if where else ""
    )
    lost = "time, and perhaps money," if unsure(report.known.calls) else "only time"
    gone = f", {count(len(it.interruptions), 'interruption')}" if it.interruptions else ""
    ends = {
        RunStatus.SUCCEEDED: f"It recovered: the result is there, {lost} was lost.",
        RunStatus.FAILED: "It did not recover: the run failed for good. What it had made is kept as a dead letter.",
        RunStatus.CANCELLED: "It was cancelled: somebody did not want it any more.",
    }
    return f"{trouble}{gone}. {ends.get(it.run.status, f'It is not over: the run is {it.run.status}.')}"


# --- as Markdown ----------------------------------------------------------------------------------------------------


def lines(report: Report) -> list[str]:
    """The lines of the report."""
    task = text(report.found.task_id)
    parts = [
        [f"# Incident report: {text(report.incident.run.pipeline or 'run')} {task}", ""],
        _head(report),
        section("Timeline", _timeline(report)),
        section("Cause", _cause(report.incident)),
        section("Time to recovery", _recovery(report.incident)),
        section("Actions taken", _actions(report.incident)),
        section("Paid", _paid(report.known.calls)),
        section("Recommendations", _recommended(report.advice)),
        [f"Made by `python -m retake report` at {stamp(report.now)}. All times are UTC."],
    ]
    return [line for part in parts for line in part]


def _head(report: Report) -> list[str]:
    it, calls = report.incident, report.known.calls
    end = it.run.updated_at if it.run.ended else report.now
    trouble = it.first_trouble
    rows = [
        ("What", text(summary(report))),
        ("Run", ", ".join(code(run.run_id) for run in report.found.runs)),
        ("Status", _status(report)),
        ("Began", stamp(it.began)),
        ("First trouble", stamp(trouble) if trouble else "none"),
        ("Ended" if it.run.ended else "Seen", f"{stamp(end)}, after {span((end - it.began).total_seconds())}"),
        ("Failed step", text(it.step or "none")),
        ("Cost", _cost(calls)),
    ]
    return [*table(("", ""), [(f"**{name}**", told) for name, told in rows]), ""]


def _status(report: Report) -> str:
    run = report.incident.run
    step = [text(report.now_at.words)] if report.now_at else []
    return "; ".join([str(run.status), *step, f"{TAKEN_UP} {times_taken_up(run)}"])


def _cost(calls: Sequence[Mapping[str, Any]]) -> str:
    doubtful = unsure(calls)
    vain = f", of it {usd(total_usd(doubtful))} in vain or twice, perhaps" if doubtful else ""
    return f"{usd(total_usd(calls))} for {count(len(calls), 'paid call')}{vain}"


def _timeline(report: Report) -> list[str]:
    rows = [
        (
            stamp(it.at),
            f"+{span((it.at - report.incident.began).total_seconds())}",
            text(it.actor),
            str(it.step_attempt or ""),
            text(f"{it.told}. {it.failure}" if it.failure else it.told),
        )
        for it in report.moments
    ]
    return table(("When", "Since start", "Who", "Attempt", "What"), rows)


def _cause(it: Incident) -> list[str]:
    if it.cause is None or it.cause.error is None:
        if it.interruptions:
            return [f"Whoever worked on it was gone at {stamp(it.interruptions[0].at)}; no step itself failed."]
        return ["No failure is on record."]
    error = it.cause.error
    said = [
        f"{_which(it)} of {text(it.step or 'the run')}, at {stamp(it.cause.at)}:",
        "",
        f"- class {text(error.get('error_class') or '?')}, code {code(error.get('error_code') or '?')}",
        f"- said: {code(error.get('message') or 'nothing')}",
    ]
    others = [f"{code(name)} × {number}" for name, number in it.codes.most_common()]
    return [*said, f"- all failures of the run, by code: {', '.join(others)}"]


def _which(it: Incident) -> str:
    return "The first failure of the kind that ended it," if it.run.status is RunStatus.FAILED else "The first failure"


def _recovery(it: Incident) -> list[str]:
    if not it.outages:
        return ["No step failed."]
    rows = []
    for outage in it.outages:
        took = f"not recovered in {span(outage.lasted_s(it.until))}" if outage.seconds is None else span(outage.seconds)
        late = outage.seconds is not None and outage.seconds > TARGET_S
        rows.append(
            (text(outage.step), stamp(outage.began), str(outage.failures), f"{took}{', too long' if late else ''}")
        )
    mean, still = it.mttr_s, ", ".join(text(outage.step) for outage in it.outages if outage.ended is None)
    told = "nothing recovered" if mean is None else f"{span(mean)} on average"
    if mean is not None and still:
        told = f"at least {told}, as {still} did not recover"
    return [*table(("Step", "First failure", "Failures", "Worked again after"), rows), "",
            f"Mean time to recovery: {told}; the target is less than {span(TARGET_S)}."]  # fmt: skip


def _actions(it: Incident) -> list[str]:
    told = [f"- {text(who)}: {text(what)}" + (f" (× {times})" if times > 1 else "") for who, what, times in it.actions]
    return told or ["None: nothing had to be done."]


def _paid(calls: Sequence[Mapping[str, Any]]) -> list[str]:
    if not calls:
        return ["Nothing is on record."]
    doubtful = unsure(calls)
    if not doubtful:
        return [f"{_cost(calls)}. None of them was in vain."]
    rows = [
        (
            text(call.get("requested_at_utc") or ""),
            text(call.get("step") or ""),
            text(call.get("outcome") or ""),
            "yes" if call.get("possible_duplicate") else "no",
            f"{total_usd([call]):.3f}",
        )
        for call in doubtful
    ]
    return [f"{_cost(calls)}:", "", *table(("Asked", "Step", "Outcome", "Possible duplicate", "USD"), rows)]


def _recommended(advice: Sequence[str]) -> list[str]:
    return [f"- {text(it)}" for it in advice] or ["None: what there is did its work."]


__all__ = ["command", "document", "lines", "made", "markdown"]
