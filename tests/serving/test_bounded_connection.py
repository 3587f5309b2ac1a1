"""How long a client may hold a connection without a request, with the real server and real connections."""

import asyncio
import select
import socket
import time
from collections.abc import Iterator

import pytest
from served_app import served_app

from retake.serving.body import Message, Receive, Send, refuse

WHOLE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = bytes(24 * 1024 * 1024)
_LIMIT_S = 2.0
"""Replaces HEAD_S and STALL_S: even a busy machine is never this slow."""


async def app(scope: Message, receive: Receive, send: Send) -> None:
    """Answer each request at once; /slow takes longer than a head may take, and /large exceeds any buffer."""
    if scope["type"] == "lifespan":
        for _ in range(2):
            await send({"type": f"{(await receive())['type']}.complete"})
    elif scope["path"] == "/large":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": LARGE})
    else:
        if scope["path"] == "/slow":
            await asyncio.sleep(1.5 * _LIMIT_S)
        await refuse(send, 404, "nothing is here")


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    for name in ("HEAD_S", "STALL_S"):
        monkeypatch.setattr(f"retake.serving.bounded_connection.{name}", _LIMIT_S)
    with served_app(app) as url:
        yield int(url.rpartition(":")[2])


@pytest.fixture
def client(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        yield connection


def status(client: socket.socket) -> bytes:
    """Return the status of the next answer; b"" if the connection is closed instead."""
    said = b""
    while b"}" not in said and (piece := client.recv(4096)):
        said += piece
    return said.partition(b"\r\n")[0][9:12]


def is_closed(client: socket.socket) -> bool:
    """Wait until the server has closed the connection."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def closed_while_sending(client: socket.socket, piece: bytes) -> bool:
    """Send pieces endlessly, until the connection is closed."""
    client.settimeout(0.05)
    ends = time.monotonic() + 20
    while time.monotonic() < ends:
        try:
            client.sendall(piece)
            if client.recv(1) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


@pytest.mark.parametrize("begun", [b"", WHOLE[:-2]], ids=["nothing", "half a head"])
def test_a_client_that_says_no_more_is_let_go(client: socket.socket, begun: bytes) -> None:
    client.sendall(begun)
    assert is_closed(client)


def test_a_head_that_trickles_is_given_up(client: socket.socket) -> None:
    client.sendall(WHOLE[:-2])
    assert closed_while_sending(client, b"X: y\r\n")


def test_the_head_of_the_next_request_that_trickles_is_given_up(client: socket.socket) -> None:
    client.sendall(WHOLE)
    assert status(client) == b"404"
    client.sendall(WHOLE[:-2])
    assert closed_while_sending(client, b"X: y\r\n")


def test_a_body_that_was_answered_before_it_ended_is_given_up(client: socket.socket) -> None:
    client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    assert status(client) == b"404"
    assert closed_while_sending(client, b"x")


def test_whoever_waits_for_an_answer_is_kept(client: socket.socket) -> None:
    client.sendall(WHOLE.replace(b"GET /", b"GET /slow"))
    assert status(client) == b"404"


def test_requests_in_time_go_on_over_one_connection(client: socket.socket) -> None:
    for _ in range(3):
        client.sendall(WHOLE)
        assert status(client) == b"404"
        time.sleep(0.6 * _LIMIT_S)


def read(client: socket.socket) -> int:
    """Read to the end of the answer or of the connection, and return how many bytes came."""
    size = 0
    try:
        while piece := client.recv(1024 * 1024):
            size += len(piece)
    except ConnectionResetError:
        pass
    return size


def test_a_client_that_does_not_read_is_cut(client: socket.socket) -> None:
    client.sendall(WHOLE.replace(b"GET /", b"GET /large"))
    cut = select.poll()
    cut.register(client, 0)  # errors alone
    assert cut.poll(20_000)
    assert read(client) < len(LARGE)


def test_a_client_that_reads_slowly_has_the_whole_answer(client: socket.socket) -> None:
    client.sendall(WHOLE.replace(b"GET /", b"GET /large"))
    size, ends = 0, time.monotonic() + 1.5 * _LIMIT_S
    while time.monotonic() < ends:
        size += len(client.recv(256 * 1024))
        time.sleep(_LIMIT_S / 40)
    assert size < len(LARGE), "otherwise it was not slow"
    assert size + read(client) > len(LARGE)
