"""The events that a ComfyUI server pushes over its WebSocket, for `ComfyUI.wait`: only that a prompt has ended.

They are bounded like every call: the opening in time, each message in size. Any error closes the connection, and the
server is then polled instead.
"""

import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote, urlsplit

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from retake.vendors.answers import as_dict, parse
from retake.vendors.certificates import trusted
from retake.vendors.http import CONNECT_TIMEOUT_S, Cutter, Overdue, within
from retake.vendors.route import has_proxy

FRAME_LIMIT = 4 * 2**20  # bytes; a longer message, such as a huge preview, closes the WebSocket
TEXT_LIMIT = 2**20  # maximum characters of an event that is parsed

_QUEUE = 4  # maximum number of messages waiting to be read
_CLOSE_S = 0.1  # timeout of the closing handshake, which unread messages would hold up
_WEBSOCKET_ERRORS = (WebSocketException, OSError, EOFError, ValueError)

_quiet = logging.getLogger("retake.vendors.comfyui_events")  # the library would log whole messages
_quiet.setLevel(logging.CRITICAL)


class ComfyEvents:
    """The `retake.vendors.PromptEvents` over a WebSocket; None stands for one that could not be opened."""

    def __init__(self, connection: ClientConnection | None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._connection, self._monotonic = connection, monotonic

    @property
    def open(self) -> bool:
        """See `PromptEvents.open`."""
        return self._connection is not None

    def ended(self, prompt_id: str, timeout_s: float) -> bool:
        """See `PromptEvents.ended`. Previews (binary), events of others and unreadable messages are skipped."""
        until = self._monotonic() + timeout_s
        while self._connection is not None and (left := until - self._monotonic()) > 0:
            try:
                message = self._connection.recv(timeout=left)
            except TimeoutError:
                return False
            except _WEBSOCKET_ERRORS:
                self.close()
            else:
                if isinstance(message, str) and _says_ended(message, prompt_id):
                    return True
        return False

    def close(self) -> None:
        """Close the connection; no further events arrive."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*_WEBSOCKET_ERRORS):
                connection.close()


class _EventConnection(ClientConnection):
    """The library's connection, closed as soon as the server answers without opening a WebSocket."""

    def send_data(self) -> None:
        """Send pending data, as the library does after each piece that it has read.

        The library itself would keep reading until `open_timeout`, and discard whatever the server goes on to send.
        """
        super().send_data()
        if self.protocol.handshake_exc is not None:
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)


def opened(url: str, client_id: str, timeout_s: float) -> ClientConnection | None:
    """Open the WebSocket of a client at the server `url`, or return None.

    No redirect is followed. It is not opened if the environment sets a proxy, which might not let it through.
    """

    def work(cutter: Cutter) -> ClientConnection:
        parts = urlsplit(url)
        secure, host = parts.scheme == "https", parts.netloc.rpartition("@")[2]
        place = f"{'wss' if secure else 'ws'}://{host}{parts.path}/ws?clientId={quote(client_id, safe='')}"
        where = (parts.hostname or "", parts.port or (443 if secure else 80))
        made = socket.create_connection(where, timeout=min(CONNECT_TIMEOUT_S, timeout_s))
        cutter.watch(made)
        made.settimeout(None)
        return connect(
            place,
            sock=made,
            ssl=trusted() if secure else None,
            compression=None,
            open_timeout=timeout_s,
            close_timeout=_CLOSE_S,
            max_size=FRAME_LIMIT,
            max_queue=_QUEUE,
            logger=_quiet,
            create_connection=_EventConnection,
        ).__enter__()  # else newer versions of the library warn; ComfyEvents closes the connection

    if has_proxy(url):
        return None
    try:
        return within(timeout_s, work)
    except (Overdue, *_WEBSOCKET_ERRORS):
        return None


def _says_ended(message: str, prompt_id: str) -> bool:
    if len(message) > TEXT_LIMIT:
        return False
    event = as_dict(parse(message))
    data = as_dict(event.get("data"))
    # Sent when the prompt is in the history, however it ended; "execution_success" is sent before.
    return event.get("type") == "executing" and data.get("node") is None and data.get("prompt_id") == prompt_id
