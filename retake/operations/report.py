"""The incident report of a run as data (docs/protocol.md, section "Incident analysis")."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from retake.clock import stamp
from retake.operations import attempts, timeline
from retake.operations.bills import total_usd, unsure
from retake.operations.incident import TARGET_S, Incident, incident
from retake.operations.incident import as_document as outage_document
from retake.operations.lookup import Found, find
from retake.operations.pipelines import Listings, Operations, of_readable
from retake.operations.port import Evidence
from retake.operations.recommendations import recommendations
from retake.operations.status import run_document
from retake.operations.timeline import TimelineEntry
from retake.plural import count
from retake.runs.states import FINAL, RunStatus

MAX_OTHER_RUNS = 50
"""Maximum number of other runs searched for a pattern."""

_STANDS = {
    RunStatus.QUEUED: "is queued",
    RunStatus.RUNNING: "is running",
    RunStatus.RETRY_SCHEDULED: "waits for its retry",
    RunStatus.INTERRUPTED: "is interrupted",
    RunStatus.SUCCEEDED: "has succeeded",
    RunStatus.FAILED: "has failed",
    RunStatus.CANCELLED: "was cancelled",
}

NO_EVIDENCE = Evidence([], [])


class History(NamedTuple):
    """Everything on record about a run, or about all runs of an item."""

    found: Found
    entries: Sequence[TimelineEntry]
    evidence: Evidence

    @property
    def start(self) -> datetime:
        return self.entries[0].at if self.entries else self.found.runs[0].created_at

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        it = self.evidence
        return {
            "task_id": self.found.task_id,
            **attempts.as_document(it.step),
            "runs": [run_document(run) for run in self.found.runs],
            "timeline": [timeline.as_document(entry, self.start) for entry in self.entries],
            "files": [{"key": entry.key, "size": entry.size} for entry in it.files],
            "paid_calls": it.calls,
            "paid_usd": total_usd(it.calls),
            "where": self.found.pipeline.bucket.url,
        }


class Report(NamedTuple):
    """The content of an incident report."""

    history: History
    incident: Incident
    advice: Sequence[str]
    now: datetime


def history(operations: Operations, text: str, listings: Callable[[], Listings] | None = None) -> History:
    """Return everything on record about the run or item that `text` names, from the ledgers that can be read.
    `listings` is passed to `find`. Raises RunError, SettingsError, StateError, StorageError."""
    found, _ = of_readable(operations, lambda it: find(it, text, listings if it is operations else None))
    entries = timeline.timeline(event for it in found.runs for event in found.ledger.events(it.run_id))
    own = found.runs[-1].pipeline == found.pipeline.name
    return History(found, entries, found.pipeline.evidence(found.item_id) if own else NO_EVIDENCE)


def incident_report(operations: Operations, text: str) -> Report:
    """Return the report on the run or item that `text` names. Raises RunError."""
    past, now = history(operations, text), operations.clock.now()
    found, pipeline = past.found, past.found.pipeline
    what = incident(found.runs, past.entries, pipeline.recovered_by, now)
    advice = recommendations(what, past.evidence.calls, _others(found), pipeline, past.evidence.held)
    return Report(past, what, advice, now)


def _others(found: Found) -> Mapping[str, int]:
    """Count the other recent runs of the pipeline by the code of their last error."""
    own = {run.run_id for run in found.runs}
    last = found.ledger.runs(status=FINAL, pipeline=found.runs[-1].pipeline, limit=MAX_OTHER_RUNS)
    return Counter(run.error_code for run in last if run.error_code and run.run_id not in own)


def as_document(report: Report) -> dict[str, Any]:
    """Return the JSON document of the report."""
    it, known = report.incident, report.history.document()
    doubtful = unsure(known["paid_calls"])
    return {
        "task_id": known["task_id"],
        "runs": known["runs"],
        **attempts.as_document(report.history.evidence.step),
        "summary": summary(report),
        "recovered": it.recovered,
        "first_trouble": stamp(it.first_trouble) if it.first_trouble else None,
        "failed_step": it.step,
        "cause": (it.cause.error.raw or None) if it.cause else None,
        "failures": len(it.failures),
        "failures_by_code": dict(it.codes),
        "interruptions": len(it.interruptions),
        "outages": [outage_document(outage, it.until) for outage in it.outages],
        "mttr_s": it.mttr_s,
        "mttr_at_least": it.mttr_at_least,
        "mttr_target_s": TARGET_S,
        "actions": [{"who": who, "what": what, "times": times} for who, what, times in it.actions],
        "paid_usd": known["paid_usd"],
        "paid_calls": known["paid_calls"],
        "unsure_usd": total_usd(doubtful),
        "unsure_calls": [dict(call) for call in doubtful],
        "files": known["files"],
        "recommendations": list(report.advice),
        "timeline": [timeline.as_document(entry, it.began) for entry in report.history.entries],
    }


def summary(report: Report) -> str:
    """Return what happened and how bad it was, in a sentence or two."""
    it = report.incident
    stands = f"the run {_STANDS[it.run.status]}"
    if not it.happened:
        return f"Nothing went wrong: {stands}." if it.run.ended else "Nothing has gone wrong so far."
    steps = Counter(failure.step for failure in it.failures)
    where = ", ".join(f"{step or 'no step'} {times}" for step, times in steps.items())
    only = next(iter(steps), None)
    trouble = count(len(it.failures), "failure") + (f" ({where})" if len(steps) > 1 else f" at {only}" if only else "")
    lost = "time, and perhaps money, was" if unsure(report.history.evidence.calls) else "only time was"
    gone = f", {count(len(it.interruptions), 'interruption')}" if it.interruptions else ""
    kept = "kept as a dead letter" if report.history.found.pipeline.lease_name else "kept"
    ends = {
        RunStatus.SUCCEEDED: f"It recovered: there is a result; {lost} lost.",
        RunStatus.FAILED: f"It did not recover: the run failed for good. What it made is {kept}.",
        RunStatus.CANCELLED: "It was cancelled: it was no longer wanted.",
    }
    return f"{trouble}{gone}. {ends.get(it.run.status, f'It is not over: {stands}.')}"
