"""Requests over kept connections: few connections, the same answers, and no server holds one up for long."""

import gzip
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from loopback import LoopbackServer

from retake.errors import Code, PollFailed
from retake.story.clients import RealVendors
from retake.story.settings import SANDBOX_KEYS, Settings, sandboxed
from retake.vendors.answers import NoReply, Reply
from retake.vendors.kept import KeptConnections
from retake.vendors.runway import Runway

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"ok":true}'
Serve = Callable[[socket.socket, int], bool]
"""Answers the nth request of all; returns whether the connection stays open."""


class Vendor(LoopbackServer):
    """A vendor that answers with `serve`, and counts requests and connections."""

    def __init__(self, serve: Serve) -> None:
        self._serve_one, self.connections, self.questions = serve, 0, 0
        super().__init__(120.0)

    def serve(self, connection: socket.socket, stop: threading.Event) -> None:
        self.connections += 1
        asked = b""
        while part := connection.recv(65536):
            asked += part
            while b"\r\n\r\n" in asked:
                asked = asked.partition(b"\r\n\r\n")[2]
                self.questions += 1
                if not self._serve_one(connection, self.questions):
                    return


@pytest.fixture
def kept() -> Iterator[KeptConnections]:
    with closing(KeptConnections()) as found:
        yield found


def answering(data: bytes, *, stays: bool = True) -> Serve:
    def serve(connection: socket.socket, number: int) -> bool:
        connection.sendall(data)
        return stays

    return serve


def ask(kept: KeptConnections, vendor: Vendor, *, timeout_s: float = 60.0, limit: int = 1000) -> Reply:
    return kept.exchange("GET", f"{vendor.url}/task/1", {"X-API-Key": "k"}, timeout_s, limit)


def test_many_questions_share_one_connection(kept: KeptConnections) -> None:
    with closing(Vendor(answering(OK))) as vendor:
        assert kept.reaches(vendor.url)
        assert {ask(kept, vendor).body for _ in range(20)} == {b'{"ok":true}'}
        assert (vendor.connections, vendor.questions) == (1, 20)


def test_the_polls_of_all_channels_share_one_connection(kept: KeptConnections) -> None:
    body = b'{"task_id": "t", "status": "PENDING"}'
    with closing(Vendor(answering(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)))) as vendor:
        settings = sandboxed(Settings(), vendor.url)
        for _ in range(3):
            vendors = RealVendors(settings, SANDBOX_KEYS, lambda: kept)
            assert vendors.midjourney().fetch("t").running
            assert vendors.video_generator().poll("t").running
        assert (vendor.connections, vendor.questions) == (1, 6)


def test_a_question_on_a_connection_that_was_closed_is_asked_again(kept: KeptConnections) -> None:
    with closing(Vendor(answering(OK, stays=False))) as vendor:
        for _ in range(3):
            assert ask(kept, vendor).status == 200
            time.sleep(0.05)  # so that the end has arrived, or not: both are handled
        assert vendor.connections >= 3


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 11\r\n\r\n{"ok":true}',
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n{"ok":true}\r\n0\r\n\r\n',
        b'HTTP/1.0 200 OK\r\n\r\n{"ok":true}',
    ],
    ids=["closing", "chunked", "without a length"],
)
def test_each_kind_of_answer_is_read(kept: KeptConnections, answer: bytes) -> None:
    with closing(Vendor(answering(answer, stays=b"chunked" in answer))) as vendor:
        assert [ask(kept, vendor).body for _ in range(2)] == [b'{"ok":true}'] * 2
        assert vendor.connections == (1 if b"chunked" in answer else 2)


def test_a_compressed_answer_is_unpacked_as_by_the_other_client(kept: KeptConnections) -> None:
    whole = b'{"ok":true}' + b" " * 1000
    packed = gzip.compress(whole)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    with closing(Vendor(answering(head + packed))) as vendor:
        assert [ask(kept, vendor, limit=2000).body for _ in range(2)] == [whole] * 2
        with pytest.raises(NoReply, match="larger than 200 bytes"):
            ask(kept, vendor, limit=200)


def test_a_redirect_is_an_answer(kept: KeptConnections) -> None:
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    with closing(Vendor(answering(moved))) as vendor:
        assert ask(kept, vendor).status == 302


def trickling(connection: socket.socket, number: int) -> bool:
    for byte in b"HTTP/1.1 200 OK\r\nX: " + b"a" * 10_000:
        connection.sendall(bytes([byte]))
        time.sleep(0.02)
    return False


def silent(connection: socket.socket, number: int) -> bool:
    connection.recv(1)  # returns once the client has closed it
    return False


@pytest.mark.parametrize("serve", [trickling, silent])
def test_whoever_takes_too_long_is_given_up(kept: KeptConnections, serve: Serve) -> None:
    with closing(Vendor(serve)) as vendor:
        started = time.monotonic()
        with pytest.raises(NoReply, match=r"no answer within 1 s") as caught:
            ask(kept, vendor, timeout_s=1.0)
        assert caught.value.code == Code.TIMEOUT
        assert time.monotonic() - started < 60


LONG = b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1", LONG, LONG + bytes(2000)])
def test_an_answer_that_breaks_off_leaves_no_traceback_in_the_log(answer: bytes) -> None:
    """Python 3.13 and later write one for what cannot be closed as it is collected; older ones only in this mode."""
    code = (
        "import sys; from retake.vendors.answers import NoReply; from retake.vendors.kept import KeptConnections\n"
        "try: KeptConnections().exchange('GET', sys.argv[1], {}, 0.5, 1000)\n"
        "except NoReply: print('told')"
    )
    with closing(Vendor(answering(answer))) as vendor:
        run = [sys.executable, "-X", "dev", "-c", code, f"{vendor.url}/task/1"]
        done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("told\n", "")


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b"a" * 2000, Code.BAD_ANSWER),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nab", Code.BAD_ANSWER),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nshort", Code.NETWORK),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200, Code.NETWORK),
        (b"SSH-2.0-OpenSSH\r\n\r\n", Code.NETWORK),
    ],
    ids=["too large", "compressed", "cut off", "too many headers", "no HTTP"],
)
def test_what_is_not_a_whole_answer_is_reported(kept: KeptConnections, answer: bytes, code: Code) -> None:
    with closing(Vendor(answering(answer, stays=False))) as vendor:
        with pytest.raises(NoReply) as caught:
            ask(kept, vendor)
        assert caught.value.code == code
        with pytest.raises(NoReply):
            ask(kept, vendor)
        assert vendor.connections >= 2, "a failed connection is not used again"


@pytest.mark.parametrize("url", ["http://[::1", "http://vendor.example:99999", "http://ven dor.example", "http://%zz"])
def test_an_invalid_address_is_a_setting_to_correct(kept: KeptConnections, url: str) -> None:
    runway = Runway(url, "key", model="gen4_turbo", ratio="1280:720", duration_s=5.0, timeout_s=60.0, kept=kept)
    with pytest.raises(PollFailed) as caught:
        runway.poll("t")
    assert caught.value.code == Code.CONFIGURATION


def test_a_host_outside_ascii_is_left_to_the_other_client(kept: KeptConnections) -> None:
    assert not kept.reaches("http://väinö.example/task")


def test_a_proxy_and_a_user_in_the_url_are_left_to_the_other_client(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(KeptConnections()) as kept:
        assert not kept.reaches("http://ann:secret@127.0.0.1:9/")
        assert not kept.reaches("ftp://127.0.0.1/")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with closing(KeptConnections()) as kept:
        assert not kept.reaches("http://vendor.example/task")
