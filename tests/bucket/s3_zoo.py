"""Stores as found in practice: a proxy in front of moto that misbehaves on demand.

Each animal is one misbehaviour: it sees every request and may change what is forwarded, answer it, or cut the
connection.
"""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit

CONDITIONS = ("If-Match", "If-None-Match")


class Cut(Exception):
    """The client gets no answer."""


class Asked(NamedTuple):
    """A request. `forward()` lets the store carry it out, and returns status, headers and body."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    forward: Callable[["Asked"], "Answer"]

    @property
    def conditional(self) -> bool:
        return any(name in self.headers for name in CONDITIONS)

    @property
    def lists(self) -> bool:
        return self.method == "GET" and "list-type=2" in self.path

    def pass_on(self) -> "Answer":
        return self.forward(self)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


Animal = Callable[[Asked], Answer]


def no(status: int, code: str) -> Answer:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>to order</Message></Error>"
    return Answer(status, {"Content-Type": "application/xml"}, body.encode())


def tame(asked: Asked) -> Answer:
    return asked.pass_on()


def refuses_conditions(asked: Asked) -> Answer:
    """Refuse conditional requests, like B2's S3 API."""
    return no(501, "NotImplemented") if asked.conditional else asked.pass_on()


def ignores_conditions(asked: Asked) -> Answer:
    return asked._replace(headers={k: v for k, v in asked.headers.items() if k not in CONDITIONS}).pass_on()


def times(count: int, when: Callable[[Asked], bool], animal: Animal) -> Animal:
    """Return an animal that misbehaves for the first `count` requests that match `when`, and is tame afterwards."""
    left = [count]

    def mixed(asked: Asked) -> Answer:
        if left[0] and when(asked):
            left[0] -= 1
            return animal(asked)
        return asked.pass_on()

    return mixed


def loses_the_answer(asked: Asked) -> Answer:
    asked.pass_on()
    raise Cut


def loses_the_request(asked: Asked) -> Answer:
    raise Cut


def doubles(asked: Asked) -> Answer:
    """Deliver the request twice, as a network may; the client gets the second answer."""
    asked.pass_on()
    return asked.pass_on()


def writes(asked: Asked, data: bytes) -> None:
    """Write `data` under the same key, as another program."""
    dropped = ("content-length", "x-amz-meta-retake", *(name.lower() for name in CONDITIONS))
    headers = {name: value for name, value in asked.headers.items() if name.lower() not in dropped}
    asked._replace(body=data, headers=headers).pass_on()


def lists_two_at_a_time(asked: Asked) -> Answer:
    return (asked._replace(path=f"{asked.path}&max-keys=2") if asked.lists else asked).pass_on()


def lists_what_was() -> Animal:
    """Return an animal that repeats the first answer to each listing for ever."""
    seen: dict[str, Answer] = {}

    def stale(asked: Asked) -> Answer:
        if not asked.lists:
            return asked.pass_on()
        return seen.setdefault(asked.path, asked.pass_on())

    return stale


class Zoo:
    """The proxy. `animal` may be changed at any time; `requests` lists the requests so far."""

    def __init__(self, store: str) -> None:
        self.animal: Animal = tame
        self.requests: list[str] = []
        self._store = urlsplit(store).netloc
        zoo = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                zoo.requests.append(f"{self.command} {self.path}")
                try:
                    answer = zoo.animal(Asked(self.command, self.path, dict(self.headers), body, zoo.forward))
                except Cut:
                    self.close_connection = True
                    return
                self._answer(answer)

            def _answer(self, answer: Answer) -> None:
                self.send_response_only(answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                size = answer.headers.get("Content-Length") if self.command == "HEAD" else None
                self.send_header("Content-Length", size or str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body if self.command != "HEAD" else b"")

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_any  # noqa: N815  the base class's names

            def log_message(self, *given: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def forward(self, asked: Asked) -> Answer:
        connection = http.client.HTTPConnection(self._store, timeout=10)
        try:
            connection.request(asked.method, asked.path, asked.body, asked.headers)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()


@contextmanager
def zoo(store: str) -> Iterator[Zoo]:
    it = Zoo(store)
    thread = threading.Thread(target=it.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield it
    finally:
        it.server.shutdown()
        it.server.server_close()
        thread.join()
