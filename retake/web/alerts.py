"""The pages of alerts: what is wrong, who was notified, and who takes care of it."""

from collections.abc import Collection, Mapping
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

from retake.alerts.board import ACKNOWLEDGED, Alert
from retake.alerts.settings import why_no_channel
from retake.alerts.wording import lines
from retake.operations.alerts import AlertPanel
from retake.operations.pipelines import Operations
from retake.operations.port import Refusal
from retake.operations.words import one_line
from retake.web.desk import Desk, PageData

MAX_ALERTS = 200
"""Maximum number of active alerts shown on the page, and of ended ones."""

TONES = {"warning": "warn", "error": "bad", "critical": "bad"}


def alerts_routes(desk: Desk) -> APIRouter:
    """Return the routes /alerts and /alerts/ID."""
    router = APIRouter()

    def panel() -> AlertPanel:
        return AlertPanel(desk.operations, desk.environ)

    @router.get("/alerts")
    def alerts(request: Request) -> Response:
        def read() -> PageData:
            return PageData(panel().list_document(), list_view(panel()))

        return desk.show(request, "alerts.html", "", read)

    @router.get("/alerts/{alert_id}")
    def alert(request: Request, alert_id: str) -> Response:
        def read() -> PageData:
            try:
                found = panel().find(alert_id)
            except Refusal as unknown:
                raise HTTPException(404, one_line(unknown, 300)) from None
            view = alert_view(found, desk.operations, panel().untold(found))
            return PageData(panel().document(found, whole=True), view)

        return desk.show(request, "alert.html", alert_id, read)

    return router


def list_view(panel: AlertPanel) -> dict[str, Any]:
    """Return the values of the list's template: the active alerts, the ended ones, and the channels."""
    every = panel.alerts(ended=True, tolerant=True)
    return {
        "rows": [row_of(it) for it in every if it.active][:MAX_ALERTS],
        "over": [row_of(it) for it in every if not it.active][:MAX_ALERTS],
        "more": max(0, sum(it.active for it in every) - MAX_ALERTS),
        "channels": panel.channels(),
        "why_none": why_no_channel(panel.environ),
    }


def row_of(it: Alert) -> dict[str, Any]:
    """Return the values of an alert's row."""
    by = f" by {one_line(it.acknowledged_by, 60)}" if it.state == ACKNOWLEDGED and it.acknowledged_by else ""
    return {
        "id": it.id,
        "level": it.level,
        "tone": TONES.get(it.level, "warn") if it.active else "plain",
        "state": f"{it.state}{by}",
        "active": it.active,
        "acknowledged": it.state == ACKNOWLEDGED,
        "times": it.occurrences,
        "last_at": it.last_at,
        "title": one_line(it.title, 200),
    }


def alert_view(it: Alert, operations: Operations, untold: Collection[str]) -> Mapping[str, Any]:
    """Return the values of the template of one alert. `untold` are the channels whose messages are still waiting."""
    return {
        "channel": next((of.channel or "" for of in operations.pipelines if [*it.pipelines] == [of.name]), ""),
        "row": row_of(it),
        "facts": [(name, one_line(value, 1000)) for name, value in lines(it, None)],
        "generation_id": it.generation_id or "",
        "closed_at": it.closed_at,
        "told": [name for name in it.told if name not in untold],
        "untold": untold,
    }
