"""An HTTP connection that a client cannot hold for ever."""

import socket
import struct
from asyncio import TimerHandle, Transport
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 20.0
"""Seconds that a client may take to send a request's head, counted from the connection or the previous response."""

STALL_S = 60.0
"""Seconds that a client may go without reading a response."""

_RESET = struct.pack("ii", 1, 0)


class BoundedConnection(H11Protocol):
    """uvicorn's connection with two timeouts.

    It is closed if the head of its next request does not arrive within `HEAD_S` seconds, and aborted if its client does
    not read a response for `STALL_S` seconds. uvicorn has no such limits: a client could hold a connection for ever by
    not starting or not finishing a head, by continuing a body that was already answered, or by not reading. Bodies are
    limited by the code that reads them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_late: TimerHandle | None = None
        self._stalled: TimerHandle | None = None
        self._unread = 0  # bytes, at the last check

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # the type that uvicorn uses
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._stalled)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        _cancel(self._head_late)
        _cancel(self._stalled)

    def _await_head(self) -> None:
        answered = self.cycle is None or self.cycle.response_complete
        if not (answered or self.conn.their_state is h11.IDLE) or self.transport.is_closing():
            _cancel(self._head_late)
            self._head_late = None
        elif self._head_late is None:
            self._head_late = self.loop.call_later(HEAD_S, self.timeout_keep_alive_handler)

    def _await_reading(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(STALL_S, self._check_reading)

    def _check_reading(self) -> None:
        if self.transport.get_write_buffer_size() < self._unread:  # slow, but it reads
            self._await_reading()
        else:
            stream = self.transport.get_extra_info("socket")
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)  # else the kernel keeps the unread data
            self.transport.abort()


def _cancel(timer: TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
