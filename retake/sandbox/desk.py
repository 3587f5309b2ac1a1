"""The front desk: every call is written down, meets its fault if one is ordered, and is answered by its vendor."""

from collections.abc import Callable
from typing import Any, NamedTuple

from retake.sandbox import routes
from retake.sandbox.bill import Bill, bill
from retake.sandbox.books import Call
from retake.sandbox.orders import Fault, parse_order
from retake.sandbox.studio import Studio, Visit
from retake.sandbox.wire import Reply, Request, html

_SILENT = ("cut-before", "cut-after", "hang", "hang-after")
_FATES = ("task-failed", "task-rejected", "never-ends")


class Answer(NamedTuple):
    """What the server does with the connection: send `reply`; without one, cut it, or (`hang`) leave it waiting."""

    reply: Reply | None = None
    hang: bool = False


class Desk:
    """Takes requests, returns answers; safe to use from many threads.

    `pause(seconds)` waits for real time to pass (a slow answer); `on_call` hears of every call that has ended.
    """

    def __init__(self, studio: Studio, pause: Callable[[float], object], on_call: Callable[[Call], object]) -> None:
        self.studio, self._books, self._pause, self._on_call = studio, studio.books, pause, on_call

    def receive(self, request: Request) -> Answer:
        if request.path.startswith("/sandbox/"):
            return Answer(self._control(request))
        route, args = routes.find(request)
        kind, when, summary = route.kind_of(request), self.studio.now(), request.summary()
        row, n, fault = self._books.begin_call(kind, summary, when)
        if fault and fault.name == "slow":
            self._pause(fault.seconds)
        visit = Visit(request, self.studio, n, fault.name if fault and fault.name in _FATES else "", args)
        done = self._work(route, visit, fault)
        carried_out = done.ok and (fault is None or fault.carried_out)
        answer = _answer(done, fault)
        outcome = _outcome(fault, answer)
        self._books.end_call(row, outcome=outcome, carried_out=carried_out, price=done.price, task_id=done.task_id)
        self._on_call(self._books.call(row))
        return answer

    def bill(self) -> Bill:
        return bill(self._books.calls(), self._books.tasks(), self.studio.now())

    def _work(self, route: routes.Route, visit: Visit, fault: Fault | None) -> Reply:
        if fault is None or fault.carried_out:
            return route.handler(visit)
        return html(502) if fault.name in _SILENT else route.vendor.refusal(fault)

    def _control(self, request: Request) -> Reply:
        controls: dict[tuple[str, str], Callable[[Request], Reply]] = {
            ("GET", "/sandbox/health"): lambda _: Reply(200, {"sandbox": "retake", "books": self._books.identity}),
            ("GET", "/sandbox/bill"): lambda _: Reply(200, self.bill().as_json()),
            ("GET", "/sandbox/calls"): lambda asked: Reply(200, self._calls(asked.query.get("kind"))),
            ("GET", "/sandbox/orders"): lambda _: Reply(200, [str(order) for order in self._books.orders()]),
            ("POST", "/sandbox/orders"): self._place,
            ("DELETE", "/sandbox/orders"): self._withdraw,
        }
        control = controls.get((request.method, request.path))
        return control(request) if control else Reply(404, {"error": f"no {request.method} {request.path} here"})

    def _place(self, request: Request) -> Reply:
        try:
            order = parse_order(str(request.fields.get("order", "")))
        except ValueError as wrong:
            return Reply(400, {"error": str(wrong)})
        self._books.place(order)
        return Reply(201, {"order": str(order)})

    def _withdraw(self, _: Request) -> Reply:
        self._books.withdraw_orders()
        return Reply(204)

    def _calls(self, kind: str | None) -> list[dict[str, Any]]:
        return [call.as_json() for call in self._books.calls(kind)]


def _answer(done: Reply, fault: Fault | None) -> Answer:
    """The answer to a call that was `done`, after its fault."""
    if fault is None or (not done.ok and fault.carried_out):
        return Answer(done)
    if fault.name in _SILENT:
        return Answer(hang=fault.name.startswith("hang"))
    if fault.name == "not-json":
        return Answer(html(200))
    return Answer(_without_id(done)) if fault.name == "no-id" else Answer(done)


def _without_id(done: Reply) -> Reply:
    body = {key: value for key, value in done.body.items() if key not in ("id", "job_id")}
    if isinstance(body.get("data"), dict):
        body["data"] = {key: value for key, value in body["data"].items() if key != "task_id"}
    return Reply(done.status, body, headers=done.headers)


def _outcome(fault: Fault | None, answer: Answer) -> str:
    if answer.reply is None:
        return str(fault)
    unseen = fault is not None and fault.name in ("not-json", "no-id", *_FATES)
    return f"{answer.reply.status} {fault}" if unseen and answer.reply.ok else str(answer.reply.status)
