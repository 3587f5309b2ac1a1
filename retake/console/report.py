"""`retake report RUN`: the incident report of a run, as Markdown."""

from collections.abc import Sequence

import click

from retake.clock import stamp
from retake.console.answer import Answer, Markdown, Raw
from retake.console.command_context import CommandContext
from retake.console.invocation import console_command
from retake.console.markdown import code, section, sentence, table, text
from retake.operations.attempts import TAKEN_UP, times_taken_up
from retake.operations.bills import total_usd, unsure
from retake.operations.incident import TARGET_S, Incident
from retake.operations.report import Report, as_document, incident_report, summary
from retake.operations.words import span, usd
from retake.paid.bills import Call
from retake.plural import count
from retake.runs.states import RunStatus


@console_command("report")
@click.argument("run", metavar="RUN")
@click.option("--markdown", "as_markdown", is_flag=True, help="Markdown on a terminal too, not rendered.")
def command(context: CommandContext, run: str, as_markdown: bool = False) -> Answer:
    """Write the incident report of a run, as Markdown: what happened and how bad it was, timeline, cause, time to
    recovery, actions taken, what was paid in vain, recommendations.

    RUN is the id of a run or of a generation, or the beginning of one.
    """
    report = incident_report(context.operations, run)
    words = "\n".join(lines(report))
    return Answer(as_document(report), [Raw(words) if as_markdown else Markdown(words)])


def lines(report: Report) -> list[str]:
    """Return the lines of the report."""
    task = text(report.history.found.task_id)
    parts = [
        [f"# Incident report: {text(report.incident.run.pipeline or 'run')} {task}", ""],
        _head(report),
        section("Timeline", _timeline(report)),
        section("Cause", _cause(report.incident)),
        section("Time to recovery", _recovery(report.incident)),
        section("Actions taken", _actions(report.incident)),
        section("Paid", _paid(report.history.evidence.calls)),
        section("Recommendations", _recommendations(report.advice)),
        [f"Made by `python -m retake report` at {stamp(report.now)}. All times are UTC."],
    ]
    return [line for part in parts for line in part]


def _head(report: Report) -> list[str]:
    it, calls = report.incident, report.history.evidence.calls
    end = it.run.updated_at if it.run.ended else report.now
    trouble = it.first_trouble
    rows = [
        ("What", text(summary(report))),
        ("Run", ", ".join(code(run.run_id) for run in report.history.found.runs)),
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
    step = [text(at.words)] if (at := report.history.evidence.step) else []
    return "; ".join([str(run.status), *step, f"{TAKEN_UP} {times_taken_up(run)}"])


def _cost(calls: Sequence[Call]) -> str:
    doubtful = unsure(calls)
    vain = f", of which {usd(total_usd(doubtful))} may have been paid in vain or twice" if doubtful else ""
    return f"{usd(total_usd(calls))} for {count(len(calls), 'paid call')}{vain}"


def _timeline(report: Report) -> list[str]:
    rows = [
        (
            stamp(it.at),
            f"+{span((it.at - report.incident.began).total_seconds())}",
            text(it.actor),
            str(it.step_attempt or ""),
            text(f"{it.description}. {it.failure}" if it.failure else it.description),
        )
        for it in report.history.entries
    ]
    return table(("When", "Since start", "Who", "Attempt", "What"), rows)


def _cause(it: Incident) -> list[str]:
    if it.cause is None:
        if it.interruptions:
            return [f"Its worker was found to be gone at {stamp(it.interruptions[0].at)}; no step itself failed."]
        return ["No failure is on record."]
    error = it.cause.error
    said = [
        f"{_which(it)} of {text(it.step or 'the run')}, at {stamp(it.cause.at)}:",
        "",
        f"- class {text(error.error_class or '?')}, code {code(error.code or '?')}",
        f"- message: {code(error.message or 'nothing')}",
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
    told = "nothing recovered" if mean is None else span(mean)
    if mean is not None and still:
        told = f"at least {told}, as {still} did not recover"
    return [*table(("Step", "First failure", "Failures", "Recovered after"), rows), "",
            f"Mean time to recovery: {told}; the target is less than {span(TARGET_S)}."]  # fmt: skip


def _actions(it: Incident) -> list[str]:
    told = [f"- {text(who)}: {text(what)}" + (f" (× {times})" if times > 1 else "") for who, what, times in it.actions]
    return told or ["None: nothing had to be done."]


def _paid(calls: Sequence[Call]) -> list[str]:
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


def _recommendations(advice: Sequence[str]) -> list[str]:
    return [f"- {sentence(it)}" for it in advice] or ["None: the settings in place were enough."]
