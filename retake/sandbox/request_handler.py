"""The front desk: every call is written down, meets its fault if one is ordered, and is answered by its vendor."""

from collections.abc import Callable
from typing import Any, NamedTuple

from retake.sandbox import routes
from retake.sandbox.billing import VendorBill, bill
from retake.sandbox.database import RecordedCall
from retake.sandbox.http_messages import Request, Response, html
from retake.sandbox.orders import VendorFault, parse_order
from retake.sandbox.task_service import ApiCall, TaskService

_SILENT = ("cut-before", "cut-after", "hang", "hang-after")
_FATES = ("task-failed", "task-rejected", "never-ends")


class Delivery(NamedTuple):
    """What the server does with the connection: send `reply`; without one, cut it, or (`hang`) leave it waiting."""

    reply: Response | None = None
    hang: bool = False


class RequestHandler:
    """Takes requests, returns answers; safe to use from many threads.

    `pause(seconds)` waits for real time to pass (a slow answer); `on_call` hears of every call that has ended.
    """

    def __init__(
        self, studio: TaskService, pause: Callable[[float], object], on_call: Callable[[RecordedCall], object]
    ) -> None:
        self.studio, self._database, self._pause, self._on_call = studio, studio.database, pause, on_call

    def receive(self, request: Request) -> Delivery:
        if request.path.startswith("/sandbox/"):
            return Delivery(self._control(request))
        route, args = routes.find(request)
        kind, when, summary = route.kind_of(request), self.studio.now(), request.summary()
        row, n, fault = self._database.begin_call(kind, summary, when)
        if fault and fault.name == "slow":
            self._pause(fault.seconds)
        visit = ApiCall(request, self.studio, n, fault.name if fault and fault.name in _FATES else "", args)
        done = self._work(route, visit, fault)
        carried_out = done.ok and (fault is None or fault.carried_out)
        answer = _answer(done, fault)
        outcome = _outcome(fault, answer)
        self._database.end_call(row, outcome=outcome, carried_out=carried_out, price=done.price, task_id=done.task_id)
        self._on_call(self._database.call(row))
        return answer

    def bill(self) -> VendorBill:
        return bill(self._database.calls(), self._database.tasks(), self.studio.now())

    def _work(self, route: routes.Route, visit: ApiCall, fault: VendorFault | None) -> Response:
        if fault is None or fault.carried_out:
            return route.handler(visit)
        return html(502) if fault.name in _SILENT else route.vendor.refusal(fault)

    def _control(self, request: Request) -> Response:
        controls: dict[tuple[str, str], Callable[[Request], Response]] = {
            ("GET", "/sandbox/health"): lambda _: Response(
                200, {"sandbox": "retake", "books": self._database.identity}
            ),
            ("GET", "/sandbox/bill"): lambda _: Response(200, self.bill().as_json()),
            ("GET", "/sandbox/calls"): lambda asked: Response(200, self._calls(asked.query.get("kind"))),
            ("GET", "/sandbox/orders"): lambda _: Response(200, [str(order) for order in self._database.orders()]),
            ("POST", "/sandbox/orders"): self._place,
            ("DELETE", "/sandbox/orders"): self._withdraw,
        }
        control = controls.get((request.method, request.path))
        return control(request) if control else Response(404, {"error": f"no {request.method} {request.path} here"})

    def _place(self, request: Request) -> Response:
        try:
            order = parse_order(str(request.fields.get("order", "")))
        except ValueError as wrong:
            return Response(400, {"error": str(wrong)})
        self._database.place(order)
        return Response(201, {"order": str(order)})

    def _withdraw(self, _: Request) -> Response:
        self._database.withdraw_orders()
        return Response(204)

    def _calls(self, kind: str | None) -> list[dict[str, Any]]:
        return [call.as_json() for call in self._database.calls(kind)]


def _answer(done: Response, fault: VendorFault | None) -> Delivery:
    """The answer to a call that was `done`, after its fault."""
    if fault is None or (not done.ok and fault.carried_out):
        return Delivery(done)
    if fault.name in _SILENT:
        return Delivery(hang=fault.name.startswith("hang"))
    if fault.name == "not-json":
        return Delivery(html(200))
    return Delivery(_without_id(done)) if fault.name == "no-id" else Delivery(done)


def _without_id(done: Response) -> Response:
    body = {key: value for key, value in done.body.items() if key not in ("id", "job_id")}
    if isinstance(body.get("data"), dict):
        body["data"] = {key: value for key, value in body["data"].items() if key != "task_id"}
    return Response(done.status, body, headers=done.headers)


def _outcome(fault: VendorFault | None, answer: Delivery) -> str:
    if answer.reply is None:
        return str(fault)
    unseen = fault is not None and fault.name in ("not-json", "no-id", *_FATES)
    return f"{answer.reply.status} {fault}" if unseen and answer.reply.ok else str(answer.reply.status)
