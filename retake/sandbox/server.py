"""The HTTP server of a sandbox, on real loopback sockets, so that they can be closed early or left hanging."""

import select
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from retake.sandbox.http_messages import Request
from retake.sandbox.request_handler import ResponseDelivery

HOST = "127.0.0.1"
BODY_LIMIT = 64_000_000  # bytes
HANG_LIMIT_S = 600.0  # the longest time that a client is left without an answer


class Server(ThreadingHTTPServer):
    """Serves `receive` on a port (0: any free one) of `host`, in a thread of its own, until it is closed.

    `closing` is set when it closes, for code that waits on behalf of a client. `now` gives the time of the Date header
    in seconds since the epoch. Raises OSError if the port is taken.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        port: int,
        receive: Callable[[Request], ResponseDelivery],
        closing: threading.Event,
        now: Callable[[], float] = time.time,
        host: str = HOST,
    ) -> None:
        self.receive, self.closing, self.now = receive, closing, now
        self._open: dict[socket.socket, threading.Thread] = {}
        self._guard = threading.Lock()
        super().__init__((host, port), _HttpHandler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="sandbox", daemon=True)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def server_bind(self) -> None:
        # HTTPServer.server_bind looks up this machine's name, which can take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.port

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Close every connection, and return when all threads of this server have ended."""
        self.closing.set()
        self.shutdown()
        self.server_close()
        with self._guard:
            connections = dict(self._open)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in (*connections.values(), self._thread):
            thread.join(timeout=30)

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        with self._guard:
            self._open[request] = thread
        thread.start()

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report bugs in the sandbox; a client that disconnects is not an error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _HttpHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "retake-sandbox", ""
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body are sent together
    server: Server

    def do_GET(self) -> None:
        body = self._body()
        if body is None:
            return
        request = Request(self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        delivery = self.server.receive(request)
        response = delivery.response
        if delivery.upgrade is not None:
            self.close_connection = True
            delivery.upgrade(self.connection)
            return
        if response is None:
            self._withhold(delivery.hang)
            return
        payload = response.payload()
        self.send_response(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value)
        if response.status != 204:
            self.send_header("Content-Type", response.type)
            self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(payload)

    do_POST = do_PUT = do_DELETE = do_HEAD = do_GET  # noqa: N815 – names that BaseHTTPRequestHandler looks up

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(self.server.now() if timestamp is None else timestamp, usegmt=True)

    def log_message(self, *_: Any) -> None:
        """Log nothing: the sandbox records its calls, and headers may contain keys."""

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "0")
        if not length.isascii() or not length.isdigit() or "Transfer-Encoding" in self.headers:
            self.send_error(411)
        elif int(length) > BODY_LIMIT:
            self.send_error(413)
        else:
            return self.rfile.read(int(length))
        self.close_connection = True
        return None

    def _withhold(self, hang: bool) -> None:
        """Send nothing; with `hang`, keep the connection open until the client or the server closes it."""
        self.close_connection = True
        until = time.monotonic() + HANG_LIMIT_S
        while hang and time.monotonic() < until and not self.server.closing.is_set():
            readable, _, _ = select.select([self.connection], [], [], 0.05)
            try:
                hang = not readable or bool(self.connection.recv(1, socket.MSG_PEEK))
            except OSError:
                return
