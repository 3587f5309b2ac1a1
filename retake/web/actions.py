"""The actions of the buttons: form posts to /actions/VERB, which call the same functions as the console's commands.

A browser is sent back with 303 to the page that it came from, which says what was done; a program gets the document of
the console's command. A refusal is a page, or {"error": …}, in the console's words.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from json import dumps
from logging import getLogger
from typing import Any, NamedTuple
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from retake.errors import RetakeError
from retake.exit_codes import ExitCode
from retake.foreign_text import one_line
from retake.operations.port import Refusal
from retake.operations.several import Item, each, several_document
from retake.serving.answers import answer
from retake.web.desk import DONE_COOKIE, Desk, status_of
from retake.web.forms import read_form, require_own_form
from retake.web.gate import own_path, wants_page
from retake.web.live import Live
from retake.web.verbs import MODES, ON_ALERTS, ON_BREAKERS, ON_LETTERS, VERBS, PreparedOrder, Verbs

MAX_IDS = 1000  # in one form
MAX_ID_LENGTH = 200  # characters

YES = ("yes", "1", "true", "on")
"""The values of `agreed` that agree to everything, like the console's --yes. Others are digests by the confirmation
page."""

_MAX_DONE_LENGTH = 300  # characters of the cookie that says what was done
_MAX_REFUSALS, _MAX_LOSSES = 20, 100  # that one page lists

_LABELS = {
    "drop": ("Drop it for good?", "Dropping cannot be undone."),
    "cancel": ("Cancel it?", "What it made is kept as a dead letter; what was paid is not refunded."),
    "unlock": ("Break the lease?", "If its holder is still alive, it stops at its next write or payment."),
}
_PAGES: Mapping[str, str] = {
    **dict.fromkeys(ON_LETTERS, "/dead-letters"),
    **dict.fromkeys(ON_ALERTS, "/alerts"),
    **dict.fromkeys(ON_BREAKERS, "/breakers"),
    "mode": "/mode",
}
"""The page to return to, by verb, if the browser does not say where it came from. Others return to the overview."""

_log = getLogger(__name__)


class FormOrder(NamedTuple):
    """The order that a form contains."""

    verb: str
    ids: list[str]
    channel: str
    agreed: str
    back: str  # the path to return to
    program: bool  # whether a program sent it


class ActionResult(NamedTuple):
    """The result of an order for one id."""

    document: Mapping[str, Any]
    exit_code: int = 0
    what: str = ""
    status: int = 200


def action_routes(desk: Desk, live: Live) -> APIRouter:
    """Return the route POST /actions/VERB."""
    router = APIRouter()
    handler = ActionHandler(desk, Verbs(desk.operations, desk.environ, desk.policies))

    @router.post("/actions/{verb}")
    async def act(verb: str, request: Request) -> Response:
        form = await read_form(request)
        require_own_form(desk, request, form)
        if verb not in VERBS:
            raise HTTPException(404)
        order = _read(request, verb, form)
        try:
            return await run_in_threadpool(handler.answer, request, order)
        finally:
            desk.shelf.forget()
            live.look_now()

    return router


def _read(request: Request, verb: str, form: Mapping[str, list[str]]) -> FormOrder:
    """Read the fields of a form. Raises HTTPException (422)."""
    ids = [*dict.fromkeys(it.strip() for it in form.get("id", []) if it.strip())]
    channel, agreed, back = (form.get(name, [""])[0].strip() for name in ("channel", "agreed", "back"))
    if not ids and verb != "unlock":
        raise HTTPException(422, "Nothing is selected: the field id is missing.")
    if len(ids) > MAX_IDS:
        raise HTTPException(422, f"At most {MAX_IDS} at once: {len(ids)} are selected.")
    if any(len(it) > MAX_ID_LENGTH or not it.isprintable() for it in (*ids, channel)):
        raise HTTPException(422, f"An id or channel is text of at most {MAX_ID_LENGTH} characters.")
    if verb == "mode" and (len(ids) > 1 or ids[0] not in MODES):
        raise HTTPException(422, f"id must be one of {', '.join(MODES)}.")
    return FormOrder(verb, ids, channel, agreed, _return_path(request, verb, back), _is_program(request))


def _is_program(request: Request) -> bool:
    """Return whether a program sent the request: with the token, or asking for JSON. A request with a session that
    accepts anything is a browser's."""
    return bool(request.scope.get("retake.program")) or not wants_page(request.scope)


def _return_path(request: Request, verb: str, back: str) -> str:
    """Return the path to send the browser back to: the page that it came from, if that is one of ours."""
    if not back:
        host = request.headers.get("host", "").strip().lower()
        address, slash, path = request.headers.get("referer", "").partition("://")[2].partition("/")
        back = f"/{path.partition('#')[0]}" if slash and address.lower() == host else ""
    path = own_path(back) if back else ""
    fits = path and not path.startswith(("/actions", "/login", "/logout", "/events", "/media", "/static"))
    return path if fits else _PAGES.get(verb, "/")


class ActionHandler:
    """Carries out the orders of forms, and answers them."""

    def __init__(self, desk: Desk, verbs: Verbs) -> None:
        self._desk, self._verbs = desk, verbs

    def answer(self, request: Request, order: FormOrder) -> Response:
        """Carry out the order, or ask for agreement if something would be lost. Raises RetakeError for a single id."""
        items = self._verbs.items(order.verb, order.ids, order.channel)
        agreed = {""}  # everything
        if not _agrees(order):
            losses = {} if order.program else self._losses(order.verb, items)
            if losses and order.agreed != _digest(order.verb, losses):
                return self._ask(request, order, len(items), losses)
            agreed = {it.agreement for it in losses.values()}
        if len(items) == 1:
            return self._answer_done(order, self._act(order, items[0], agreed))
        results = each(items, lambda it: self._try(order, it, agreed), _failed)
        return self._answer_several(request, order, items, results)

    def _losses(self, verb: str, items: Sequence[Item]) -> dict[Item, PreparedOrder]:
        """Return the orders that would lose something. Among several items, a refused one fails when carried out."""
        found = {}
        for item in items:
            try:
                prepared = self._verbs.prepare(verb, item)
            except RetakeError:
                if len(items) == 1:
                    raise
                continue
            if prepared.lost:
                found[item] = prepared
        return found

    def _ask(self, request: Request, order: FormOrder, number: int, losses: Mapping[Item, PreparedOrder]) -> Response:
        heading, hint = _LABELS[order.verb]
        values = {
            "heading": heading,
            "hint": hint,
            "order": order,
            "losses": [f"{it.lost[:1].upper()}{it.lost[1:]}." for it in [*losses.values()][:_MAX_LOSSES]],
            "more": max(0, len(losses) - _MAX_LOSSES),
            "others": number - len(losses),
            "agreed": _digest(order.verb, losses),
        }
        return self._desk.page(request, "confirm.html", values)

    def _act(self, order: FormOrder, item: Item, agreed: set[str]) -> ActionResult:
        """Carry out the order for one item. Raises RetakeError."""
        prepared = self._verbs.prepare(order.verb, item)
        if prepared.lost and not agreed & {"", prepared.agreement}:
            raise Refusal(f"{prepared.lost}. Send the field agreed to confirm. Nothing was changed")
        done = self._verbs.carry_out(prepared)
        _log.info("done on the dashboard: %s", done.what)
        warning = f". Warning: {done.warning}" if done.warning else ""
        return ActionResult(done.document, ExitCode.OK, f"{done.what}{warning}")

    def _try(self, order: FormOrder, item: Item, agreed: set[str]) -> ActionResult:
        try:
            return self._act(order, item, agreed)
        except RetakeError as error:
            return _failed(str(error), error.exit_code)._replace(status=status_of(error))

    def _answer_several(
        self, request: Request, order: FormOrder, items: Sequence[Item], results: Sequence[ActionResult]
    ) -> Response:
        failed = [it for it in results if it.exit_code != ExitCode.OK]
        done = len(results) - len(failed)
        status = max((it.status for it in failed), default=200)
        told = f"{done} of {len(results)} done"
        if order.program:
            return answer(several_document(items, results), 200 if done else status)
        if not failed:
            return self._answer_done(order, ActionResult({}, what=told))
        words = [f"{it.name}: {at.document['error']}" for it, at in zip(items, results, strict=True) if at in failed]
        more = f" And {len(words) - _MAX_REFUSALS} more." if len(words) > _MAX_REFUSALS else ""
        text = f"{told}. Not done: {'; '.join(words[:_MAX_REFUSALS])}.{more}"
        return self._desk.page(request, "error.html", {"status": status, "text": text}, status)

    def _answer_done(self, order: FormOrder, acted: ActionResult) -> Response:
        if order.program:
            return answer(acted.document)
        response = RedirectResponse(order.back, 303)
        text = quote(one_line(acted.what)[:_MAX_DONE_LENGTH])
        response.set_cookie(DONE_COOKIE, text, max_age=60, httponly=True, samesite="strict")
        return response


def _agrees(order: FormOrder) -> bool:
    """Return whether the form agrees to any loss, or the verb can lose nothing."""
    return order.verb not in _LABELS or order.agreed.lower() in YES or (order.program and bool(order.agreed))


def _failed(message: str, exit_code: int) -> ActionResult:
    return ActionResult({"error": message, "exit_code": exit_code}, exit_code, status=500)


def _digest(verb: str, losses: Mapping[Item, PreparedOrder]) -> str:
    """Return the agreement that the confirmation page sends back. It changes if something else would be lost."""
    shown = [verb, [[item.channel, item.name, it.agreement] for item, it in losses.items()]]
    return sha256(dumps(shown).encode()).hexdigest()
