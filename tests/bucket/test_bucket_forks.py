"""A bucket that was in use when its process forks: parent and child speak over connections of their own."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from retake.bucket import ANY, Bucket
from retake.bucket.b2.bucket import open_b2
from retake.bucket.s3.client import S3Client, connect, parse_url
from retake.clock import SystemClock
from retake.sandbox.b2 import B2Sandbox


class Echo(BaseHTTPRequestHandler):
    """Answers each GET with its path, over a connection that stays open."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        data = self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the library's
        """Log nothing."""


@contextmanager
def echo() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def in_both(work: Callable[[str], None]) -> None:
    """Call `work` in a fork of this process and in this one, at the same time; it must not raise."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            work("child")
        except BaseException:  # noqa: BLE001  nothing of pytest's may go on here
            os._exit(1)
        os._exit(0)
    work("parent")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_on_s3_a_fork_and_its_parent_get_their_own_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with echo() as endpoint:
        place = parse_url(f"s3://b?endpoint={endpoint}")
        client = S3Client(connect(place, connect_s=10, read_s=20), place, SystemClock(), 20)

        def read(who: str) -> None:
            for number in range(100):
                assert client.once("get_object", Key=f"{who}-{number}")["Body"] == f"/b/{who}-{number}".encode()

        read("before")
        in_both(read)


def test_on_b2_a_fork_and_its_parent_get_their_own_answers(tmp_path: Path) -> None:
    with B2Sandbox() as sandbox:
        bucket: Bucket = open_b2(sandbox.storage_url("retake-forks"), environ=sandbox.environment())

        def write(who: str) -> None:
            for number in range(20):
                bucket.write(f"{who}-{number}", f"{who} {number}".encode(), ANY)
                assert bucket.read(f"{who}-{number}")[0] == f"{who} {number}".encode()

        write("before")
        in_both(write)
