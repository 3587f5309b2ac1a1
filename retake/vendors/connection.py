"""The connection of one call, which can be cut from another thread and knows whether the request may have left.

requests and urllib3 bound each read, not a call: a server that sends a byte now and then holds them for ever. So a call
runs in a thread of its own, and whoever waits for it cuts its connection when its time is over.
"""

import http.client
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from ssl import SSLContext
from threading import Lock, Thread
from typing import Any, TypeVar

from requests import PreparedRequest
from requests.adapters import HTTPAdapter

T = TypeVar("T")


class Overdue(Exception):
    """A call was not done in time, and was cut. `sent` tells whether the other side may have seen the request."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__("the call was not done in time")
        self.sent = sent


class Line:
    """What one call is connected through. Once it is cut, nothing can be sent on it any more."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_cut = False
        self._is_open = False
        self._sockets: list[socket.socket] = []

    @property
    def is_open(self) -> bool:
        """Whether the connection was made, TLS and a proxy's tunnel included: a request may have left since."""
        return self._is_open

    def hold(self, connection: socket.socket) -> None:
        """Have `connection` shut down by `cut`. Raises TimeoutError if the line is cut already."""
        with self._lock:
            self._check()
            # A copy of the descriptor: the socket object itself changes hands when TLS is put on top of it.
            self._sockets.append(socket.socket(fileno=os.dup(connection.fileno())))

    def opened(self) -> None:
        """The connection is made, and the request follows. Raises TimeoutError if the line is cut already."""
        with self._lock:
            self._check()
            self._is_open = True

    def cut(self) -> None:
        """End whatever is under way. What is not open now never will be."""
        with self._lock:
            self._is_cut = True
            for connection in self._sockets:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the copied descriptors."""
        with self._lock:
            self._is_cut = True
            for connection in self._sockets:
                connection.close()
            self._sockets.clear()

    def _check(self) -> None:
        if self._is_cut:
            raise TimeoutError("the call is over")


def within(timeout_s: float, work: Callable[[Line], T]) -> T:
    """What `work` returns, in a thread of its own, if it does so within `timeout_s` seconds. Raises what it raises.

    Otherwise its line is cut, and Overdue raised at once, also where `work` hangs in what cannot be cut (a name server
    that does not answer): that thread is left behind, and cannot send anything any more. An exception in the thread
    that waits, such as KeyboardInterrupt, cuts the line too.
    """
    line = Line()
    outcome: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            result: tuple[T | None, BaseException | None] = (work(line), None)
        except BaseException as error:  # noqa: BLE001 (it is raised where the outcome is waited for)
            result = (None, error)
        line.close()
        outcome.put(result)

    try:
        Thread(target=run, name="vendor call", daemon=True).start()
        try:
            value, error = outcome.get(timeout=timeout_s)
        except Empty:
            line.cut()
            # It may have come in the same moment, and an answer to a paid call is worth having.
            value, error = outcome.get_nowait()
    except Empty:
        raise Overdue(sent=line.is_open) from None
    except RuntimeError:  # no room for one more thread
        raise Overdue(sent=False) from None
    finally:
        line.cut()
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # there is a value where there is no error


class LineAdapter(HTTPAdapter):
    """Sends one call on a connection of its own, which `line` can cut, and which trusts what `tls` trusts."""

    def __init__(self, line: Line, tls: SSLContext) -> None:
        self._line = line
        self._tls = tls
        super().__init__(pool_connections=1, pool_maxsize=1)

    def build_connection_pool_key_attributes(
        self, request: PreparedRequest, verify: Any, cert: Any = None
    ) -> tuple[Any, Any]:
        """The pool's settings: our own trust in place of requests'."""
        where, _ = super().build_connection_pool_key_attributes(request, True)
        return where, {"ssl_context": self._tls, "cert_reqs": "CERT_REQUIRED"}

    def cert_verify(self, *_: Any, **__: Any) -> None:
        """Nothing to do: `build_connection_pool_key_attributes` has said what is trusted."""

    def proxy_manager_for(self, proxy: str, **settings: Any) -> Any:
        """The pool of `proxy`; one that is spoken to over TLS is held to the same trust."""
        if proxy.lower().startswith("https:"):
            settings["proxy_ssl_context"] = self._tls
        return super().proxy_manager_for(proxy, **settings)

    def get_connection_with_tls_context(self, *args: Any, **settings: Any) -> Any:
        """The pool for a request, which makes connections on our line."""
        pool: Any = super().get_connection_with_tls_context(*args, **settings)
        pool.ConnectionCls = _on(self._line, pool.ConnectionCls)
        return pool


def _on(line: Line, kind: Any) -> Any:
    """The connection class `kind`, on `line`."""

    class Connection(kind):  # type: ignore[misc]
        response_class = _FinalResponse

        def _new_conn(self) -> Any:
            connection = super()._new_conn()
            try:
                line.hold(connection)
            except TimeoutError:
                connection.close()
                raise
            return connection

        def connect(self) -> None:
            super().connect()
            # urllib3 would give the whole request the time of connecting, too little for a picture on a slow line. What
            # is sent is bounded by the line, which is cut.
            self.sock.settimeout(None)
            line.opened()

    return Connection


class _FinalResponse(http.client.HTTPResponse):
    """Passes over every interim answer (RFC 9110, 15.2), such as 103 Early Hints; http.client knows 100 alone, and
    takes any other for the answer itself."""

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        return version, http.client.CONTINUE if 102 <= status < 200 else status, reason
