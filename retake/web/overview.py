"""The first page: what needs a person, the state of each pipeline, today's spend, and open breakers."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import Response

from retake.operations.paging import paged
from retake.operations.status import PipelineStatus, StatusReport, day_of, told_by_all
from retake.operations.words import code_of, one_line, span, when_due
from retake.web.desk import Desk, PageData, PageNumber

PAGE_SIZE = 100


class ShownPipeline(NamedTuple):
    """The row of a pipeline: its state in a few words, and whether that is good or bad."""

    label: str
    channel: str
    item: str
    step: str
    attempt: str
    words: str
    tone: str  # good, warn, bad or plain: shown as a sign with its name, never by colour alone
    waits: str
    error: str
    next_tick: str
    dead_letters: int
    needs: tuple[str, ...]
    held: bool  # whether somebody holds its lease


def overview_routes(desk: Desk) -> APIRouter:
    """Return the route "/"."""
    router = APIRouter()

    @router.get("/")
    def overview(request: Request, page: PageNumber = 1, q: str = "") -> Response:
        sought = one_line(q)[:100]

        status = desk.status()

        def read() -> PageData:
            return PageData(status.found.document(), _more(status.found, page, sought))

        return desk.show(request, "overview.html", (page, sought), read, status)

    return router


def _more(found: StatusReport, page: int, sought: str) -> dict[str, Any]:
    shared = told_by_all([it.needs for it in found.pipelines])
    rows = [
        it._replace(needs=tuple(need for need in it.needs if need not in shared))
        for it in (standing(it, found.at) for it in found.pipelines)
    ]
    needing = [it for it in rows if it.needs]
    others = [it for it in rows if not it.needs and sought.lower() in f"{it.label} {it.item}".lower()]
    shown, pages = paged(others, page, PAGE_SIZE)
    return {
        "shared_needs": shared,
        "needing": needing[:PAGE_SIZE],
        "needing_more": max(0, len(needing) - PAGE_SIZE),
        "shown": shown,
        "pages_of": pages,
        "q": sought,
        "total": len(rows),
        "rest": len(rows) - len(needing),
        "breakers": found.breakers,
        "spend": _spend(found.pipelines),
        "letters": sum(it.dead_letters for it in found.pipelines),
        "notes": _shared_notes(found.pipelines),
    }


def standing(it: PipelineStatus, now: datetime) -> ShownPipeline:
    """Return the row of a pipeline."""
    state = it.state
    words, tone = _words(it)
    waits = ""
    if state.waiting:
        since = f", {span((now - state.waiting.since).total_seconds())}" if state.waiting.since else ""
        waits = f"{state.waiting.party}: {state.waiting.what}{since}"
    elif state.next_retry_at:
        waits = f"the next attempt, {when_due(state.next_retry_at, now)}"
    error = f"{code_of(state.error.code)}: {one_line(state.error.message, 160)}" if state.error.code else ""
    return ShownPipeline(
        label=it.label or "story",
        channel=it.channel or "",
        item=state.item_id or "",
        step=state.step.step if state.step else "",
        attempt=f"{state.step.number} of {state.step.max_attempts}" if state.step and state.step.number else "",
        words=words,
        tone=tone,
        waits=waits,
        error=error,
        next_tick=it.next_tick,
        dead_letters=it.dead_letters,
        needs=it.needs,
        held=it.holder is not None,
    )


def _words(it: PipelineStatus) -> tuple[str, str]:
    state = it.state
    if not state.readable:
        return "unreadable", "bad"
    if it.needs:
        return "needs a person", "bad"
    if it.holder:
        return "at work", "good"
    if state.failing:
        return "failed, to be retried", "warn"
    if state.item_id is None:
        return (state.words, "plain") if not it.leased else ("idle", "plain")
    return ("waits", "plain") if state.waiting or state.idle else ("continues", "good")


def _spend(seen: Sequence[PipelineStatus]) -> dict[str, Any] | None:
    today = day_of(seen)
    if today is None:
        return None
    cap = today.limits.bucket_usd
    return {"day": today.day, "spent": today.book.spent, "cap": cap, "doubt": today.doubt or ""}


def _shared_notes(seen: Sequence[PipelineStatus]) -> list[str]:
    """Return the notes, with each note that all pipelines share only once."""
    told: dict[str, None] = {}
    for it in seen[:PAGE_SIZE]:
        for note in it.notes:
            every = len(seen) == 1 or all(note in other.notes for other in seen)
            told[note if every else f"{it.label}: {note}"] = None
    return [*told][:50]
