"""The HTTP server of a service: uvicorn in the main thread, on a socket of its own."""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import uvicorn

from retake.errors import RetakeError, SettingsError
from retake.exit_codes import ExitCode
from retake.output import NotWritten, write
from retake.serving.bounded_connection import BoundedConnection
from retake.serving.last_requests import with_last_answers

_log = logging.getLogger(__name__)

BACKLOG = 512
"""Connections that the kernel queues until they are accepted."""
RECORD_EVERY_S = 60.0
"""Seconds between two log records about connections that cannot be accepted."""
GRACE_S = 3
"""Seconds that requests in progress may take once the service stops."""


class PortTaken(RetakeError):
    """Another program listens on the port. Nothing was started."""

    exit_code = ExitCode.TRY_LATER


def listen(host: str, port: int, *, settings: tuple[str, str] = ("--host", "--port")) -> socket.socket:
    """Return a listening socket; clients wait until it is served. Port 0 picks a free port.

    `settings` are the names of host and port in messages. Raises PortTaken, and SettingsError if this machine cannot
    listen there at all.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise SettingsError(f"{settings[0]}: {host} is not a name or address of this machine") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(f"port {port} of {host} is taken: end what listens there, or name another --port") from None
        raise SettingsError(f"{', '.join(settings)}: cannot listen on {host}:{port} ({error.strerror})") from None
    return listener


def address_of(listener: socket.socket, host: str) -> str:
    """Return the URL of the socket under the host name `host`."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def announce(line: str, out: TextIO) -> None:
    """Write `line`, which says where requests are served, to `out`. A failure is only logged; the service goes on."""
    try:
        write(f"{line}\n", out, "this line")
    except NotWritten as error:
        _log.warning("%s (%s)", line, error)


class ApiServer(uvicorn.Server):
    """Serves `app` on `listener` until `signals()`, the number of signals so far, is not 0.

    It then stops without raising the signal again, and requests in progress have `grace_s` seconds to end. `on_start`
    is called once requests are served, `on_stop` when it begins to stop.
    """

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        *,
        signals: Callable[[], int],
        on_start: Callable[[], object] = lambda: None,
        on_stop: Callable[[], None] = lambda: None,
        grace_s: int = GRACE_S,
    ) -> None:
        config = uvicorn.Config(
            with_last_answers(app),
            http=BoundedConnection,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,  # it would contain the query strings
            server_header=False,
            timeout_graceful_shutdown=grace_s,
        )
        super().__init__(config)
        self._listener, self._signals, self._on_start, self._on_stop = listener, signals, on_start, on_stop
        self._next_record_at = 0.0  # by the event loop's clock

    def serve_until_stopped(self) -> None:
        """Serve until stopped."""
        self.run([self._listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._note)
        await super().startup(sockets)
        self._on_start()

    async def on_tick(self, counter: int) -> bool:
        count = self._signals()
        self.should_exit = self.should_exit or count > 0
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        await super().shutdown(sockets)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error of the event loop as its default handler does, but only once a minute that it cannot accept
        connections: it reports that for each place in the backlog, every second."""
        if context["message"] != "socket.accept() out of system resource":
            loop.default_exception_handler(context)
        elif loop.time() >= self._next_record_at:
            self._next_record_at = loop.time() + RECORD_EVERY_S
            error = context["exception"]
            advice = "; raise the limit on open files (ulimit -n)" if error.errno == errno.EMFILE else ""
            _log.error("no further connection is accepted: %s%s", error.strerror, advice)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the process: uvicorn would end it by raising them again."""
        yield
