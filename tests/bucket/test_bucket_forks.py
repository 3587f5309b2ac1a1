"""A bucket used before and after its process forks: parent and child have connections of their own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from forking import forking

from retake.sandbox.b2 import B2Sandbox


class Echo(BaseHTTPRequestHandler):
    """Answers each GET with its path, over a persistent connection."""

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


def test_on_s3_a_fork_and_its_parent_get_their_own_answers() -> None:
    program = """
from retake.bucket.s3.client import S3Client, connect, parse_url
from retake.clock import SystemClock

place = parse_url(f"s3://b?endpoint={sys.argv[1]}")
client = S3Client(connect(place, connect_s=10, read_s=20), place, SystemClock(), 20)

def read(who):
    for number in range(100):
        found = client.once("get_object", Key=f"{who}-{number}")["Body"].decode()
        assert found == f"/b/{who}-{number}", found

read("before")
in_both(read)
"""
    with echo() as endpoint:
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_CONFIG_FILE": "/dev/null"}
        assert forking(program, endpoint, environ=keys) == ""


def test_on_b2_a_fork_and_its_parent_get_their_own_answers() -> None:
    program = """
from retake.bucket import ANY
from retake.bucket.b2.bucket import open_b2

bucket = open_b2(sys.argv[1])

def write(who):
    for number in range(20):
        bucket.write(f"{who}-{number}", f"{who} {number}".encode(), ANY)
        assert bucket.read(f"{who}-{number}")[0] == f"{who} {number}".encode()

write("before")
in_both(write)
"""
    with B2Sandbox() as sandbox:
        assert forking(program, sandbox.storage_url("retake-forks"), environ=sandbox.environment()) == ""
