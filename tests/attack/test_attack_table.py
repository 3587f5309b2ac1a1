"""Clients × hostile servers: the outcome of each call, and that it comes in time.

Each hostility says what becomes of a paid call, a free question and a download. The first test fails for a client that
is missing from `clients.CALLS`.
"""

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
from clients import ASKING, CALLS, KEY, MAKERS, MAX_FILE, Call, made, there_are
from hostile import OK, Act, Hostile, answers, drips, gzip_bomb, packed, pours, read_request, says, silent

from retake.errors import VendorError
from retake.vendors import http

TIMEOUT_S = 1.5
AMPLE_S = 60.0  # for calls that end by themselves
SLACK_S = 60.0
"""The delay that a busy machine may add. An act lasts 120 s, so a caller that waits for it exceeds this by far."""


class Fate(NamedTuple):
    """The outcome of a hostility: "Type CODE" of the error, or "result"."""

    act: Act
    paid: str
    free: str
    download: str = ""  # as `free`
    reads: bool = True

    def of(self, call: Call) -> str:
        if call.kind == "quiet":
            return "result"
        return (
            (self.download or self.free) if call.method == "download" else {"paid": self.paid}.get(call.kind, self.free)
        )


def unknown(code: str, act: Act, *, download: str = "", reads: bool = True) -> Fate:
    """Return the fate of a paid call of unknown outcome, and of a question without an answer."""
    return Fate(act, f"OutcomeUnknown {code}", f"PollFailed {code}", download, reads)


INTERIM_WITHOUT_END = "endless 100 Continue"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
CHUNK = b"10000\r\n" + b"1" * 0x10000 + b"\r\n"
NESTED = b"[" * 1_000_000
TERMINAL = "\x1b]0;pwned\x07\x1b[2J\u009b31m\u202egnp.tac\u2066\x00\u200b\ufeff"
ERROR = {"code": 400, "error": TERMINAL, "message": TERMINAL, "data": None}

HOSTILITIES: dict[str, Fate] = {
    # calls must end
    "silent": unknown("TIMEOUT", silent),
    "never reads": unknown("TIMEOUT", silent, reads=False),
    "head byte by byte": unknown("TIMEOUT", drips(b"HTTP/1.1 200 OK\r\nX-A: ", b"a")),
    "headers one by one": unknown("TIMEOUT", drips(b"HTTP/1.1 200 OK\r\n", b"X-A: a\r\n", 0.25)),
    INTERIM_WITHOUT_END: unknown("TIMEOUT", pours(b"", INTERIM * 100)),
    "100 Continue now and then": unknown("TIMEOUT", drips(b"", INTERIM)),
    "endless 103 Early Hints": unknown("TIMEOUT", drips(b"", HINTS)),
    "endless headers": unknown("NETWORK", pours(b"HTTP/1.1 200 OK\r\n", b"X-A: a\r\n" * 50)),
    "a header without end": unknown("NETWORK", pours(b"HTTP/1.1 200 OK\r\nX-A: ", b"a" * 5000)),
    "body byte by byte": unknown("TIMEOUT", drips(OK + b"Content-Length: 100000\r\n\r\n[", b"1")),
    "body byte by byte, of any length": unknown("TIMEOUT", drips(OK + b"\r\n[", b"1")),
    "chunks byte by byte": unknown("TIMEOUT", drips(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n1\r\n")),
    "trailers without end": unknown(
        "TIMEOUT", drips(OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n", b"X-A: a\r\n")
    ),
    # answers must be bounded
    "a body without end": unknown("BAD_ANSWER", pours(OK + b"\r\n", b"1" * 65536)),
    "chunks without end": unknown("BAD_ANSWER", pours(OK + b"Transfer-Encoding: chunked\r\n\r\n", CHUNK)),
    "10 GB announced": unknown("BAD_ANSWER", says(OK + b"Content-Length: 10737418240\r\n\r\n")),
    "10^5000 bytes announced": unknown("BAD_ANSWER", says(OK + b"Content-Length: 1" + b"0" * 5000 + b"\r\n\r\n")),
    "gzip bomb": unknown("BAD_ANSWER", answers(gzip_bomb(64), head=b"Content-Encoding: gzip\r\n")),
    "gzip twice": unknown(
        "BAD_ANSWER", answers(gzip.compress(gzip_bomb(64)), head=b"Content-Encoding: gzip, gzip\r\n")
    ),
    "br": unknown("BAD_ANSWER", answers(b"\x1b\xff\xff", head=b"Content-Encoding: br\r\n")),
    "zstd": unknown("BAD_ANSWER", answers(b"\x28\xb5\x2f\xfd", head=b"Content-Encoding: zstd\r\n")),
    "gzip cut short": unknown("BAD_ANSWER", answers(packed({"id": "7"})[:-9], head=b"Content-Encoding: gzip\r\n")),
    "gzip that is none": unknown("BAD_ANSWER", answers(b"{}", head=b"Content-Encoding: gzip\r\n")),
    "deeply nested": unknown("BAD_ANSWER", answers(NESTED)),
    "a number of 10,000 digits": unknown("BAD_ANSWER", answers(b'{"progress": ' + b"9" * 10_000 + b"}")),
    # answers must be read correctly
    "not HTTP": unknown("NETWORK", says(b"SSH-2.0-OpenSSH_9.6\r\n")),
    "HTML for JSON": unknown("BAD_ANSWER", answers(b"<html>busy</html>", head=b"Content-Type: text/html\r\n")),
    "nothing at all": unknown("NETWORK", says(b"")),
    "a body cut short": unknown("NETWORK", says(OK + b'Content-Length: 100\r\n\r\n{"id": "7"')),
    "a chunk cut short": unknown("NETWORK", says(OK + b'Transfer-Encoding: chunked\r\n\r\n64\r\n{"id"')),
    "a chunk of no length": unknown("NETWORK", says(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}")),
    "two lengths": unknown("NETWORK", says(OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}")),
    "a length too short": unknown("BAD_ANSWER", says(OK + b'Content-Length: 5\r\n\r\n{"id": "7"}')),
    "a protocol of its own": unknown("BAD_ANSWER", says(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n")),
    "redirect to itself": unknown("BAD_ANSWER", answers(b"", 307, b"Location: /again\r\n")),
    "redirect to a file": unknown("BAD_ANSWER", answers(b"", 302, b"Location: file:///etc/passwd\r\n")),
    "redirect to gopher": unknown("BAD_ANSWER", answers(b"", 307, b"Location: gopher://127.0.0.1:1/\r\n")),
    "redirect to nowhere": unknown("BAD_ANSWER", answers(b"", 308, b"Location: http://[::1\r\n")),
    "control characters": Fate(
        answers(ERROR, 429), "Refused RATE_LIMIT", "PollFailed RATE_LIMIT", "PollFailed RATE_LIMIT"
    ),
    "a megabyte of addresses": Fate(
        answers({"error": "http://a" * 100_000, "message": "http://a" * 100_000, "code": 9}, 429),
        "Refused RATE_LIMIT",
        "PollFailed RATE_LIMIT",
    ),
}


class Outcome(NamedTuple):
    """The outcome of a call: "Type CODE" of the error or "result", its message, and the seconds it took."""

    came: str
    message: str
    took_s: float


def outcome(call: Call, url: str, timeout_s: float) -> Outcome:
    client, begun, error = made(call, url, timeout_s), time.monotonic(), None
    try:
        call.ask(client)
    except VendorError as raised:
        error = raised
    took_s = time.monotonic() - begun
    if error is None:
        return Outcome("result", "", took_s)
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None
    return Outcome(f"{type(error).__name__} {error.code.name}", str(error), took_s)


def test_every_client_that_there_is_has_its_rows() -> None:
    assert {str(call) for call in CALLS} == there_are(), "add the client to MAKERS and CALLS of tests/attack/clients.py"


@pytest.mark.parametrize("what", HOSTILITIES)
@pytest.mark.parametrize("client", MAKERS, ids=lambda client: client.__name__)
def test_a_hostile_server_gets_what_the_table_says_in_time(
    client: type, what: str, hostile: Callable[..., Hostile]
) -> None:
    """All calls of a client run at the same time, as channels make them."""
    fate = HOSTILITIES[what]
    calls = [call for call in ASKING if call.client is client]
    timeout_s = TIMEOUT_S if fate.paid.endswith(" TIMEOUT") else AMPLE_S
    servers = [hostile(fate.act, reads=fate.reads) for _ in calls]
    with ThreadPoolExecutor(len(calls)) as pool:
        outcomes = list(pool.map(lambda call, server: outcome(call, server.url, timeout_s), calls, servers))
    if what == INTERIM_WITHOUT_END:  # http.client of newer Pythons reads a hundred and then cuts the connection
        outcomes = [it._replace(came=it.came.replace("NETWORK", "TIMEOUT")) for it in outcomes]
    assert [(str(call), found.came, found.message) for call, found in zip(calls, outcomes, strict=True)] == [
        (str(call), fate.of(call), found.message) for call, found in zip(calls, outcomes, strict=True)
    ]
    for call, found, server in zip(calls, outcomes, servers, strict=True):
        asked = 2 if call.method == "health" else 1
        assert found.took_s < asked * timeout_s + SLACK_S, call
        assert len(found.message) < 1000
        assert found.message.isprintable()
        assert KEY not in found.message
        assert "sig=" not in found.message
        assert len(server.seen) <= (6 if call.method == "download" else asked), "asked again"


ODD = ["1e400", "-1e400", "NaN", "Infinity", "-0.0", "true", "null", '"40 %"', '"nan"', "[]", "9" * 400, "0.4"]


@pytest.mark.parametrize("number", ODD)
@pytest.mark.parametrize("call", [call for call in ASKING if call.kind in ("free", "quiet")], ids=str)
def test_no_number_is_too_odd(call: Call, number: str, hostile: Callable[..., Hostile]) -> None:
    task = {"id": "t-1", "task_id": "t-1", "job_id": "t-1", "status": "RUNNING", "progress": "?", "created_at": "?"}
    body = {
        **task,
        "data": [{**task, "input": {"index": "?"}}],
        "output": {"progress": "?"},
        "page": "?",
        "total": "?",
        "creditBalance": "?",
        "tier": {"models": {"gen4_turbo": {"maxDailyGenerations": "?"}}},
        "usage": {"models": {"gen4_turbo": {"dailyGenerations": "?"}}},
    }
    data = json.dumps(body).replace('"?"', number).encode()
    found = outcome(call, hostile(answers(data)).url, 5.0)
    assert found.came in ("result", "PollFailed BAD_ANSWER"), found.message


@pytest.mark.parametrize("number", ODD)
def test_no_balance_is_too_odd(number: str, hostile: Callable[..., Hostile]) -> None:
    [call] = [call for call in ASKING if str(call) == "PiAPI.health"]
    data = b'{"code": 200, "data": {"account_name": "me", "equivalent_in_usd": %s}}' % number.encode()
    assert outcome(call, hostile(answers(data)).url, 5.0).came == "result"


def test_a_poll_with_an_odd_number_is_still_a_poll(hostile: Callable[..., Hostile]) -> None:
    """The number is only for people; the task continues."""
    for call in ASKING:
        if call.method in ("fetch", "poll"):
            for number in ODD:
                data = b'{"id": "t-1", "status": "RUNNING", "progress": %s}' % number.encode()
                state = call.ask(made(call, hostile(answers(data)).url, 5.0))
                assert state.running
                assert len(state.progress) < 40


@pytest.mark.parametrize("call", ASKING, ids=str)
def test_a_redirect_to_another_host_takes_no_key_there(call: Call, hostile: Callable[..., Hostile]) -> None:
    other = hostile(answers(b"\x89PNG and so on", head=b"Content-Type: image/png\r\n"))
    server = hostile(answers(b"", 307, b"Location: %s/stolen\r\n" % other.url.encode()))
    outcome(call, server.url, 5.0)
    assert other.seen == (["GET /stolen HTTP/1.1"] if call.method == "download" else [])


@pytest.mark.parametrize("call", ASKING, ids=str)
def test_early_hints_are_passed_over(call: Call, hostile: Callable[..., Hostile]) -> None:
    """http.client mistakes 103 for the final answer, which would leave a paid call with an unknown outcome."""
    body = json.dumps({"id": "7", "task_id": "7", "job_id": "7", "status": "RUNNING", "creditBalance": 1}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n" % len(body)
    plain, hinted = hostile(says(head + body)), hostile(says(INTERIM + HINTS * 3 + head + body))
    assert outcome(call, hinted.url, 5.0).came == outcome(call, plain.url, 5.0).came


def test_what_is_not_a_websocket_is_not_read_on(hostile: Callable[..., Hostile]) -> None:
    poured = 0

    def pours_and_counts(connection: socket.socket, stop: threading.Event) -> None:
        nonlocal poured
        connection.sendall(OK + b"\r\n")
        while not stop.is_set():
            poured += connection.send(bytes(0x10000))

    [call] = [call for call in ASKING if str(call) == "ComfyUI.listen"]
    assert outcome(call, hostile(pours_and_counts).url, AMPLE_S).came == "result"
    assert poured < 64 * 2**20, "two sockets and one answer hold far less"


def test_a_slow_upload_has_all_the_time_of_the_call(
    hostile: Callable[..., Hostile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """urllib3 limits sending by the connect timeout: a picture on a slow line would be cut off, and paid for."""

    def reads_slowly(connection: socket.socket, stop: threading.Event) -> None:
        stop.wait(1.0)  # longer than connecting may take; the buffers in between are full
        read_request(connection)
        answers({"id": "t-1"})(connection, stop)

    monkeypatch.setattr(http, "CONNECT_TIMEOUT_S", 0.3)
    [call] = [call for call in ASKING if str(call) == "Runway.create"]
    found = outcome(call, hostile(reads_slowly, reads=False).url, 20.0)
    assert found.came == "result", found.message


def test_a_download_as_large_as_allowed_comes_whole(hostile: Callable[..., Hostile]) -> None:
    [call] = [call for call in ASKING if call.method == "download"]
    data = bytes(MAX_FILE)
    image = b"Content-Type: image/png\r\n"
    assert call.ask(made(call, hostile(answers(data, head=image)).url, 20.0)) == data
    assert outcome(call, hostile(answers(data + b"1", head=image)).url, 20.0).came == "PollFailed BAD_ANSWER"
