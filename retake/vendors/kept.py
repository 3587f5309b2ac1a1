"""Connections that stay open between free queries, for a tick that queries one vendor thousands of times.

Free queries only: a server may close a connection just when it is reused, and the outcome of a paid call would be
unknown. A query on a connection that turns out to be closed is sent once more on a new one.

Unlike in http.py, no thread is started for a query. Half of its time is the limit of each wait for a piece of the
answer, the other half the limit of all pieces but the last.
"""

import http.client
import json as json_format
import socket
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from io import BufferedReader, RawIOBase
from threading import Lock
from time import monotonic
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from retake.errors import Code
from retake.vendors.answers import NoReply, Reply
from retake.vendors.certificates import trusted
from retake.vendors.http import CONNECT_TIMEOUT_S, Cutter, Overdue, bare, unpacked, within
from retake.vendors.polls import is_plain
from retake.vendors.route import FinalResponse, has_proxy

_CLOSED = (http.client.RemoteDisconnected, ConnectionError)
"""Raised when using a connection that its server has closed in the meantime."""


class KeptConnections:
    """Connections to any servers, each used by one thread at a time. Thread-safe."""

    def __init__(self) -> None:
        self._idle: dict[str, list[_KeptConnection]] = defaultdict(list)
        self._direct: dict[str, bool] = {}
        self._lock = Lock()

    def reaches(self, url: str) -> bool:
        """Return whether `url` can be queried here: not through a proxy, nor at a URL that needs encoding or may be
        invalid."""
        if not is_plain(url):
            return False
        origin = _origin(urlsplit(url))
        if origin not in self._direct:
            self._direct[origin] = not has_proxy(url)
        return self._direct[origin]

    def exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        timeout_s: float,
        limit: int,
        **content: Any,
    ) -> Reply:
        """Send a free query and return the whole answer, like `retake.vendors.http.exchange`.

        `content` is `json` or `params`. Raises NoReply.
        """
        parts = urlsplit(url)
        request = _request(method, parts, headers, **content)
        try:
            with self._lock:
                idle = self._idle[_origin(parts)]
                connection = idle.pop() if idle else None
            if connection:
                with suppress(*_CLOSED):
                    return self._asked(connection, method, request, limit)
            return self._asked(_connected(parts, timeout_s), method, request, limit)
        except (TimeoutError, Overdue):
            raise NoReply(Code.TIMEOUT, f"no answer within {timeout_s:g} s", sent=True) from None
        except (http.client.HTTPException, OSError, ValueError):
            raise NoReply(Code.NETWORK, f"the connection to {bare(url)} failed", sent=True) from None

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            for connections in self._idle.values():
                while connections:
                    connections.pop().close()

    def _asked(self, connection: "_KeptConnection", method: str, request: bytes, limit: int) -> Reply:
        kept = False
        try:
            reply, kept = connection.ask(method, request, limit)
        finally:
            if not kept:
                connection.close()
        if kept:
            with self._lock:
                self._idle[connection.origin].append(connection)
        return reply


class _KeptConnection(RawIOBase):
    """One connection, read as a file whose reads time out."""

    def __init__(self, origin: str, stream: socket.socket, timeout_s: float) -> None:
        self.origin = origin
        self._stream, self._piece_s, self._until = stream, timeout_s / 2, 0.0
        stream.settimeout(self._piece_s)
        self._reader = _LastingReader(self)

    def ask(self, method: str, request: bytes, limit: int) -> tuple[Reply, bool]:
        """Return the answer, and whether the connection can be reused."""
        self._until = monotonic() + self._piece_s
        self._stream.sendall(request)
        # Closed explicitly: garbage collection would close it after the connection, which fails, and Python 3.13 and
        # later report that.
        with FinalResponse(self, method=method) as response:  # type: ignore[arg-type]  # it only calls `makefile`
            response.begin()
            body = response.read(limit + 1)
            if response.length and len(body) <= limit:  # http.client accepts a truncated body
                raise http.client.IncompleteRead(body, response.length)
            if len(body) > limit:
                raise NoReply(Code.BAD_ANSWER, "the answer is too large", sent=True)
            body = b"".join(unpacked([body], response.headers.get("Content-Encoding", ""), limit))
            reply = Reply(response.status, response.headers, body)  # type: ignore[arg-type]  # a mapping all the same
            return reply, response.isclosed() and not response.will_close

    def makefile(self, mode: str) -> "_LastingReader":
        """Return the file from which http.client reads the answer."""
        return self._reader

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if monotonic() > self._until:
            raise TimeoutError
        return self._stream.recv_into(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()


class _LastingReader(BufferedReader):
    """A reader that stays open when http.client closes it at the end of an answer."""

    def close(self) -> None:
        """Do nothing."""


def _origin(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc}"


def _request(method: str, parts: SplitResult, headers: Mapping[str, str], **content: Any) -> bytes:
    """Return the whole request, to be sent at once. Raises ValueError for anything that HTTP cannot carry."""
    path = parts.path or "/"
    if query := "&".join(filter(None, (parts.query, urlencode(content.get("params") or {})))):
        path = f"{path}?{query}"
    lines = [f"{method} {path} HTTP/1.1", f"Host: {parts.netloc}", "Accept-Encoding: identity"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    body = b""
    if content.get("json") is not None:
        body = json_format.dumps(content["json"]).encode()
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    if any("\r" in line or "\n" in line for line in lines) or " " in path:
        raise ValueError(path)
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def _connected(parts: SplitResult, timeout_s: float) -> _KeptConnection:
    """Open a connection. Raises OSError, Overdue."""
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)

    def connect(cutter: Cutter) -> socket.socket:
        stream = socket.create_connection((host, port), CONNECT_TIMEOUT_S)
        cutter.watch(stream)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return trusted().wrap_socket(stream, server_hostname=host) if parts.scheme == "https" else stream

    return _KeptConnection(_origin(parts), within(min(timeout_s, 2 * CONNECT_TIMEOUT_S), connect), timeout_s)
