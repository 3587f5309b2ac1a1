"""The server of the services, where the machine fails it."""

import asyncio
import errno
import os
import socket
from threading import Event, Semaphore

import pytest
from served_app import served_app
from test_bounded_connection import WHOLE, app, status

from retake.serving.body import Message, Receive, Send
from retake.testing.logs import CapturedLogs


def test_that_no_file_can_be_opened_is_logged_once_and_outlived(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = Semaphore(0)

    def fail(_: socket.socket) -> None:
        failures.release()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with served_app(app) as url, CapturedLogs() as log:
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "accept", fail)
            client = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60)
            for _ in range(3):
                assert failures.acquire(timeout=60)
        with client:
            client.sendall(WHOLE)
            assert status(client) == b"404"
    (error,) = [it.getMessage() for it in log.records]
    assert error == "no further connection is accepted: Too many open files; raise the limit on open files (ulimit -n)"


def test_a_request_that_is_still_open_at_the_end_is_answered_503() -> None:
    arrived = Event()

    async def endless(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
        else:
            arrived.set()
            await asyncio.Event().wait()

    with served_app(endless) as url:
        client = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60)
        client.sendall(WHOLE)
        assert arrived.wait(60)
    with client:
        assert status(client) == b"503"
