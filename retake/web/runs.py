"""The list of runs, and the page of one run with everything that happened to it."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response

from retake.bucket import NotFound
from retake.errors import RetakeError, RunError, in_words
from retake.operations.attempts import StepAttempt
from retake.operations.bills import UNSURE
from retake.operations.orders import Target, is_of_item, plan_order
from retake.operations.port import Verb
from retake.operations.report import History, history
from retake.operations.run_pages import MAX_SEARCHED, RunsPage, runs_page
from retake.operations.timeline import TimelineEntry
from retake.operations.words import ago, code_of, one_line, read_moment
from retake.paid.bills import Call, amount_of
from retake.runs.listing import RunsWanted
from retake.runs.run import Run, UnknownRun
from retake.runs.states import RunStatus
from retake.web.desk import Desk, PageData, PageNumber, query_of, status_of

PAGE_SIZE = 50
MAX_ENTRIES = 400
"""Maximum number of timeline entries, paid calls and files shown on a page. The last entries and calls are shown."""

MAX_UNREADABLE = 20
"""Maximum number of unreadable runs that the list names."""

_MAX_DOCUMENT_BYTES = 1_000_000  # a larger document of a generation is not read for its topic

TONES: Mapping[str, str] = {
    RunStatus.SUCCEEDED: "good",
    RunStatus.FAILED: "bad",
    RunStatus.RETRY_SCHEDULED: "warn",
    RunStatus.INTERRUPTED: "warn",
}

_VERBS = ((Verb.RETRY, "Retry", ""), (Verb.SKIP, "Skip", ""), (Verb.CANCEL, "Cancel", "loses"))


def runs_routes(desk: Desk) -> APIRouter:
    """Return the routes /runs and /runs/ID."""
    router = APIRouter()

    @router.get("/runs")
    def runs(
        request: Request,
        page: PageNumber = 1,
        status: Annotated[list[RunStatus | str], Query(max_length=20)] = [],  # noqa: B006  never changed
        pipeline: Annotated[str, Query(max_length=300)] = "",
        q: Annotated[str, Query(max_length=300)] = "",
    ) -> Response:
        wanted = RunsWanted(_statuses(status), pipeline or None)
        text, listings = q.strip(), desk.runs()

        def read() -> PageData:
            found = runs_page(desk.operations, wanted, page, PAGE_SIZE, text, listings.found)
            return PageData(
                found.document(), list_view(found, wanted, text, [it.name for it in desk.operations.pipelines])
            )

        return desk.show(request, "runs.html", (page, wanted, text), read, listings)

    @router.get("/runs/{name:path}")
    def run(request: Request, name: str) -> Response:
        def read() -> PageData:
            try:
                past = history(desk.operations, name[:2100], desk.listings)
            except UnknownRun as unknown:
                return PageData({"error": str(unknown)}, status=404)
            except RunError as several:
                return PageData({"error": in_words(several)}, status=status_of(several))
            place = desk.operations.named_as(past.found.pipeline) or "-"
            return PageData(past.document(), run_view(past, () if desk.read_only else possible(past), place))

        return desk.show(request, "run.html", name, read)

    return router


def _statuses(given: Sequence[str]) -> frozenset[RunStatus]:
    """Return the requested states, all if none is given. Raises HTTPException (422) for an unknown one."""
    try:
        return frozenset(RunStatus(it) for it in given if it) or frozenset(RunStatus)
    except ValueError:
        raise HTTPException(422, f"status is one of: {', '.join(RunStatus)}") from None


def list_view(found: RunsPage, wanted: RunsWanted, text: str, pipelines: Sequence[str]) -> dict[str, Any]:
    """Return the values of the template of the list."""
    status = next(iter(wanted.statuses)).value if len(wanted.statuses) == 1 else ""
    every = len(wanted.statuses) == len(RunStatus)
    chosen: dict[str, str | Sequence[str]] = {"q": text, "status": [] if every else sorted(wanted.statuses)}
    return {
        "rows": [row_of(run, found.listed.steps.get(run.run_id)) for run in found.listed.runs],
        "at_page": found.at,
        "query": query_of({**chosen, "pipeline": wanted.pipeline or ""}),
        "q": text,
        "status": status,
        "statuses": [*RunStatus],
        "pipeline": wanted.pipeline or "",
        "pipelines": [*pipelines[:100]],
        "bounded": MAX_SEARCHED if found.bounded else 0,
        "unreadable": [one_line(it, 400) for it in found.listed.unreadable[:MAX_UNREADABLE]],
        "more": max(0, len(found.listed.unreadable) - MAX_UNREADABLE),
    }


def row_of(run: Run, at: StepAttempt | None) -> dict[str, Any]:
    """Return the values of a run's row."""
    return {
        "run_id": run.run_id,
        "task": one_line(run.task_id, 120),
        "pipeline": one_line(run.pipeline, 80),
        "status": run.status.value,
        "tone": TONES.get(run.status, "plain"),
        "more": at.short if at else "",  # when it is due again, and the attempt of its step
        "changed": run.updated_at,
        "error": one_line(code_of(run.error_code), 60),
    }


def run_view(past: History, verbs: Sequence[tuple[str, str, str]], place: str) -> dict[str, Any]:
    """Return the values of the template of a run. `verbs` are the buttons: verb, label, kind. `place` stands for its
    pipeline in the addresses of media."""
    last, calls = past.found.runs[-1], past.evidence.calls
    return {
        "heading": one_line(last.task_id, 200),
        "last": last,
        "tone_of_run": TONES.get(last.status, "plain"),
        "runs": past.found.runs[-20:],
        "step": past.evidence.step.words if past.evidence.step else "",
        "began": past.start,
        "took_s": (last.updated_at - past.start).total_seconds() if last.ended else None,
        "happened": [_entry_view(it, past.start) for it in past.entries[-MAX_ENTRIES:]],
        "left_out": max(0, len(past.entries) - MAX_ENTRIES),
        "calls": [_call_view(call) for call in calls[-MAX_ENTRIES:]],
        "files": past.evidence.files[:MAX_ENTRIES],
        "media": _media(past, place),
        "verbs": verbs,
        "fields": {"id": last.run_id, "channel": past.found.pipeline.channel or ""},
    }


def possible(past: History) -> list[tuple[str, str, str]]:
    """Return the buttons for the orders that the console would accept now: verb, label, kind."""
    found, last = past.found, past.found.runs[-1]
    meant = Target(found.pipeline, found.item_id if is_of_item(found) else None, last)
    shown = []
    for verb, label, kind in _VERBS:
        with suppress(RetakeError):
            plan_order(meant, verb)
            shown.append((verb.value, label, kind))
    return shown


def _entry_view(it: TimelineEntry, start: datetime) -> dict[str, Any]:
    tone = "bad" if it.status == RunStatus.FAILED else "warn" if it.error else "plain"
    tone = "good" if it.status == RunStatus.SUCCEEDED else tone
    due = it.next_retry_at if it.next_retry_at and it.next_retry_at > it.at else None
    return {
        "at": it.at,
        "since_s": (it.at - start).total_seconds(),
        "actor": one_line(it.actor, 60),
        "attempt": it.step_attempt or "",
        "what": one_line(it.description, 400) + (f", {ago(due, it.at)}" if due else ""),
        "failure": it.failure,
        "tone": tone,
    }


def _call_view(call: Call) -> dict[str, Any]:
    outcome, doubt = one_line(call.get("outcome") or "", 60), bool(call.get("possible_duplicate"))
    price = amount_of(call.get("price_usd"))
    return {
        "asked": read_moment(call.get("requested_at_utc")),
        "step": one_line(call.get("step") or "", 60),
        "attempt": one_line(call.get("attempt") or "", 20),
        "outcome": f"{outcome}, possible duplicate" if doubt else outcome,
        "doubtful": doubt or outcome in UNSURE,
        "task": one_line(call.get("task_id") or "", 60),
        "price": "" if price is None else f"{price:.3f}",
    }


def _media(past: History, place: str) -> dict[str, str]:
    """Return the addresses of the picture and the video, "" for the one that is missing, and their topic; {} if there
    are none."""
    names = {entry.key.rpartition("/")[2] for entry in past.evidence.files}
    item = past.found.item_id
    there = [suffix for suffix in ("png", "mp4") if f"{item}.{suffix}" in names]
    if not there:
        return {}
    address = f"/media/{quote(place, safe='')}/{quote(item, safe='')}"
    addresses = {suffix: f"{address}.{suffix}" if suffix in there else "" for suffix in ("png", "mp4")}
    return {**addresses, "topic": _topic(past) or f"the picture of {item}"}


def _topic(past: History) -> str:
    """Return the topic in the generation's document, or "" if it cannot be read."""
    for entry in past.evidence.files:
        if entry.key.endswith(f"/{past.found.item_id}.json") and entry.size <= _MAX_DOCUMENT_BYTES:
            with suppress(NotFound, ValueError, RecursionError):
                found = json.loads(past.found.pipeline.bucket.read(entry.key)[0])
                topic = found.get("topic") if isinstance(found, dict) else None
                return one_line(topic, 300) if isinstance(topic, str) else ""
    return ""
