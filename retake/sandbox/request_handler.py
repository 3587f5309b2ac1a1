"""Handles a request from start to end: records it, applies the fault ordered for it, and lets its vendor answer."""

import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from retake.sandbox import routes, telegram, youtube
from retake.sandbox.billing import bill
from retake.sandbox.database import RecordedCall
from retake.sandbox.http_messages import Request, Response, gateway_page
from retake.sandbox.orders import SILENT_FAULTS, TASK_FAULTS, UPLOAD_FAULTS, Order, VendorFault, parse_order
from retake.sandbox.task_service import ApiCall, TaskService

_CONTROLS = {**telegram.CONTROLS, **youtube.CONTROLS}


class ResponseDelivery(NamedTuple):
    """What the server does with the connection: send `response` or, without one, close it, leave it open (`hang`), or
    hand it to `upgrade`, which speaks another protocol until it ends."""

    response: Response | None = None
    hang: bool = False
    upgrade: Callable[[socket.socket], None] | None = None


class RequestHandler:
    """Handles the requests of one sandbox. Thread safe.

    `pause(seconds)` waits in real time, for slow answers; `on_call` is called with every call that has ended.
    """

    def __init__(
        self, service: TaskService, pause: Callable[[float], object], on_call: Callable[[RecordedCall], object]
    ) -> None:
        self._service, self._database, self._pause, self._on_call = service, service.database, pause, on_call

    def receive(self, request: Request) -> ResponseDelivery:
        if request.path.startswith("/sandbox/"):
            return ResponseDelivery(self._control(request))
        route, args = routes.find(request)
        row, n, fault = self._database.begin_call(route.kind_of(request), request.summary(), self._service.now())
        if fault and fault.name == "slow":
            self._pause(fault.seconds)
        task_fault = fault.name if fault and fault.name in (*TASK_FAULTS, *UPLOAD_FAULTS) else ""
        done = _carry_out(route, ApiCall(request, self._service, n, task_fault, args), fault)
        carried_out = done.ok and (fault is None or fault.carried_out)
        delivery = _delivery(done, fault)
        self._on_call(self._database.end_call(row, _outcome(fault, delivery), carried_out, done.price, done.task_id))
        return delivery

    def _control(self, request: Request) -> Response:
        control_of = _CONTROLS.get(f"{request.method} {request.path.removeprefix('/sandbox/')}")
        if control_of:
            return control_of(self._service, request)
        database = self._database
        answers: dict[str, Callable[[], Any]] = {
            "health": lambda: {"sandbox": "retake", "books": database.identity},
            "bill": lambda: bill(database.calls(), database.tasks(), self._service.now()).as_json(),
            "calls": lambda: [call.as_json() for call in database.calls(request.query.get("kind"))],
            "orders": lambda: [str(order) for order in database.orders()],
        }
        return control(request, answers, self._place_order, database.clear_orders)

    def _place_order(self, text: str) -> Order:
        order = parse_order(text)
        self._database.add_order(order)
        return order


def control(
    request: Request,
    answers: Mapping[str, Callable[[], Any]],
    place_order: Callable[[str], Order],
    withdraw_orders: Callable[[], object],
) -> Response:
    """Answer a test in another process: GET /sandbox/NAME, POST or DELETE /sandbox/orders."""
    name = request.path.removeprefix("/sandbox/")
    if request.method == "GET" and name in answers:
        return Response(200, answers[name]())
    if (request.method, name) == ("DELETE", "orders"):
        withdraw_orders()
        return Response(204)
    if (request.method, name) != ("POST", "orders"):
        return Response(404, {"error": f"no {request.method} {request.path} here"})
    try:
        return Response(201, {"order": str(place_order(str(request.fields.get("order", ""))))})
    except ValueError as error:
        return Response(400, {"error": str(error)})


def _carry_out(route: routes.Route, call: ApiCall, fault: VendorFault | None) -> Response:
    if fault is None or fault.carried_out:
        return route.api.reject(call.request) or route.handler(call)
    return gateway_page(502) if fault.name in SILENT_FAULTS else route.api.refusal(fault)


def _delivery(done: Response, fault: VendorFault | None) -> ResponseDelivery:
    if fault is None or (not done.ok and fault.carried_out):
        return ResponseDelivery(done)
    if fault.name in SILENT_FAULTS:
        return ResponseDelivery(hang=fault.name.startswith("hang"))
    if fault.name == "not-json":
        return ResponseDelivery(gateway_page(200))
    return ResponseDelivery(_without_id(done)) if fault.name == "no-id" else ResponseDelivery(done)


def _without_id(done: Response) -> Response:
    body = {key: value for key, value in done.body.items() if key not in ("id", "job_id")}
    if isinstance(body.get("data"), dict):
        body["data"] = {key: value for key, value in body["data"].items() if key != "task_id"}
    return Response(done.status, body, headers=done.headers)


def _outcome(fault: VendorFault | None, delivery: ResponseDelivery) -> str:
    if delivery.response is None:
        return str(fault)
    status, hidden = delivery.response.status, fault is not None and fault.name in ("not-json", "no-id", *TASK_FAULTS)
    return f"{status} {fault}" if hidden and delivery.response.ok else str(status)
