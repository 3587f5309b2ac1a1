"""The route to a vendor: names that do not resolve, TLS, proxies, and the environment's settings for them.

Until the connection is made, TLS and tunnel included, nothing was sent and nothing can have been paid for.
"""

import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from traceback import walk_tb
from typing import Any

import pytest
from certifi import where
from clients import ASKING, MAKERS, Call
from hostile import Act, Hostile, answers, drips, pours, proxies_late, read_request, says, silent
from test_attack_table import SLACK_S, TIMEOUT_S, outcome
from tls_certificate import make_certificate, server_tls

from retake.errors import Code, SettingsError
from retake.vendors import certificates
from retake.vendors.answers import NoReply
from retake.vendors.http import TRUST_VARIABLES
from retake.vendors.kept import KeptConnections

QUICK_S = 0.15
"""For tests that never send anything, where too short a limit makes no difference."""

NOT_SENT = {"paid": "Refused", "free": "PollFailed", "quiet": "result"}
SENT = {"paid": "OutcomeUnknown", "free": "PollFailed", "quiet": "result"}


def expected(call: Call, kinds: dict[str, str], code: str) -> str:
    kind = kinds[call.kind]
    return kind if kind == "result" else f"{kind} {code}"


@pytest.mark.parametrize("call", ASKING, ids=str)
def test_a_name_server_that_hangs_does_not_hold_a_call_and_nothing_is_sent_later(
    call: Call, hostile: Callable[..., Hostile], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, released, resolve = hostile(silent), threading.Event(), socket.getaddrinfo
    asked: list[threading.Thread] = []

    def hang(host: str, port: int, *args: Any, **kwargs: Any) -> Any:
        asked.append(threading.current_thread())
        released.wait(20)
        return resolve("127.0.0.1", server.port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    begun = time.monotonic()
    found = outcome(call, "http://slow.example", QUICK_S)
    assert time.monotonic() - begun < 2 * QUICK_S + SLACK_S
    assert found.came == expected(call, NOT_SENT, "TIMEOUT"), found.message

    released.set()  # the name resolves after all, and the abandoned thread goes on
    for thread in asked:
        thread.join(20)
    assert not any(server.seen)


TLS_ACTS = {
    "silent in the handshake": (silent, "TIMEOUT"),
    "a handshake byte by byte": (drips(b"\x16\x03\x03\x3f\xff", b"\x02"), "TIMEOUT"),
    "HTTP instead of TLS": (answers({}, 400), "NETWORK"),
    "closed in the handshake": (says(b""), "NETWORK"),
}


@pytest.mark.parametrize("what", TLS_ACTS)
@pytest.mark.parametrize("call", [call for call in ASKING if call.method != "health"], ids=str)
def test_before_tls_stands_nothing_was_sent(call: Call, what: str, hostile: Callable[..., Hostile]) -> None:
    act, code = TLS_ACTS[what]
    url = hostile(act, reads=False).url.replace("http:", "https:")
    found = outcome(call, url, QUICK_S if code == "TIMEOUT" else 10.0)
    assert found.came == expected(call, NOT_SENT, code), found.message
    assert found.took_s < QUICK_S + SLACK_S


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def over_tls(certificate: tuple[Path, Path], act: Act) -> Act:
    """Return an act that performs `act` once a request has arrived over TLS."""
    context = server_tls(certificate)
    context.sslsocket_class = certificates.ClosingSocket

    def secured(connection: socket.socket, stop: threading.Event) -> None:
        with context.wrap_socket(connection, server_side=True) as tls:
            read_request(tls)
            act(tls, stop)

    return secured


@pytest.mark.parametrize("call", [call for call in ASKING if call.method != "health"], ids=str)
def test_a_certificate_that_is_not_trusted_gets_no_request(
    call: Call, certificate: tuple[Path, Path], hostile: Callable[..., Hostile]
) -> None:
    server = hostile(over_tls(certificate, answers({})), reads=False)
    found = outcome(call, server.url.replace("http:", "https:"), 10.0)
    assert found.came == expected(call, NOT_SENT, "NETWORK"), found.message


@pytest.mark.parametrize("variable", TRUST_VARIABLES[:3])
@pytest.mark.parametrize("client", MAKERS, ids=lambda client: client.__name__)
def test_every_client_trusts_what_the_environment_says(
    client: type,
    variable: str,
    certificate: tuple[Path, Path],
    hostile: Callable[..., Hostile],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call over TLS also ends in time."""
    monkeypatch.setenv(variable, str(certificate[0]))
    call = next(call for call in ASKING if call.client is client and call.kind in ("paid", "free"))
    kinds = SENT if call.kind == "paid" else NOT_SENT
    answered = hostile(over_tls(certificate, answers(b"<html>", head=b"Content-Type: text/html\r\n")), reads=False)
    dripping = hostile(over_tls(certificate, drips(b"HTTP/1.1 200 OK\r\nX-A: ", b"a")), reads=False)
    for server, code, timeout_s in ((answered, "BAD_ANSWER", 10.0), (dripping, "TIMEOUT", 2 * TIMEOUT_S)):
        found = outcome(call, server.url.replace("http:", "https:"), timeout_s)
        assert found.came == expected(call, kinds, code), found.message
        assert found.took_s < timeout_s + SLACK_S


@pytest.mark.parametrize("act", [silent, drips(b"HTTP/1.1 200 OK\r\nX-A: ", b"a")], ids=["silent", "drips"])
def test_a_question_on_a_kept_connection_over_tls_ends_in_time(
    act: Act, certificate: tuple[Path, Path], hostile: Callable[..., Hostile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRUST_VARIABLES[0], str(certificate[0]))
    url = hostile(over_tls(certificate, act), reads=False).url.replace("http:", "https:")
    begun = time.monotonic()
    with closing(KeptConnections()) as kept, pytest.raises(NoReply) as caught:
        kept.exchange("GET", f"{url}/task/1", {}, 2 * TIMEOUT_S, 1000)
    assert caught.value.code == Code.TIMEOUT
    assert time.monotonic() - begun < 2 * TIMEOUT_S + SLACK_S


_ENDLESS = "TIMEOUT" if sys.version_info < (3, 12) else "NETWORK"
"""From Python 3.12 on, http.client reads at most a hundred headers of a tunnel."""

PROXY_ACTS = {
    "a tunnel that is never opened": (silent, "TIMEOUT"),
    "a tunnel byte by byte": (drips(b"HTTP/1.1 200 OK\r\nX-A: ", b"a"), "TIMEOUT"),
    "no tunnel without a password": (says(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"), "NETWORK"),
    "headers of a tunnel without end": (pours(b"HTTP/1.1 200 OK\r\n", b"X-A: a\r\n" * 50), _ENDLESS),
}


@pytest.mark.parametrize("what", PROXY_ACTS)
@pytest.mark.parametrize("call", [call for call in ASKING if call.method != "health"], ids=str)
def test_before_the_proxys_tunnel_stands_nothing_was_sent(
    call: Call, what: str, hostile: Callable[..., Hostile], monkeypatch: pytest.MonkeyPatch
) -> None:
    act, code = PROXY_ACTS[what]
    monkeypatch.setenv("HTTPS_PROXY", hostile(act).url)
    found = outcome(call, "https://vendor.example", QUICK_S if code == "TIMEOUT" else 10.0)
    assert found.came == expected(call, NOT_SENT, code), found.message
    assert found.took_s < QUICK_S + SLACK_S


@pytest.mark.parametrize("call", [call for call in ASKING if call.kind == "paid"], ids=str)
def test_what_a_proxy_delivers_late_is_of_unknown_outcome(
    call: Call, hostile: Callable[..., Hostile], monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = hostile(answers({"id": "t-1"}))
    monkeypatch.setenv("HTTP_PROXY", hostile(proxies_late(vendor.port, 2 * TIMEOUT_S)).url)
    found = outcome(call, "http://vendor.example", TIMEOUT_S)
    assert found.came == "OutcomeUnknown TIMEOUT"
    end = time.monotonic() + 20
    while not vendor.seen and time.monotonic() < end:
        time.sleep(0.01)
    assert vendor.seen == ["POST /late HTTP/1.1"], "it was carried out after all"


def test_a_proxy_is_used_by_every_client(hostile: Callable[..., Hostile], monkeypatch: pytest.MonkeyPatch) -> None:
    for call in ASKING:
        proxy = hostile(answers({"error": "busy", "message": "busy", "code": 5}, 503))
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        outcome(call, "http://vendor.example", 10.0)
        if call.method == "listen":  # a WebSocket, which is not used behind a proxy
            assert proxy.seen == [], call
        else:
            assert " http://vendor.example/" in proxy.seen[0], call


def test_no_websocket_goes_around_a_proxy(hostile: Callable[..., Hostile], monkeypatch: pytest.MonkeyPatch) -> None:
    vendor, [call] = hostile(answers({})), [call for call in ASKING if call.method == "listen"]
    monkeypatch.setenv("HTTP_PROXY", hostile(answers({})).url)
    assert outcome(call, f"http://vendor.localhost:{vendor.port}", 10.0).came == "result"
    assert vendor.seen == []


# --- the environment ----------------------------------------------------------------------------------------------


def wrong_environments(folder: Path) -> dict[str, tuple[dict[str, str], str]]:
    """Return wrong variables, each with what the error names."""
    empty, page, bare = folder / "empty.pem", folder / "page.pem", folder / "bare"
    empty.touch()
    page.write_text("<html>no certificate</html>")
    bare.mkdir()
    secret = "http://me:hunter2hunter2@"
    return {
        "socks": ({"ALL_PROXY": "socks5://127.0.0.1:1"}, "ALL_PROXY: a socks5 proxy needs PySocks"),
        "socks, lower case": ({"all_proxy": "socks5h://127.0.0.1:1"}, "all_proxy: a socks5h"),
        "an unknown scheme": (
            {"HTTPS_PROXY": "gopher://127.0.0.1:1"},
            "HTTPS_PROXY: 'gopher' is not a supported kind of proxy",
        ),
        "no port": ({"HTTPS_PROXY": secret + "proxy:port"}, "HTTPS_PROXY: not the URL of a proxy"),
        "no host": ({"https_proxy": "http://"}, "https_proxy: not the URL of a proxy"),
        "half an address": ({"ALL_PROXY": secret + "[::1"}, "ALL_PROXY: not the URL of a proxy"),
        "no such file": ({"SSL_CERT_FILE": str(folder / "none.pem")}, "SSL_CERT_FILE: .* No such file"),
        "a folder that is none": ({"SSL_CERT_DIR": str(folder / "none")}, "SSL_CERT_DIR: .* No such file"),
        "a folder without certificates": ({"SSL_CERT_DIR": str(bare)}, "SSL_CERT_DIR: .* no certificates"),
        "a folder in place of a file": ({"SSL_CERT_FILE": str(bare)}, "SSL_CERT_FILE: .* no certificates"),
        "an empty file": ({"REQUESTS_CA_BUNDLE": str(empty)}, "REQUESTS_CA_BUNDLE: .* no certificates"),
        "a page": ({"CURL_CA_BUNDLE": str(page)}, "CURL_CA_BUNDLE: .* no certificates"),
    }


@pytest.mark.parametrize("client", MAKERS, ids=lambda client: client.__name__)
def test_a_wrong_environment_is_told_when_a_client_is_made(
    client: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes before anything is saved or requested: exit 78, with the variable's name."""
    for what, (variables, told) in wrong_environments(tmp_path).items():
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            with pytest.raises(SettingsError, match=told) as caught:
                MAKERS[client]("https://vendor.example", 1.0)
        assert caught.value.exit_code == 78, what
        assert "hunter2" not in str(caught.value)
        assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("client", MAKERS, ids=lambda client: client.__name__)
def test_a_proxy_that_is_passed_by_need_not_be_one(client: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "*")
    MAKERS[client]("http://127.0.0.1:1", 1.0)


@pytest.mark.parametrize(
    "variables",
    [
        {
            "HTTPS_PROXY": "http://127.0.0.1:3128",
            "HTTP_PROXY": "127.0.0.1:3128",
            "ALL_PROXY": "https://user:pw@p.example",
        },
        {"SSL_CERT_FILE": where(), "SSL_CERT_DIR": "/nowhere"},  # the first one counts
        {"SSL_CERT_FILE": "", "ALL_PROXY": ""},
    ],
)
def test_a_sound_environment_is_taken(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for client in MAKERS:
        MAKERS[client]("https://vendor.example", 1.0)


def test_making_a_client_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:1")

    def no_network(*_: Any) -> Any:
        pytest.fail("a name was looked up")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    for client in MAKERS:
        MAKERS[client]("https://vendor.example", 1.0)


def test_a_peer_that_resets_before_the_handshake_leaves_no_socket_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()  # at once, with a reset
        found: list[ssl.SSLSocket] = []
        with pytest.raises(OSError) as caught:
            certificates.trusted().wrap_socket(client, server_hostname="127.0.0.1").do_handshake()
        for frame, _ in walk_tb(caught.value.__traceback__):
            held = frame.f_locals.get("self")
            found += [held] if isinstance(held, ssl.SSLSocket) else []
        assert found
        assert {held.fileno() for held in found} == {-1}, "closed, although CPython alone would not close it"
