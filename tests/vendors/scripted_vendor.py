"""A vendor that does exactly what a test says: a loopback server on real sockets, one scripted act a request."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

WAIT_S = 5.0  # how long an act may keep a test that forgot it


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
    """Answer with `body` (JSON if it is an object or list); header names are written with «_» for «-»."""
    if isinstance(body, (dict, list)):
        headers.setdefault("Content_Type", "application/json")
        body = json.dumps(body)
    data = body.encode() if isinstance(body, str) else body
    headers.setdefault("Content_Length", str(len(data)))
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    answer = f"HTTP/1.1 {status} Whatever\r\n{lines}Connection: close\r\n\r\n".encode() + data
    return lambda connection, _stop: connection.sendall(answer)


def page(status: int) -> Act:
    """Answer with a page of HTML, as gateways do."""
    return says(status, "<html><body>nginx</body></html>", Content_Type="text/html")


def cut(connection: socket.socket, _stop: threading.Event) -> None:
    """Reset the connection without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def cut_midway(connection: socket.socket, _stop: threading.Event) -> None:
    """Promise a hundred bytes, send ten, and close."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 100\r\n\r\n" + b"0123456789")


def hang(_connection: socket.socket, stop: threading.Event) -> None:
    """Say nothing until the test is over."""
    stop.wait(WAIT_S)


def drip(connection: socket.socket, stop: threading.Event) -> None:
    """Answer a byte at a time, for ever, never silent for long."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 1000000\r\n\r\n")
    for _ in range(int(WAIT_S / 0.02)):
        if stop.wait(0.02):
            return
        connection.sendall(b"x")


@dataclass
class ScriptedVendor:
    """Serves `script`, an act a request; a request beyond its end is cut, so that a retry cannot pass unseen."""

    script: list[Act] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        self._stop.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in (self._accepting, *self._threads):
            thread.join(WAIT_S)

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(WAIT_S)
            try:
                self.seen.append(_read(connection))
                act = self.script.pop(0) if self.script else cut
                act(connection, self._stop)
            except (OSError, ValueError):
                pass  # the client went away, perhaps without a request: that is its right


def _read(connection: socket.socket) -> Seen:
    with connection.makefile("rb") as stream:
        method, target, _ = stream.readline().decode("latin-1").split(" ", 2)
        headers: dict[str, str] = {}
        while line := stream.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return Seen(method, target, headers, stream.read(int(headers.get("content-length", 0))))


def eventually(happened: Callable[[], bool]) -> bool:
    """Whether `happened` within a few seconds: for what another thread does after the client has gone."""
    waiting = threading.Event()
    return any(happened() or waiting.wait(0.01) for _ in range(int(WAIT_S / 0.01)))


def closed_port() -> str:
    """The URL of a port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"
