"""A client's WebSocket to the stand-in for ComfyUI, on a connection that the HTTP server has handed over."""

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from websockets.exceptions import InvalidState
from websockets.protocol import State
from websockets.server import ServerProtocol

from retake.sandbox.http_messages import Request

_SEND_TIMEOUT_S = 5.0  # a client that reads nothing for that long is cut
_RECEIVED_LIMIT = 2**20  # bytes in a message from the client


class ComfySocket:
    """Sends events to the client `client_id`. Thread safe."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self._protocol = ServerProtocol(max_size=_RECEIVED_LIMIT)
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()

    def open(self, connection: socket.socket, request: Request, opening: Callable[[], object]) -> None:
        """Answer the handshake. `opening` is called before; no event that is sent afterwards is lost."""
        connection.settimeout(_SEND_TIMEOUT_S)
        with self._lock:
            opening()
            self._connection = connection
            self._protocol.receive_data(_handshake(request))
            asked = self._protocol.events_received()
            self._protocol.send_response(self._protocol.accept(asked[0]))  # type: ignore[arg-type]  # the handshake
            self._flush(connection)

    def follow(self, connection: socket.socket) -> None:
        """Read until the connection ends."""
        while self._protocol.state is not State.CLOSED and self._read(connection):
            pass

    def tell(self, event: str, data: dict[str, Any]) -> None:
        """Send an event, unless the connection has ended."""
        self._send(lambda: self._protocol.send_text(json.dumps({"type": event, "data": data}).encode()))

    def preview(self, image: bytes) -> None:
        """Send a binary frame with a preview (JPEG), unless the connection has ended."""
        self._send(lambda: self._protocol.send_binary(b"\0\0\0\x01\0\0\0\x01" + image))

    def cut(self) -> None:
        """Close the connection without the closing handshake."""
        if self._connection:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def _send(self, write: Callable[[], None]) -> None:
        with self._lock:
            if self._connection is None or self._protocol.state is not State.OPEN:
                return
            try:
                write()
                self._flush(self._connection)
            except (OSError, InvalidState):
                self.cut()

    def _read(self, connection: socket.socket) -> bool:
        """Read once; return whether the connection is still open."""
        try:
            data = connection.recv(2**16)
        except TimeoutError:
            return True
        except OSError:
            return False
        with self._lock, suppress(OSError):
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            self._protocol.events_received()
            self._flush(connection)
        return bool(data)

    def _flush(self, connection: socket.socket) -> None:
        for data in self._protocol.data_to_send():
            if data:
                connection.sendall(data)
            else:
                connection.shutdown(socket.SHUT_WR)


def _handshake(request: Request) -> bytes:
    lines = [f"{request.method} {request.target} HTTP/1.1", *(f"{name}: {it}" for name, it in request.headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


class ComfySockets:
    """The open WebSockets. Thread safe."""

    def __init__(self) -> None:
        self._open: list[ComfySocket] = []
        self._lock = threading.Lock()

    def add(self, one: ComfySocket) -> None:
        """Send events to `one` from now on, and no longer to the client's earlier WebSocket, as ComfyUI does."""
        with self._lock:
            self._open = [it for it in self._open if it.client_id != one.client_id] + [one]

    def remove(self, one: ComfySocket) -> None:
        with self._lock:
            self._open = [it for it in self._open if it is not one]

    def of(self, client_id: str | None = None) -> list[ComfySocket]:
        """Return the WebSockets of a client (None: of all clients)."""
        with self._lock:
            return [it for it in self._open if client_id in (None, it.client_id)]

    def cut(self) -> None:
        """Cut every connection."""
        for one in self.of():
            one.cut()
