"""The head of a request, which has to arrive in time."""

from asyncio import TimerHandle, Transport
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 20.0
"""Seconds that a client may take to send the head of a request, from the connection, or from the answer before."""


class BoundedHead(H11Protocol):
    """uvicorn's connection, which is closed if the head of its next request does not arrive in `HEAD_S` seconds.

    uvicorn sets no limit: a client that never begins its head or never ends it, or goes on with a body that was
    answered already, would hold a connection for good. A body that is read is bounded where it is read.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_late: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_watching()

    def _watch(self) -> None:
        answered = self.cycle is None or self.cycle.response_complete
        if not (answered or self.conn.their_state is h11.IDLE) or self.transport.is_closing():
            self._stop_watching()
        elif self._head_late is None:
            self._head_late = self.loop.call_later(HEAD_S, self.timeout_keep_alive_handler)

    def _stop_watching(self) -> None:
        if self._head_late is not None:
            self._head_late.cancel()
            self._head_late = None
