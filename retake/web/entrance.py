"""Signing in and out, static files, and the health check."""

from asyncio import sleep
from collections.abc import Callable
from logging import getLogger

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from retake.errors import RetakeError
from retake.serving.answers import answer, refused
from retake.web.desk import FOLDER, Desk
from retake.web.forms import read_form, require_own_form
from retake.web.gate import LOOPBACK, host_name, own_path, wants_page
from retake.web.health import StoreHealth
from retake.web.sessions import COOKIE, SESSION_S, WrongTokens

_log = getLogger(__name__)


def entrance_routes(desk: Desk, monotonic: Callable[[], float]) -> APIRouter:
    """Return the routes /login, /logout and /healthz."""
    router, wrong, stores = APIRouter(), WrongTokens(monotonic), StoreHealth(desk.operations)

    @router.get("/login")
    def ask(request: Request, next: str = "/") -> Response:  # noqa: A002  the field's name
        return desk.page(request, "login.html", {"next": own_path(next), "fault": ""})

    @router.post("/login")
    async def sign_in(request: Request) -> Response:
        form = await read_form(request)
        token, target = (form.get(name, [""])[0] for name in ("token", "next"))
        address = request.client.host if request.client else ""
        wait_s = wrong.wait_s(address)
        if wait_s:
            text = f"Too many wrong tokens. Try again in {wait_s:.0f} seconds."
            return _not_in(desk, request, text, own_path(target), 429, {"retry-after": f"{wait_s + 1:.0f}"})
        if not desk.sessions.is_token(token):
            await sleep(wrong.add(address))
            return _not_in(desk, request, "Wrong token.", own_path(target), 403, {})
        response = RedirectResponse(own_path(target), 303)
        local = host_name(request.headers.get("host", "")) in LOOPBACK
        response.set_cookie(
            COOKIE, desk.sessions.begin(), max_age=SESSION_S, httponly=True, samesite="strict", secure=not local
        )
        return response

    @router.post("/logout")
    async def sign_out(request: Request) -> Response:
        require_own_form(desk, request, await read_form(request), changes=False)
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return response

    @router.get("/healthz")
    def health() -> Response:
        try:
            desk.shelf.get("healthz", stores.check)
        except RetakeError as error:
            _log.error("%s", error)  # only here: it may name the bucket or a database, and anybody may ask
            return refused(503, "the bucket or a ledger does not answer; the log of the dashboard says why")
        return answer({"ok": True})

    return router


def static_files() -> StaticFiles:
    """Return the application that serves static files."""
    return StaticFiles(directory=FOLDER / "static")


def _not_in(desk: Desk, request: Request, text: str, target: str, status: int, headers: dict[str, str]) -> Response:
    if wants_page(request.scope):
        response = desk.page(request, "login.html", {"next": target, "fault": text}, status)
    else:
        response = refused(status, text)
    response.headers.update(headers)
    return response
