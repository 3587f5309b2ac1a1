"""The page of dead letters: what failed for good or was cancelled."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from retake.operations.letters import LetterView, letters_page
from retake.operations.words import code_of, one_line, usd
from retake.web.desk import Desk, PageData, PageNumber

PAGE_SIZE = 50


def letters_routes(desk: Desk) -> APIRouter:
    """Return the route /dead-letters."""
    router = APIRouter()

    @router.get("/dead-letters")
    def letters(request: Request, page: PageNumber = 1) -> Response:
        def read() -> PageData:
            found = letters_page(desk.operations, page, PAGE_SIZE)
            return PageData(
                found.document(),
                {
                    "rows": [row_of(it, desk.operations.named_as(it.pipeline) or "") for it in found.letters],
                    "at_page": found.at,
                },
            )

        return desk.show(request, "dead_letters.html", page, read)

    return router


def row_of(it: LetterView, channel: str) -> dict[str, Any]:
    """Return the values of a dead letter's row. `channel` names its pipeline. In the result, `value` identifies the
    letter among those of all channels, and `run` finds its runs; "" if it has none."""
    letter = it.letter
    fault = letter.fault or f"{code_of(letter.error_code)}: {it.message}"
    return {
        "value": f"{channel}/{letter.id}" if channel else letter.id,
        "run": f"{it.pipeline.channel}/{it.item_id}" if it.item_id and it.pipeline.channel else it.item_id,
        "id": letter.id,
        "channel": channel,
        "how": it.how,
        "at": letter.failed_at,
        "step": one_line(it.step, 60),
        "error": one_line(fault, 160) if letter.fault or letter.error_code or it.message else "",
        "paid": usd(it.paid_usd) if it.paid_usd else "",
        "files": len(letter.files),
    }
