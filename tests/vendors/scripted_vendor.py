"""A scripted vendor: a loopback server on real sockets that performs one act per request."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loopback import LoopbackServer

WAIT_S = 120.0  # limits an act that the test forgot to end
LONG_S = 60.0  # a guard against hanging, not a measurement


@dataclass(frozen=True)
class Seen:
    """A request as it arrived. Header names are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Act = Callable[[socket.socket, threading.Event], None]


def says(status: int, body: bytes | str | dict | list = b"", **headers: str) -> Act:
    """Answer with `body` (JSON if it is an object or list); write header names with `_` instead of `-`."""
    if isinstance(body, (dict, list)):
        headers.setdefault("Content_Type", "application/json")
        body = json.dumps(body)
    data = body.encode() if isinstance(body, str) else body
    headers.setdefault("Content_Length", str(len(data)))
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    answer = f"HTTP/1.1 {status} Whatever\r\n{lines}Connection: close\r\n\r\n".encode() + data
    return lambda connection, _stop: connection.sendall(answer)


def page(status: int) -> Act:
    """Answer with an HTML page, as gateways do."""
    return says(status, "<html><body>nginx</body></html>", Content_Type="text/html")


def cut(connection: socket.socket, _stop: threading.Event) -> None:
    """Reset the connection without an answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def cut_midway(connection: socket.socket, _stop: threading.Event) -> None:
    """Announce a hundred bytes, send ten, and close."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 100\r\n\r\n" + b"0123456789")


def hang(_connection: socket.socket, stop: threading.Event) -> None:
    """Send nothing until the test is over."""
    stop.wait(WAIT_S)


def drip(connection: socket.socket, stop: threading.Event) -> None:
    """Send an answer byte by byte, for ever, never pausing for long."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 1000000\r\n\r\n")
    for _ in range(int(WAIT_S / 0.02)):
        if stop.wait(0.02):
            return
        connection.sendall(b"x")


class ScriptedVendor(LoopbackServer):
    """Serves `script`, one act per request; a request beyond its end is cut, so no retry goes unnoticed."""

    def __init__(self) -> None:
        self.script: list[Act] = []
        self.seen: list[Seen] = []
        super().__init__(WAIT_S)

    def serve(self, connection: socket.socket, stop: threading.Event) -> None:
        self.seen.append(_read(connection))
        act = self.script.pop(0) if self.script else cut
        act(connection, stop)


def _read(connection: socket.socket) -> Seen:
    with connection.makefile("rb") as stream:
        method, target, _ = stream.readline().decode("latin-1").split(" ", 2)
        headers: dict[str, str] = {}
        while line := stream.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return Seen(method, target, headers, stream.read(int(headers.get("content-length", 0))))


def closed_port() -> str:
    """Return the URL of a port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"
