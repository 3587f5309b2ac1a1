"""What the routes of the dashboard share: the pipelines, what was read about them, and rendering it."""

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
"""Seconds after the last request for a list during which it is read again at each change, rather than on request."""

AGAIN_S = 3
"""Seconds after which a page that could not be read is fetched again: the bucket may be back before the look for
changes has noticed that it was away."""

DONE_COOKIE = "retake_done"
"""The cookie that tells the page to which the browser returns what the last action did."""

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
"""The requested page of a list; a number beyond the last means the last."""


class PageData(NamedTuple):
    """The data of a page: the document that programs get, and more values for its template."""

    document: Mapping[str, Any]
    more: Mapping[str, Any] = {}
    status: int = 200


class SharedRead(NamedTuple):
    """The result of a read that several pages share."""

    at: datetime
    number: int  # of this read; the next one has a higher number
    found: Any


class Desk:
    """Reads what pages show, and renders it. `cap_usd` is the daily cap; `policies` has the policy of each breaker that
    is not a vendor's, by name; `environ` has the secrets of the alerts' channels."""

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
        """The current time."""
        return self.operations.clock.now()

    def status(self) -> SharedRead:
        """Return the StatusReport, from the shelf or read now. Raises like `status_report`, and BucketSilent."""
        return self._shared("status", self.shelf.get)

    def status_now(self) -> StatusReport:
        """Read the status now, keep it for the pages, and return it. Raises like `status_report`."""
        found: StatusReport = self._shared("status", self.shelf.renew).found
        return found

    def runs(self) -> SharedRead:
        """Return the listings of all ledgers, from the shelf or read now. Raises like `Operations.listings`, and
        BucketSilent."""
        return self._shared("runs", self.shelf.get)

    def listings(self) -> Listings:
        """Return the listings for use inside another read, in its thread. Raises like `Operations.listings`."""
        found: Listings = self._shared("runs", self.shelf.get_inline).found
        return found

    def warm_up(self, wait_s: float) -> None:
        """Start reading what the first page needs, and wait up to `wait_s` for it. Errors are left to the page."""
        with suppress(RetakeError):
            self.shelf.get("status", self._reading("status"), wait_s)

    def changed(self) -> None:
        """Forget everything except the status, which has just been read. If somebody is looking at the listings, they
        are read here, so that no page has to wait for them."""
        read = {"status"}
        with suppress(RetakeError):
            if self.shelf.is_wanted("runs", WATCHED_S):
                self._shared("runs", self.shelf.renew)
                read.add("runs")
        self.shelf.forget(keep=read)

    def _shared(self, key: str, get: Callable[[Hashable, Callable[[], SharedRead]], SharedRead]) -> SharedRead:
        return get(key, self._reading(key))

    def _reading(self, key: str) -> Callable[[], SharedRead]:
        """Return the function that reads the status or the runs, building on its previous result."""

        def numbered() -> SharedRead:
            at, before = self.now, self._last.get(key)
            self._last[key] = SharedRead(at, next(self._numbers), self._reads[key](before.found if before else None))
            return self._last[key]

        return numbered

    def show(
        self, request: Request, template: str, key: Hashable, read: Callable[[], PageData], of: SharedRead | None = None
    ) -> Response:
        """Answer with the result of `read`, from the shelf or read now: as a page, or as JSON for a program. `of` is
        the shared read that it is derived from, if any."""
        basis = of.number if of else 0
        at, seen = self.shelf.get((template, key), lambda: (of.at if of else self.now, read()), basis=basis)
        return self.respond(request, template, at, seen)

    def respond(self, request: Request, template: str, at: datetime, seen: PageData) -> Response:
        """Answer with `seen`, which was read at `at`: as a page, or as JSON for a program. Raises HTTPException if it
        is an error."""
        if seen.status >= 400:
            raise HTTPException(seen.status, seen.document["error"])
        if not wants_page(request.scope):
            return answer(seen.document, seen.status)
        return self.page(request, template, {"document": seen.document, **seen.more, "at": at}, seen.status)

    def page(self, request: Request, template: str, values: Mapping[str, Any], status: int = 200) -> Response:
        """Render a template. What the last action did is shown once, but not when a page only updates its parts."""
        session = request.scope.get("retake.session", "")
        updates = "hx-request" in request.headers
        done = "" if updates else one_line(unquote(request.cookies.get(DONE_COOKIE, "")))[:400]
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
            "changing": _changing(request.method, status),
            "again_s": AGAIN_S if status == 503 and request.method != "POST" else 0,
        }
        response = HTMLResponse(self._templates.get_template(template).render({**common, **values}), status)
        if done:
            response.delete_cookie(DONE_COOKIE, httponly=True, samesite="strict")
        return response


def status_of(error: RetakeError) -> int:
    """Return the HTTP status for an error: 409 for a refusal, 423 for a held lease, 503 for an unreachable store."""
    if isinstance(error, LeaseHeld):
        return 423
    if isinstance(error, Refusal) or error.exit_code == ExitCode.BAD_STATE:
        return 409
    return 503 if error.exit_code in (ExitCode.TRY_LATER, ExitCode.CONFIG) else 500


def _changing(method: str, status: int) -> str:
    """Return the selector of what a page fetches again at each change; "" for nothing. The answer to a form cannot be
    fetched again, and a refusal stays a refusal. A server error or an invalid document may be fixed, and then the whole
    page differs, including its heading."""
    if method == "POST" or (400 <= status < 500 and status != 409):
        return ""
    return "#main" if status >= 400 else "#parts"


def query_of(chosen: Mapping[str, str | Sequence[str]]) -> str:
    """Return `chosen` as the beginning of a query string, ending in "&", or "" if nothing is chosen."""
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
