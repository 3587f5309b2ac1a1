"""The dashboard as an ASGI application."""

import time
from collections.abc import Callable, Collection
from logging import getLogger
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

import retake
from retake.errors import RetakeError, in_words
from retake.serving.answers import answer
from retake.serving.application import with_threads
from retake.web.actions import action_routes
from retake.web.alerts import alerts_routes
from retake.web.desk import Desk, status_of
from retake.web.entrance import entrance_routes, static_files
from retake.web.gate import Gate, from_program
from retake.web.guards import guards_routes
from retake.web.kpi import kpi_routes
from retake.web.letters import letters_routes
from retake.web.live import Live, live_routes
from retake.web.media import media_routes
from retake.web.overview import overview_routes
from retake.web.runs import runs_routes
from retake.web.spend import spend_routes

THREADS = 16
"""Maximum number of requests that are answered concurrently."""

_PAGES = (
    overview_routes,
    runs_routes,
    letters_routes,
    spend_routes,
    kpi_routes,
    alerts_routes,
    guards_routes,
    media_routes,
)

_log = getLogger(__name__)


def web_app(desk: Desk, live: Live, hosts: Collection[str], monotonic: Callable[[], float] = time.monotonic) -> FastAPI:
    """Return the dashboard. `hosts` are the host names that it accepts in addition to those of loopback."""
    app = FastAPI(
        title="Retake",
        version=retake.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=with_threads(THREADS),
    )
    app.add_middleware(Gate, sessions=desk.sessions, hosts=hosts)
    for router in (live_routes(live), action_routes(desk, live)):
        app.include_router(router)
    for router in (entrance_routes(desk, monotonic), *(pages(desk) for pages in _PAGES)):
        app.include_router(_answering_head(router))
    app.mount("/static", static_files())
    _add_errors(app, desk)
    return app


def _answering_head(router: APIRouter) -> APIRouter:
    """Make the router answer HEAD where it answers GET, as RFC 9110, section 9.1, requires, and return it. The server
    leaves the body out."""
    for route in router.routes:
        if isinstance(route, APIRoute) and route.methods and "GET" in route.methods:
            route.methods.add("HEAD")
    return router


def _add_errors(app: FastAPI, desk: Desk) -> None:
    def told(request: Request, status: int, text: str) -> Response:
        if not from_program(request.scope):
            return desk.page(request, "error.html", {"status": status, "text": text}, status)
        return answer({"error": text}, status)

    @app.exception_handler(RetakeError)
    async def failed(request: Request, error: RetakeError) -> Response:
        status = status_of(error)
        if status >= 500:
            _log.error("%s", error)
        return told(request, status, in_words(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        faults = {f"{str(it['loc'][-1])[:40]}: {it['msg']}" for it in error.errors()[:20]}
        return told(request, 422, "; ".join(sorted(faults)))

    @app.exception_handler(HTTPException)
    async def turned_away(request: Request, error: HTTPException) -> Response:
        words = {"Not Found": "There is no such page.", "Method Not Allowed": "That cannot be done here."}
        return told(request, error.status_code, words.get(error.detail, error.detail))

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Any:
        return told(request, 500, "This is a bug in Retake; its log has the details.")
