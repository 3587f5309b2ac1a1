"""JSON responses: results, refusals, and the faults of a request."""

from typing import Any

from fastapi.responses import Response

from retake.foreign_text import several_lines
from retake.strict_json import for_programs

MAX_FAULTS = 20
_MAX_DETAIL = 4000  # maximum characters


def answer(value: Any, status: int = 200) -> Response:
    """Return `value` as a JSON response, in ASCII, since an outside program's text may have lone surrogates."""
    return Response(for_programs(value, separators=(",", ":")), status, media_type="application/json")


def refused(status: int, detail: str) -> Response:
    """Return `{"detail": …}` with this status."""
    return answer({"detail": several_lines(detail)[:_MAX_DETAIL]}, status)


def unusable(name: str) -> str:
    """Return what clients are told if a service called `name` cannot be used. Where it is, and how to mend it, is for
    those who run this server, and is in its log."""
    return f"{name} cannot be used at the moment; try again. The log of this server has the reason"


def fault(found: dict[str, Any]) -> dict[str, Any]:
    """Return a validation error without the input, which may be huge, or not JSON."""
    where = [part if isinstance(part, int) else str(part)[:80] for part in found.get("loc", ())]
    return {"loc": where, "msg": str(found.get("msg", ""))[:300], "type": str(found.get("type", ""))[:80]}
