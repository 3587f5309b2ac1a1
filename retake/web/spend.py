"""The page of spend by day, step and generation, and of what is left of the cap."""

from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from retake.operations.spend import as_document, spend_report
from retake.operations.words import one_line
from retake.web.charts import Axis, bar_chart, round_up
from retake.web.desk import Desk, PageData
from retake.web.gate import wants_page

MAX_ROWS = 100
"""Maximum number of generations, steps and pipelines on the page; the JSON answer has them all."""


def spend_routes(desk: Desk) -> APIRouter:
    """Return the route /spend."""
    router = APIRouter()

    @router.get("/spend")
    def spend(request: Request, days: Annotated[int, Query(ge=1, le=3650)] = 30) -> Response:
        page = wants_page(request.scope)

        def read() -> PageData:
            report = spend_report(desk.operations, days)
            document = as_document(report, MAX_ROWS if page else None)
            return PageData(document, spend_view(document, days, report.number))

        return desk.show(request, "spend.html", (days, page), read)

    return router


def spend_view(document: Mapping[str, Any], days: int, generations: int) -> dict[str, Any]:
    """Return the values of the page's template. `document` is that of `spend`, with the newest of `generations`."""
    today = document["today"]
    paid = {row["day"]: row["usd"] for row in document["by_day"] if row["day"]}
    # Days after today are shown only if they have calls: a clock that was years ahead would leave no room for others.
    names = [*_days(document["since"], today["clock_day"]), *sorted(day for day in paid if day > today["clock_day"])]
    values = [paid.get(name, 0.0) for name in names]
    cap = today["cap_usd"]
    near = cap if cap is not None and values and max(values) > 0.2 * cap else None  # a far cap would flatten the bars
    axis = Axis(round_up(max([*values, near or 0.0])), " USD")
    return {
        "days": days,
        "total": document["total"],
        "today": today,
        "unreadable": [one_line(it, 400) for it in document["unreadable"][:MAX_ROWS]],
        "cap": cap,
        "drawing": bar_chart("Paid by day", names, values, axis, near),
        "by_day": document["by_day"][:400],
        "by_step": document["by_step"][:MAX_ROWS],
        "by_generation": document["by_generation"][:MAX_ROWS],
        "more": max(0, generations - MAX_ROWS),
        "pipelines": [*_pipelines(today)][:MAX_ROWS],
        "doubtful": bool(document["total"]["unsure_calls"]),
    }


def _pipelines(today: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the pipelines that have spent something, and those with a book of their own, each with a label."""
    for it in today["pipelines"]:
        if it["settled_usd"] or it["reserved_usd"] or "pipeline" in it:
            yield {**it, "label": it["channel"] or it.get("pipeline") or it.get("name") or "story"}


def _days(first: str, last: str) -> list[str]:
    """Return every day from `first` to `last`."""
    start, end = date.fromisoformat(first), date.fromisoformat(last)
    return [(start + timedelta(days=n)).isoformat() for n in range((end - start).days + 1)]
