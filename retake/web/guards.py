"""The pages of what holds work back: the degraded mode and the circuit breakers."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from retake.bucket import this_process
from retake.degraded.mode import WORDS
from retake.operations.breakers import BreakerPanel, BreakerView
from retake.operations.modes import SET_BY, ModePanel
from retake.operations.words import code_of, one_line, span
from retake.retrying.breaker import Phase
from retake.web.desk import Desk, PageData

MAX_BREAKERS = 300  # on the page

MODE_TONES = ("good", "warn", "bad", "bad")
_TONES = {Phase.CLOSED: "good", Phase.OPEN: "bad", Phase.HALF_OPEN: "warn"}


def guards_routes(desk: Desk) -> APIRouter:
    """Return the routes /mode and /breakers."""
    router = APIRouter()

    @router.get("/mode")
    def mode(request: Request) -> Response:
        def read() -> PageData:
            panel = ModePanel(desk.operations)
            document = panel.document(panel.state())
            return PageData(document, mode_view(document))

        return desk.show(request, "mode.html", "", read)

    @router.get("/breakers")
    def breakers(request: Request) -> Response:
        def read() -> PageData:
            panel = BreakerPanel(desk.operations, desk.policies, this_process())
            found = panel.views()
            rows = [breaker_row(it) for it in found[:MAX_BREAKERS]]
            return PageData({"breakers": [it.document() for it in found]}, {"rows": rows})

        return desk.show(request, "breakers.html", "", read)

    return router


def mode_view(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the mode's template."""
    return {
        "mode": document["mode"],
        "tone_of_mode": MODE_TONES[document["mode"]],
        "words": WORDS[document["mode"]],
        "set_by": SET_BY[document["by"]],
        "by_hand": document["by"] == "operator",
        "why": one_line(document["why"] or "", 300),
        "choices": [*enumerate(WORDS)],
    }


def breaker_row(it: BreakerView) -> dict[str, Any]:
    """Return the values of a breaker on the page."""
    document, policy = it.document(), it.policy
    return {
        "name": it.breaker.name,
        "words": it.words,
        "tone": "bad" if it.fault else _TONES[it.phase],
        "failures": "" if it.fault else f"{len(it.recent)} within {span(policy.window_s)}; {policy.failures} open it",
        "until": document["open_until"],
        "opened": document["opened_at"],
        "code": code_of(it.state.code),
        "can_probe": it.phase is Phase.OPEN and it.prober is None and not it.state.probe_ordered,
        "can_reset": it.phase is not Phase.CLOSED or bool(it.recent),
    }
