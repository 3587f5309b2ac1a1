"""A stand-in for ComfyUI over HTTP and WebSocket on loopback, which fails on demand.

    with ComfySandbox(pace=0) as comfy:
        comfy.order("comfy.prompt#1=cut-after")     # executed, but the answer is lost
        ...                                         # run a program against comfy.url
        assert comfy.executions()[prompt_id] == 1

It executes one prompt at a time and keeps everything in memory. A prompt's PNG shows the prompt's text, and contains
the graph in its text chunk "prompt". From the shell: python -m retake.sandbox comfyui --help
"""

import socket
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from retake.sandbox.comfyui_api import ComfyApi, plain_error
from retake.sandbox.comfyui_engine import ComfyEngine, ComfyExecution
from retake.sandbox.comfyui_graph import refusal
from retake.sandbox.comfyui_orders import PROMPT_FAULTS, SERVER_FAULTS, parse_order
from retake.sandbox.comfyui_socket import ComfySocket
from retake.sandbox.http_messages import Request, Response, gateway_page
from retake.sandbox.orders import SILENT_FAULTS, Order, PlacedOrders, VendorFault
from retake.sandbox.request_handler import ResponseDelivery, control
from retake.sandbox.server import HOST, Server

_MAX_CALLS = 100_000


class ComfyCall(NamedTuple):
    """One call that a client made."""

    kind: str
    path: str
    outcome: str  # the status of the answer, or the fault of a call that was not answered


class ComfySandbox:
    """Serves on a loopback port (0: any free one), or on another address `host`, as a context manager. Raises OSError
    if the port is taken.

    `pace` is how many seconds an execution takes. `on_call` is called with each call that has ended, in the server's
    threads.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        host: str = HOST,
        pace: float = 1.0,
        on_call: Callable[[ComfyCall], object] = lambda call: None,
    ) -> None:
        self._closing = threading.Event()
        self._server = Server(port, self._receive, self._closing, host=host)
        self.url = f"http://{host}:{self._server.port}"
        self._engine, self._on_call = ComfyEngine(pace), on_call
        self._api = ComfyApi(self._engine)
        self._lock = threading.Lock()
        self._calls: deque[ComfyCall] = deque(maxlen=_MAX_CALLS)
        self._orders = PlacedOrders(parse_order)

    def __enter__(self) -> Self:
        self._engine.start()
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._engine.close()
        self._server.close()

    def order(self, text: str) -> Order:
        """Place an order (grammar: comfyui_orders.py); the newest that matches a call applies. Raises ValueError."""
        return self._orders.place(text)

    def withdraw_orders(self) -> None:
        self._orders.withdraw()

    def restart(self) -> None:
        """Forget queue and history, and cut every WebSocket, as a restart of the server does."""
        self._engine.restart()

    def calls(self, kind: str | None = None) -> list[ComfyCall]:
        """Return the calls that have ended so far, or those of `kind`."""
        with self._lock:
            return [call for call in self._calls if kind in (None, call.kind)]

    def started(self) -> list[ComfyExecution]:
        """Return every execution so far, in the order in which they started."""
        with self._engine.changed:
            return [*self._engine.executions]

    def executions(self) -> Counter[str]:
        """Return how often each prompt was executed, by prompt_id."""
        return Counter(it.prompt_id for it in self.started())

    def until(self, happened: Callable[[], Any], timeout_s: float = 10.0) -> bool:
        """Wait until `happened()` is true, checked after each submission, start and end; return whether it became true.

        The server answers nothing during a check, so `happened` must not ask it anything.
        """
        with self._engine.changed:
            return bool(self._engine.changed.wait_for(happened, timeout_s))

    def _receive(self, request: Request) -> ResponseDelivery:
        if request.path.startswith("/sandbox/"):
            return ResponseDelivery(self._control(request))
        is_socket = request.path.removeprefix("/api") == "/ws"
        kind, answer = ("comfy.ws", None) if is_socket else self._api.find(request)
        fault = self._orders.fault(kind)
        if fault and fault.name == "slow":
            self._closing.wait(fault.seconds)
        if fault and fault.name in SERVER_FAULTS and kind != "comfy.prompt":
            self._engine.restart() if fault.name == "restart" else self._engine.sockets.cut()
        done = _carry_out(kind, answer, fault)
        delivery = self._delivery(request, done, fault)
        outcome = "101" if delivery.upgrade else str(delivery.response.status if delivery.response else fault)
        call = ComfyCall(kind, request.path, outcome)
        with self._lock:
            self._calls.append(call)
        self._on_call(call)
        return delivery

    def _control(self, request: Request) -> Response:
        """Answer a test in another process: GET /sandbox/executions, /sandbox/calls or /sandbox/orders, POST
        /sandbox/restart, POST or DELETE /sandbox/orders."""
        if (request.method, request.path) == ("POST", "/sandbox/restart"):
            self.restart()
            return Response(204)
        answers: dict[str, Callable[[], Any]] = {
            "executions": lambda: [vars(it) for it in self.started()],
            "calls": lambda: [it._asdict() for it in self.calls(request.query.get("kind"))],
            "orders": self._orders.texts,
        }
        return control(request, answers, self.order, self.withdraw_orders)

    def _delivery(self, request: Request, done: Response | None, fault: VendorFault | None) -> ResponseDelivery:
        if fault and fault.name in SILENT_FAULTS:
            return ResponseDelivery(hang=fault.name.startswith("hang"))
        if fault and fault.name == "not-json":
            return ResponseDelivery(gateway_page(200))
        if done is None:
            cut = fault is not None and fault.name in SERVER_FAULTS
            return ResponseDelivery(upgrade=lambda connection: self._follow(connection, request, cut))
        if fault and fault.name == "no-id" and done.ok:
            return ResponseDelivery(
                Response(done.status, {it: value for it, value in done.body.items() if it != "prompt_id"})
            )
        return ResponseDelivery(done)

    def _follow(self, connection: socket.socket, request: Request, cut: bool) -> None:
        """Serve a WebSocket until it ends; `cut` ends it at once."""
        one = ComfySocket(request.query.get("clientId", ""))
        try:
            one.open(connection, request, lambda: self._engine.sockets.add(one))
            if cut:
                one.cut()
            one.tell("status", {"status": self._engine.remaining(), "sid": one.client_id})
            one.follow(connection)
        finally:
            self._engine.sockets.remove(one)


def _carry_out(kind: str, answer: Callable[..., Response] | None, fault: VendorFault | None) -> Response | None:
    """Return the answer to a call, or None to open a WebSocket."""
    if fault is None or fault.carried_out:
        if answer is None:
            return None
        ending = fault.name if fault and fault.name in (*PROMPT_FAULTS, *SERVER_FAULTS) else ""
        return answer(fault=ending) if kind == "comfy.prompt" else answer()
    if fault.html or fault.name in SILENT_FAULTS:
        return gateway_page(fault.status or 502)
    if kind == "comfy.prompt":
        return Response(fault.status, refusal("ordered", f"an error {fault.status} was ordered"))
    return plain_error(fault.status)
