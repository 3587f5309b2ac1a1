"""What all HTTP channels have in common: which answers are final, limits of time and size, TLS, and secrets."""

import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from notices import MESSAGE, REPORT, channel
from scripted_vendor import Act, ScriptedVendor, closed_port, cut, cut_midway, hang, page, says
from tls_certificate import make_certificate, server_tls

from retake.alerts.channels.sending import WHY_LIMIT, send
from retake.alerts.message import MAX_WAIT_S, Ending, Message, Sent
from retake.alerts.settings import AlertChannel
from retake.sandbox.notices import addresses

TOKEN = "7001:AAE-s3cr3t_Tok3n"
KINDS: dict[str, Callable[[str], tuple[AlertChannel, str]]] = {
    "slack": lambda url: (channel("slack"), f"{url}/services/T0S3CR3T/B0S3CR3T/{TOKEN}"),
    "webhook": lambda url: (channel("webhook"), f"{url}/in/{TOKEN}?sig={TOKEN}"),
    "pagerduty": lambda url: (channel("pagerduty", endpoint=f"{url}/v2/enqueue"), TOKEN),
    "telegram": lambda url: (channel("telegram", endpoint=url, chat_id=-42), TOKEN),
    "sms": lambda url: (
        channel("sms", endpoint=url, account="AC0S3CR3T", **{"from": "+15550001", "to": ["+15550002"]}),
        TOKEN,
    ),
}
"""By kind: a function that returns the channel and its secret for a service at `url`."""

PIECES = (TOKEN, "AAE-s3cr3t_Tok3n", "T0S3CR3T", "B0S3CR3T", "127.0.0.1:", "://")

every_kind = pytest.mark.parametrize("kind", KINDS)


def sent(kind: str, url: str, message: Message = MESSAGE, timeout_s: float = 60.0) -> Sent:
    outcome = send(*KINDS[kind](url), message, timeout_s)
    assert not any(piece in outcome.why for piece in PIECES), outcome.why
    assert len(outcome.why) <= WHY_LIMIT
    return outcome


def test_no_kind_is_left_out() -> None:
    assert KINDS.keys() == addresses("").keys(), "add the kind to KINDS above"


ANSWERS: dict[str, tuple[Act, Ending, str]] = {
    "200": (says(200, {}), Ending.DELIVERED, ""),
    "202": (says(202, {}), Ending.DELIVERED, ""),
    "204": (says(204), Ending.DELIVERED, ""),
    "200 with a page": (page(200), Ending.DELIVERED, ""),
    "400": (says(400, {}), Ending.REFUSED, "400"),
    "401": (page(401), Ending.REFUSED, "401"),
    "403": (says(403), Ending.REFUSED, "403"),
    "404": (page(404), Ending.REFUSED, "404"),
    "408": (says(408), Ending.FAILED, "408"),
    "409": (says(409), Ending.REFUSED, "409"),
    "410": (says(410), Ending.REFUSED, "410"),
    "429": (says(429), Ending.FAILED, "429"),
    "500": (says(500), Ending.FAILED, "500"),
    "502 with a page": (page(502), Ending.FAILED, "502"),
    "503": (says(503), Ending.FAILED, "503"),
    "a cut connection": (cut, Ending.FAILED, "the connection was cut"),
    "a cut answer": (cut_midway, Ending.FAILED, "the connection was cut"),
    "no HTTP": (lambda connection, _: connection.sendall(b"220 hello\r\n"), Ending.FAILED, "the connection was cut"),
}


@pytest.mark.parametrize("answer", ANSWERS)
@every_kind
def test_what_an_answer_means(service: ScriptedVendor, kind: str, answer: str) -> None:
    act, how, why = ANSWERS[answer]
    service.script = [act]
    no_answer = why == "the connection was cut"
    assert sent(kind, service.url) == Sent(how, why, maybe=no_answer)
    assert len(service.seen) == 1


@every_kind
def test_a_redirect_is_not_followed(service: ScriptedVendor, kind: str) -> None:
    service.script = [says(307, Location=f"{service.url}/elsewhere/{TOKEN}"), says(200)]
    outcome = sent(kind, service.url)
    assert outcome == Sent(Ending.REFUSED, "307: a redirect, which is not followed")
    assert len(service.seen) == 1


@every_kind
def test_nobody_listens(kind: str) -> None:
    assert sent(kind, closed_port()) == Sent(Ending.FAILED, "no connection: Connection refused")


def drips_body(connection: socket.socket, stop: threading.Event) -> None:
    """Send a body byte by byte."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
    while not stop.wait(0.02):
        connection.sendall(b"x")


@pytest.mark.parametrize("act", [hang, drips_body], ids=["hang", "drip"])
@every_kind
def test_a_try_has_an_end(service: ScriptedVendor, kind: str, act: Act) -> None:
    service.script = [act]
    begun = time.monotonic()
    outcome = sent(kind, service.url, timeout_s=1.0)
    assert time.monotonic() - begun < 60  # the service gives up after 120 s
    assert outcome.how is Ending.FAILED
    waited = r"1|0\.\d+" if kind == "sms" else "1"  # each recipient gets the time that is left when its turn comes
    assert re.fullmatch(rf"no answer within ({waited}) s", outcome.why), outcome.why


def drips_head(connection: socket.socket, stop: threading.Event) -> None:
    """Send the head of an answer byte by byte."""
    for octet in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 10_000:
        if stop.wait(0.02):
            return
        connection.sendall(bytes([octet]))


@every_kind
def test_a_head_byte_by_byte_has_an_end(service: ScriptedVendor, kind: str) -> None:
    service.script = [drips_head]
    begun = time.monotonic()
    assert sent(kind, service.url, timeout_s=0.3).how is Ending.FAILED
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize(("status", "how"), [(200, Ending.DELIVERED), (503, Ending.FAILED), (404, Ending.REFUSED)])
@every_kind
def test_only_the_status_of_a_giant_answer_counts(service: ScriptedVendor, kind: str, status: int, how: Ending) -> None:
    service.script = [says(status, b"x" * 300_000, Retry_After="7")]
    outcome = sent(kind, service.url)
    assert outcome.how is how
    assert outcome.retry_after_s == (7.0 if how is Ending.FAILED else None)


def in_an_hour_and_a_half() -> dict[str, str]:
    now = datetime(2026, 11, 22, 9, tzinfo=UTC)
    dates = (now, now + timedelta(minutes=90))
    date, later = (format_datetime(it, usegmt=True) for it in dates)
    return {"Date": date, "Retry_After": later}


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"Retry_After": "30"}, 30.0),
        ({"Retry_After": "86400"}, MAX_WAIT_S),
        ({"Retry_After": "-5"}, None),
        ({"Retry_After": "soon"}, None),
        ({"Retry_After": "Sun, 22 Nov 2026 09:01:00 GMT", "Date": "Sun, 22 Nov 2026 09:00:00 GMT"}, 60.0),
        (in_an_hour_and_a_half(), MAX_WAIT_S),
    ],
)
@every_kind
def test_how_long_a_service_wants_to_be_left_alone(
    service: ScriptedVendor, kind: str, headers: dict[str, str], wait_s: float | None
) -> None:
    service.script = [says(429, {}, **headers)]
    assert sent(kind, service.url) == Sent(Ending.FAILED, "429", wait_s)


@every_kind
def test_a_refusal_asks_for_no_time(service: ScriptedVendor, kind: str) -> None:
    service.script = [says(403, {}, Retry_After="30")]
    assert sent(kind, service.url).retry_after_s is None


# --- TLS ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


class SecureService(ScriptedVendor):
    """A service that serves its script over TLS."""

    context: ssl.SSLContext

    def serve(self, connection: socket.socket, stop: threading.Event) -> None:
        with self.context.wrap_socket(connection, server_side=True) as secured:
            super().serve(secured, stop)


@every_kind
def test_a_certificate_of_an_unknown_authority_is_refused(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    SecureService.context = server_tls(certificate)
    secure = SecureService()
    secure.script = [says(200, {}), says(200, {})]
    url = secure.url.replace("http:", "https:")
    try:
        assert sent(kind, url) == Sent(Ending.FAILED, "no secure connection (certificate or TLS)")
        assert secure.seen == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        assert sent(kind, url).how is Ending.DELIVERED
    finally:
        secure.close()


@every_kind
def test_certificates_and_proxies_of_the_environment_that_are_wrong_are_named(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    outcome = sent(kind, "http://127.0.0.1:9")
    assert outcome.how is Ending.FAILED
    assert outcome.why.startswith("SSL_CERT_FILE: the file or folder cannot be read")


# --- secrets --------------------------------------------------------------------------------------------------------


def echo(connection: socket.socket, _stop: threading.Event) -> None:
    """Refuse the call, and repeat all that the service knows of the caller in the fields that give reasons."""
    told = f"bad {TOKEN} {TOKEN.replace(':', '%3A')} {TOKEN.lower()} /bot{TOKEN}/x"
    body = {"message": told, "description": told, "code": 7, "errors": [told]}
    says(400, body)(connection, _stop)


@every_kind
def test_a_secret_that_a_service_repeats_is_masked(service: ScriptedVendor, kind: str) -> None:
    service.script = [echo]
    outcome = sent(kind, service.url)
    assert outcome.how is Ending.REFUSED
    assert "s3cr3t" not in outcome.why.lower()


class _Everything(logging.Handler):
    """A log handler that keeps all records as text."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name} {record.getMessage()} {record.exc_info}")


def odd_headers(connection: socket.socket, _stop: threading.Event) -> None:
    """Answer with a line that is not a header, about which urllib3 warns with the whole URL."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nno header at all\r\nContent-Length: 0\r\n\r\n")


@every_kind
def test_nothing_is_logged_above_debug_and_no_exception_gets_out(service: ScriptedVendor, kind: str) -> None:
    kept, root = _Everything(), logging.getLogger()
    level = root.level
    root.addHandler(kept)
    root.setLevel(logging.INFO)
    try:
        for act in (says(200, {}), says(500, {}), cut, odd_headers):
            service.script = [act]
            sent(kind, service.url)
        sent(kind, closed_port())
    finally:
        root.removeHandler(kept)
        root.setLevel(level)
    assert kept.lines == []


@every_kind
def test_a_missing_secret_is_named_and_may_still_be_set(kind: str) -> None:
    found, _ = KINDS[kind]("http://127.0.0.1:9")
    assert send(found, " \n", MESSAGE, 1.0, ("x",)) == Sent(Ending.FAILED, f"{found.env} is not set", done=("x",))


IMPOSSIBLE = [
    "not a url",
    "https://a\nb/c",
    "ftp://x.example/abcdefgh",
    "http://[::1/secret",
    "//secret12/x",
    "☃☃☃☃☃☃",
    "http://a..b/s3cr3tpath",
    "http://" + "a" * 70 + ".example/s3cr3t",
]


@pytest.mark.parametrize("secret", IMPOSSIBLE)
@pytest.mark.parametrize("kind", ["slack", "webhook"])
def test_a_secret_that_is_not_a_url(kind: str, secret: str) -> None:
    found = channel(kind)
    outcome = send(found, secret, MESSAGE, 1.0)
    assert outcome == Sent(Ending.REFUSED, f"{found.env} does not make a valid URL")


@pytest.mark.parametrize("secret", ["a b", "x\r\nY: z", "☃☃☃☃☃☃", "7001/x", "7001?x=1", "a\x00b"])
@pytest.mark.parametrize("kind", ["telegram", "pagerduty", "sms"])
def test_a_secret_that_no_url_or_header_can_hold(service: ScriptedVendor, kind: str, secret: str) -> None:
    found, _ = KINDS[kind](service.url)
    service.script = [says(401, {})]
    outcome = send(found, secret, MESSAGE, 5.0)
    assert outcome.how is Ending.REFUSED
    if kind == "telegram":
        assert outcome.why == "TELEGRAM_BOT_TOKEN has characters that no token has"
        assert service.seen == []
    else:
        [seen] = service.seen
        assert "y" not in seen.headers


@every_kind
def test_a_newline_at_the_end_of_the_variable_is_not_part_of_the_secret(service: ScriptedVendor, kind: str) -> None:
    service.script = [says(200, {}), says(200, {})]
    found, secret = KINDS[kind](service.url)
    send(found, secret, MESSAGE, 5.0)
    send(found, f" {secret}\r\n", MESSAGE, 5.0)
    first, second = service.seen
    assert (first.target, first.headers, first.body) == (second.target, second.headers, second.body)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("webhook",)])
def test_an_endpoint_of_the_settings_that_is_not_a_url(kind: str) -> None:
    found, secret = KINDS[kind]("http://127.0.0.1:9")
    if "endpoint" not in found.options:
        return
    found = found._replace(options={**found.options, "endpoint": "http://a..b"})
    outcome = send(found, secret, MESSAGE, 1.0)
    assert outcome == Sent(Ending.REFUSED, f"{found.env}, or the channel's endpoint, does not make a valid URL")


@every_kind
def test_odd_texts_are_sent_anyway(service: ScriptedVendor, kind: str) -> None:
    odd: dict[str, Any] = {"title": "a\ud800\r\nBcc: x\x00\u202e", "text": "\ud83d b\x1b[31m\n" + "🎬" * 50_000}
    service.script = [says(200, {}), says(200, {})]
    assert sent(kind, service.url, MESSAGE._replace(**odd)).how is Ending.DELIVERED
    assert sent(kind, service.url, REPORT).how is Ending.DELIVERED
    assert len(service.seen) == 2


@pytest.mark.parametrize("kind", ["webhook", "pagerduty"])
def test_what_is_sent_is_json_for_the_strictest_reader(service: ScriptedVendor, kind: str) -> None:
    """`mode set --why` on a terminal that is not UTF-8 can produce half of a surrogate pair."""
    service.script = [says(202, {})]
    fields = {**MESSAGE.fields, "text": "caf\udce9", "title": "\ud800", "spend_usd": float("inf")}
    assert sent(kind, service.url, MESSAGE._replace(fields=fields)).how is Ending.DELIVERED
    assert b"caf?" in service.seen[0].body
    assert not any(it in service.seen[0].body for it in (b"\\ud", b"Infinity"))
