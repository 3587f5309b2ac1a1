"""Which ComfyUI servers exist, which of them answer, and whose turn it is."""

from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from retake.errors import SettingsError
from retake.images.comfyui_servers import MAX_MISSES, ComfyServers
from retake.sandbox.comfyui import ComfySandbox
from retake.testing.logs import CapturedLogs
from retake.vendors.comfyui import ComfyUI

A, B, C = "http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3"


class Fleet:
    """Servers that answer or not, as the test says."""

    def __init__(self) -> None:
        self.away: set[str] = set()
        self.faulty: set[str] = set()  # those that cannot even be asked

    def client(self, url: str) -> ComfyUI:
        fleet = self

        class One(ComfyUI):
            def alive(self) -> bool:
                if url in fleet.faulty:
                    raise SettingsError(f"the certificates for {url} cannot be used")
                return url not in fleet.away

        return One(url)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def listed() -> Iterator[Callable[[bytes, int], str]]:
    """Serve a list of servers. Yield a function that changes the response and returns the URL."""
    answers = [(b"[]", 200)]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body, status = answers[-1]
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep stderr clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()

        def answer(body: bytes, status: int = 200) -> str:
            answers.append((body, status))
            return f"http://127.0.0.1:{server.server_port}/servers"

        yield answer
        server.shutdown()


def test_those_that_answer_have_their_turns(fleet: Fleet) -> None:
    servers = ComfyServers([A, f"{B}/", C], client=fleet.client)
    assert servers.alive == []
    assert servers.next() is None
    fleet.away = {B}
    servers.check()
    assert servers.alive == [A, C]
    assert Counter(server.url for _ in range(6) if (server := servers.next())) == {A: 3, C: 3}
    assert {server.url for _ in range(4) if (server := servers.next(avoid=A))} == {C}


def test_the_one_to_be_avoided_is_better_than_none(fleet: Fleet) -> None:
    servers = ComfyServers([A], client=fleet.client)
    servers.check()
    found = servers.next(avoid=A)
    assert found
    assert found.url == A


def test_one_missed_check_is_not_an_absence(fleet: Fleet) -> None:
    servers = ComfyServers([A], client=fleet.client)
    servers.check()
    fleet.away = {A}
    for _ in range(MAX_MISSES - 1):
        servers.check()
        assert servers.alive == [A]
    servers.check()
    assert servers.alive == []
    fleet.away = set()
    servers.check()
    assert servers.alive == [A]


def test_a_server_that_missed_a_call_is_left_alone_until_it_answers_a_check(fleet: Fleet) -> None:
    servers = ComfyServers([A, B], client=fleet.client)
    servers.check()
    servers.missed(A)
    servers.missed(C)
    assert servers.alive == [B]
    servers.check()
    assert servers.alive == [A, B]


def test_servers_are_found_by_a_list(fleet: Fleet, listed: Callable[..., str]) -> None:
    url = listed(f'["{B}", "{A}/"]'.encode())
    servers = ComfyServers([A], url, client=fleet.client)
    servers.check()
    assert servers.alive == [A, B]
    listed(f'["{C}"]'.encode())
    servers.check()
    assert servers.alive == [A, C]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"no JSON", 200),
        (b'{"urls": []}', 200),
        (b'["file:///etc/passwd"]', 200),
        (b'["http://user:password@host"]', 200),
        (b"[7]", 200),
        (b"[]", 500),
        (b"[" * 5000, 200),
        (b'["' + b"x" * 100_000 + b'"]', 200),
        (str([A] * 201).replace("'", '"').encode(), 200),
    ],
)
def test_a_list_that_cannot_be_used_changes_nothing(
    fleet: Fleet, listed: Callable[..., str], body: bytes, status: int
) -> None:
    servers = ComfyServers([], listed(f'["{B}"]'.encode()), client=fleet.client)
    servers.check()
    listed(body, status)
    with CapturedLogs() as log:
        servers.check()
        servers.check()
    assert servers.alive == [B]
    [told] = log.warnings
    assert told.startswith("the list of ComfyUI servers at http://127.0.0.1:")
    assert "password" not in told


def test_several_faults_that_last_are_reported_once_each(fleet: Fleet, listed: Callable[..., str]) -> None:
    fleet.faulty = {A, B}
    servers = ComfyServers([A, B, C], listed(b"[]"), client=fleet.client)
    with CapturedLogs() as log:
        servers.check()
        servers.check()
        listed(b"[7]")
        servers.check()
        servers.check()
        fleet.faulty = {B}
        servers.check()
        fleet.faulty = {A, B}
        servers.check()
    certificates = [f"the certificates for {url} cannot be used" for url in (A, B)]
    assert [told for told in log.warnings if "list" not in told] == [*certificates, certificates[0]]
    assert len(log.warnings) == 4


def test_real_servers_are_asked() -> None:
    with ComfySandbox() as comfy:
        servers = ComfyServers([comfy.url, A])
        servers.check()
        assert servers.alive == [comfy.url]
        comfy.order("comfy.stats=404")
        for _ in range(MAX_MISSES):
            servers.check()
        assert servers.alive == []
