"""Reading forms, and checking that they are ours."""

from collections.abc import Mapping
from urllib.parse import parse_qs

from fastapi import Request
from starlette.exceptions import HTTPException

from retake.serving.body import MAX_BODY_BYTES, TooLarge, read_body
from retake.web.desk import Desk


async def read_form(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form, or {} for a body that is not a form, or is too large to be one of ours.

    Raises HTTPException (408).
    """
    try:
        body = await read_body(dict(request.scope["headers"]), request.receive, MAX_BODY_BYTES)
        return parse_qs((body or b"").decode(), keep_blank_values=True, max_num_fields=2000)
    except TimeoutError:
        raise HTTPException(408, "The form did not arrive in time. Nothing was changed.") from None
    except (TooLarge, ValueError):
        return {}


def require_own_form(desk: Desk, request: Request, form: Mapping[str, list[str]], *, changes: bool = True) -> None:
    """Return if the form was sent by the session that it was made for, or by a program with the token. Raises
    HTTPException (403)."""
    if desk.read_only and changes:
        raise HTTPException(403, "This dashboard is read-only: it was started with --read-only. Nothing was changed.")
    if _is_foreign(request):
        raise HTTPException(403, "This request came from another site. Nothing was changed.")
    if request.scope.get("retake.program"):
        return
    session, given = request.scope.get("retake.session", ""), form.get("csrf", [""])[0]
    if not session or not desk.sessions.is_csrf(session, given):
        text = "This page is older than your sign-in: go back, reload it and try again."
        raise HTTPException(403, f"{text} Nothing was changed.")


def _is_foreign(request: Request) -> bool:
    """Return whether the browser says that another site sent the request."""
    origin, host = request.headers.get("origin"), request.headers.get("host", "").strip().lower()
    if origin is not None:
        return origin.partition("://")[2].strip().lower() != host
    return request.headers.get("sec-fetch-site", "none").strip().lower() not in ("same-origin", "none")
