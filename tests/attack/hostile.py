"""A server that misbehaves on purpose: raw sockets on loopback, one act per connection."""

import gzip
import json
import socket
import threading
import zlib
from collections.abc import Callable
from typing import Any

from loopback import LoopbackServer

PATIENCE_S = 120.0
"""How long an act lasts: far longer than any call may take, so a caller that waits for it is noticed."""

Act = Callable[[socket.socket, threading.Event], None]
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


class Hostile(LoopbackServer):
    """Performs `act` on every connection. `seen` holds the first lines of the requests."""

    def __init__(self, act: Act, *, reads: bool = True) -> None:
        self.seen: list[str] = []
        self._act, self._reads = act, reads
        super().__init__(PATIENCE_S)

    def serve(self, connection: socket.socket, stop: threading.Event) -> None:
        if self._reads:
            self.seen.append(read_request(connection).partition(b"\r\n")[0].decode("latin-1"))
        self._act(connection, stop)


def read_request(connection: socket.socket) -> bytes:
    """Return the whole request: head and body."""
    with connection.makefile("rb") as stream:
        head, length = b"", 0
        while line := stream.readline():
            head += line
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
            if line == b"\r\n":
                break
        return head + stream.read(length)


# --- acts ---------------------------------------------------------------------------------------------------------


def says(data: bytes) -> Act:
    """Send `data` as it is, and close."""
    return lambda connection, _stop: connection.sendall(data)


def answers(body: object, status: int = 200, head: bytes = b"") -> Act:
    """Send a valid answer with a JSON (or bytes) `body` and the additional headers in `head`."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = b"" if b"content-type" in head.lower() else b"Content-Type: application/json\r\n"
    size = b"" if b"content-length" in head.lower() else b"Content-Length: %d\r\n" % len(data)
    return says(b"HTTP/1.1 %d Whatever\r\n" % status + kind + size + head + b"\r\n" + data)


def silent(_connection: socket.socket, stop: threading.Event) -> None:
    """Send nothing at all."""
    stop.wait(PATIENCE_S)


def drips(before: bytes, piece: bytes, pause_s: float = 0.02) -> Act:
    """Send `before`, then `piece` again and again, never pausing for long."""

    def act(connection: socket.socket, stop: threading.Event) -> None:
        connection.sendall(before)
        for _ in range(int(PATIENCE_S / pause_s)):
            if stop.wait(pause_s):
                return
            connection.sendall(piece)

    return act


def pours(before: bytes, piece: bytes, most: int = 10**10) -> Act:
    """Send `before`, then `piece` as fast as it is read."""

    def act(connection: socket.socket, stop: threading.Event) -> None:
        connection.sendall(before)
        for _ in range(most):
            if stop.is_set():
                return
            connection.sendall(piece)

    return act


def proxies_late(target_port: int, delay_s: float) -> Act:
    """Proxy the request, but hold it back for a while before passing it on."""

    def act(_connection: socket.socket, stop: threading.Event) -> None:
        stop.wait(delay_s)
        with socket.create_connection(("127.0.0.1", target_port)) as onward:
            onward.sendall(b"POST /late HTTP/1.1\r\nContent-Length: 0\r\n\r\n")

    return act


# --- bombs --------------------------------------------------------------------------------------------------------


def gzip_bomb(megabytes: int) -> bytes:
    """Return a gzip stream of so many megabytes of zeros, a thousandth of that in size. Its checksum is wrong."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)  # self-contained, so it can be repeated
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + piece * megabytes + packer.flush() + bytes(8)


def packed(body: Any) -> bytes:
    return gzip.compress(json.dumps(body).encode())
