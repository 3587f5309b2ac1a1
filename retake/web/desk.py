"""What the routes of the dashboard share: the pipelines, what was read of them, and how an answer is made of it."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import unquote, urlencode

from fastapi import HTTPException, Query, Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from retake.clock import stamp
from retake.errors import LeaseHeld, RetakeError
from retake.exit_codes import ExitCode
from retake.foreign_text import one_line, several_lines
from retake.operations import words
from retake.operations.pipelines import Listings, Operations
from retake.operations.port import Refusal
from retake.operations.status import StatusReport, status_report
from retake.retrying.breaker import BreakerPolicy
from retake.serving.answers import answer
from retake.web.gate import wants_page
from retake.web.sessions import Sessions
from retake.web.shelf import Shelf

FOLDER = Path(__file__).parent

WATCHED_S = 60.0
"""Seconds after which a list that nobody asked for is read only once somebody does."""

DONE_COOKIE = "retake_done"
"""What the last action did, for the page that the browser is sent back to."""

PAGES = (
    ("/", "Overview"),
    ("/runs", "Runs"),
    ("/dead-letters", "Dead letters"),
    ("/spend", "Spend"),
    ("/kpi", "Figures"),
    ("/alerts", "Alerts"),
    ("/mode", "Mode"),
    ("/breakers", "Breakers"),
)

PageNumber = Annotated[int, Query(ge=1)]
"""The page of a list that is asked for; one beyond the last is the last."""


class PageData(NamedTuple):
    """What a page shows: the document that programs get, and more that only its template needs."""

    document: Mapping[str, Any]
    more: Mapping[str, Any] = {}
    status: int = 200


class SharedRead(NamedTuple):
    """Something that is read once for several pages: when, and the number of that reading."""

    at: datetime
    number: int
    found: Any


class Desk:
    """Makes answers. `cap_usd` is the cap of a day, `policies` are those of breakers that are not a vendor's, by name;
    `environ` has the secrets of the alerts' channels."""

    def __init__(
        self,
        operations: Operations,
        sessions: Sessions,
        shelf: Shelf,
        *,
        cap_usd: float | None = None,
        read_only: bool = False,
        environ: Mapping[str, str] | None = None,
        policies: Mapping[str, BreakerPolicy] | None = None,
    ) -> None:
        self.operations, self.sessions, self.shelf = operations, sessions, shelf
        self.cap_usd, self.read_only, self.environ = cap_usd, read_only, environ or {}
        self.policies = policies or {}
        self._templates = _templates()
        self._numbers = count()
        self._last: dict[str, SharedRead] = {}
        self._reads: dict[str, Callable[[Any], Any]] = {
            "status": lambda before: status_report(operations, cap_usd),
            "runs": lambda before: operations.listings(before or ()),
        }

    @property
    def now(self) -> datetime:
        """The time."""
        return self.operations.clock.now()

    def status(self) -> SharedRead:
        """Return how everything stands, the StatusReport, lately or now. Raises as `status_report`, BucketSilent."""
        return self._shared("status", self.shelf.get)

    def status_now(self) -> StatusReport:
        """Return how everything stands now, and keep it for the pages. Raises as `status_report`."""
        found: StatusReport = self._shared("status", self.shelf.renew).found
        return found

    def runs(self) -> SharedRead:
        """Return the listings of all ledgers, lately or now. Raises as `Operations.listings`, BucketSilent."""
        return self._shared("runs", self.shelf.get)

    def listings(self) -> Listings:
        """Return the same for what is itself being read. Raises as `Operations.listings`."""
        found: Listings = self._shared("runs", self.shelf.get_inline).found
        return found

    def warm_up(self, wait_s: float) -> None:
        """Begin to read what the first page needs, and wait `wait_s` for it at most. What goes wrong the page tells."""
        with suppress(RetakeError):
            self.shelf.get("status", self._reading("status"), wait_s)

    def changed(self) -> None:
        """Read everything again from now on, but for the status, which has just been read. The listings are read here
        if they are being looked at, so that no page has to wait for them."""
        read = {"status"}
        with suppress(RetakeError):
            if self.shelf.is_wanted("runs", WATCHED_S):
                self._shared("runs", self.shelf.renew)
                read.add("runs")
        self.shelf.forget(keep=read)

    def _shared(self, key: str, get: Callable[[Hashable, Callable[[], SharedRead]], SharedRead]) -> SharedRead:
        return get(key, self._reading(key))

    def _reading(self, key: str) -> Callable[[], SharedRead]:
        """Return what reads the status or the runs, given what was read before."""

        def numbered() -> SharedRead:
            at, before = self.now, self._last.get(key)
            self._last[key] = SharedRead(at, next(self._numbers), self._reads[key](before.found if before else None))
            return self._last[key]

        return numbered

    def show(
        self, request: Request, template: str, key: Hashable, read: Callable[[], PageData], of: SharedRead | None = None
    ) -> Response:
        """Answer with what `read` returns, lately or now: as a page, or as JSON for a program. `of` is what it makes
        that of, if that is shared with other pages."""
        basis = of.number if of else 0
        at, seen = self.shelf.get((template, key), lambda: (of.at if of else self.now, read()), basis=basis)
        return self.respond(request, template, at, seen)

    def respond(self, request: Request, template: str, at: datetime, seen: PageData) -> Response:
        """Answer with what was read at that time: as a page, or as JSON for a program. Raises HTTPException where that
        is an error."""
        if seen.status >= 400:
            raise HTTPException(seen.status, seen.document["error"])
        if not wants_page(request.scope):
            return answer(seen.document, seen.status)
        return self.page(request, template, {"document": seen.document, **seen.more, "at": at}, seen.status)

    def page(self, request: Request, template: str, values: Mapping[str, Any], status: int = 200) -> Response:
        """Return a page made of a template. What the last action did is told once."""
        session = request.scope.get("retake.session", "")
        done = one_line(unquote(request.cookies.get(DONE_COOKIE, "")))[:400]
        common = {
            "at": self.now,
            "now": self.now,
            "path": request.url.path,
            "here": f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path,
            "pages": PAGES,
            "signed_in": bool(session) or bool(request.scope.get("retake.program")),
            "csrf": self.sessions.csrf(session) if session else "",
            "read_only": self.read_only,
            "done": done,
        }
        response = HTMLResponse(self._templates.get_template(template).render({**common, **values}), status)
        if done:
            response.delete_cookie(DONE_COOKIE, httponly=True, samesite="strict")
        return response


def status_of(error: RetakeError) -> int:
    """Return the status for an error: what does not fit now is 409, a held lease 423, an unreachable store 503."""
    if isinstance(error, LeaseHeld):
        return 423
    if isinstance(error, Refusal) or error.exit_code == ExitCode.BAD_STATE:
        return 409
    return 503 if error.exit_code in (ExitCode.TRY_LATER, ExitCode.CONFIG) else 500


def query_of(chosen: Mapping[str, str | Sequence[str]]) -> str:
    """Return what is chosen as the beginning of a query, with "&" at its end; "" for nothing."""
    text = urlencode({name: value for name, value in chosen.items() if value}, doseq=True)
    return f"{text}&" if text else ""


def _templates() -> Environment:
    found = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        finalize=lambda it: several_lines(it) if type(it) is str else it,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "stamp": lambda it: stamp(it) if isinstance(it, datetime) else str(it or ""),
        "usd": words.usd,
        "code": words.code_of,
        "line": words.one_line,
        "size": words.size,
        "span": words.span,
    }
    found.globals |= {"ago": words.ago, "moment": words.moment, "read_moment": words.read_moment}
    return found
