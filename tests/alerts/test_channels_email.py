"""E-mail: the message, the conversation with the server, TLS, and the meaning of its replies."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from mail_server import Mail, MailServer, Reply
from notices import FIELDS, MESSAGE, REPORT, channel
from tls_certificate import make_certificate, server_tls

from retake.alerts.channels.sending import send
from retake.alerts.message import AlertEvent, Ending, Message, Sent
from retake.alerts.settings import AlertChannel

PASSWORD = "c0rrect-horse-battery"
ANN, BEN = "ann@people.example", "ben@people.example"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def trusted(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))


def mailing(server: MailServer, **keys: Any) -> AlertChannel:
    people = {"from": "Retake <retake@studio.example>", "to": [ANN, BEN]}
    made = channel("email", host="127.0.0.1", port=server.port, security="none", **people)
    return made._replace(options={**made.options, **keys})


def sent(server: MailServer, message: Message = MESSAGE, **keys: Any) -> tuple[Mail, EmailMessage]:
    """Send `message`; return the mail that arrived."""
    outcome = send(mailing(server, **keys), PASSWORD if "user" in keys else "", message, 10.0)
    assert outcome == Sent(Ending.DELIVERED)
    parsed = message_from_bytes(server.mails[-1].data, policy=policy.default)
    assert isinstance(parsed, EmailMessage)
    return server.mails[-1], parsed


def failure(server: MailServer, timeout_s: float = 60.0, **keys: Any) -> Sent:
    outcome = send(mailing(server, **keys), PASSWORD, MESSAGE, timeout_s)
    assert PASSWORD not in outcome.why
    assert server.mails == []
    return outcome


def text_of(mail: EmailMessage) -> str:
    return str(mail.get_content()).replace("\r\n", "\n")


# --- the message ----------------------------------------------------------------------------------------------------


def test_the_message() -> None:
    with MailServer() as server:
        mail, parsed = sent(server)
    assert (mail.sender, mail.recipients) == ("retake@studio.example", (ANN, BEN))
    assert parsed["From"] == "Retake <retake@studio.example>"
    assert parsed["To"] == f"{ANN}, {BEN}"
    assert parsed["Subject"] == f"[CRITICAL] {FIELDS['title']}"
    assert parsed["Message-ID"] == "<d-0001@studio.example>"
    assert parsed["Date"] == "Sun, 22 Nov 2026 08:51:21 +0000"
    assert parsed["Auto-Submitted"] == "auto-generated"
    assert (parsed.get_content_type(), parsed.get_content_charset()) == ("text/plain", "utf-8")
    assert text_of(parsed) == f"{FIELDS['text']}\n"


def test_it_is_the_same_at_each_try() -> None:
    with MailServer() as server:
        first, _ = sent(server)
        second, _ = sent(server)
    assert first.data == second.data


def test_names_and_domains_beyond_ascii() -> None:
    with MailServer() as server:
        mail, parsed = sent(
            server, **{"from": "Größe <retake@müller.example>", "to": ['"Ann, B" <ann@müller.example>']}
        )
    assert mail.recipients == ("ann@xn--mller-kva.example",)
    assert parsed["From"] == "Größe <retake@xn--mller-kva.example>"
    assert parsed["Message-ID"] == "<d-0001@xn--mller-kva.example>"


def test_a_report_has_no_level() -> None:
    with MailServer() as server:
        _, parsed = sent(server, REPORT)
    assert parsed["Subject"] == "Daily report"


@pytest.mark.parametrize(
    ("title", "text"),
    [
        ("Größe über 🎬", "ä" * 5000 + "\n🎬\n.\n..x\nFrom here"),
        ("x" * 3000, "y" * 3000),
        ("a\r\nBcc: eve@evil.example", "b\r\nc\r\n.\r\nMAIL FROM:<eve@evil.example>"),
        ("a\nTo: eve@evil.example\n\nbody", "=?utf-8?q?x?="),
        ("\ud800\x00\u2028", "\udcff\x0c\x85"),
        ("t", ""),
    ],
)
def test_no_text_becomes_a_header_or_ends_the_message(title: str, text: str) -> None:
    with MailServer() as server:
        mail, parsed = sent(server, MESSAGE._replace(title=title, text=text))
    assert len(server.mails) == 1
    assert sorted(set(parsed.keys())) == sorted(
        {"From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "MIME-Version"}
        | {"Content-Type", "Content-Transfer-Encoding"}
    )
    assert parsed["To"] == f"{ANN}, {BEN}"
    assert mail.recipients == (ANN, BEN)
    assert mail.data.isascii()
    assert max(map(len, mail.data.split(b"\r\n"))) < 998
    if title.isprintable():
        assert parsed["Subject"] == f"[CRITICAL] {title}"
    if text.replace("\n", "").isprintable():
        assert text_of(parsed) == f"{text}\n"


@pytest.mark.parametrize("delivery_id", ["a b", "x@y>\r\nBcc: eve", "..", "é", "a" * 500, "-a", ""])
def test_any_id_makes_a_message_id(delivery_id: str) -> None:
    with MailServer() as server:
        _, parsed = sent(server, MESSAGE._replace(delivery_id=delivery_id))
    local, _, domain = parsed["Message-ID"].strip("<>").partition("@")
    assert (len(local), domain) == (64, "studio.example")
    assert local.isalnum()


@pytest.mark.parametrize(
    "keys",
    [
        {"from": "nobody"},
        {"from": "a@b\r\nBcc: eve@evil.example"},
        {"from": "retake@"},
        {"from": "@studio.example"},
        {"from": "<>"},
        {"from": "a b c@d e"},
        {"from": f"retake@{'a' * 70}.example"},
        {"to": ["ann@people.example", "x"]},
        {"to": ["größe@people.example"]},
        {"to": ["ann@people.example\nRCPT TO:<eve@evil.example>"]},
    ],
)
def test_an_invalid_address_is_refused_before_anything_is_sent(keys: dict[str, Any]) -> None:
    with MailServer() as server:
        outcome = failure(server, **keys)
    assert outcome == Sent(Ending.REFUSED, "one of the channel's addresses (from, to) is not a mail address")
    assert server.commands == []


# --- the conversation -----------------------------------------------------------------------------------------------


def test_without_a_user_nobody_signs_in() -> None:
    with MailServer() as server:
        mail, _ = sent(server)
    assert (mail.user, mail.encrypted) == ("", False)
    assert [command.split(" ")[0] for command in server.commands[:6]] == [
        *("EHLO", "MAIL", "RCPT", "RCPT", "DATA", "QUIT")
    ]
    assert server.commands[0] == "EHLO [127.0.0.1]"


def test_a_user_signs_in() -> None:
    with MailServer() as server:
        mail, _ = sent(server, user="retake")
    assert (mail.user, mail.password) == ("retake", PASSWORD)


@pytest.mark.usefixtures("trusted")
def test_starttls(certificate: tuple[Path, Path]) -> None:
    with MailServer(tls=server_tls(certificate)) as server:
        mail, _ = sent(server, security="starttls", user="retake")
    assert mail.encrypted
    assert mail.password == PASSWORD
    assert server.commands[1] == "STARTTLS"


@pytest.mark.usefixtures("trusted")
def test_tls_from_the_start(certificate: tuple[Path, Path]) -> None:
    with MailServer(tls=server_tls(certificate), implicit=True) as server:
        mail, _ = sent(server, security="tls", user="retake")
    assert mail.encrypted
    assert "STARTTLS" not in server.commands


@pytest.mark.parametrize(("security", "implicit"), [("starttls", False), ("tls", True)])
def test_a_certificate_of_an_unknown_authority_is_refused(
    certificate: tuple[Path, Path], security: str, implicit: bool
) -> None:
    with MailServer(tls=server_tls(certificate), implicit=implicit) as server:
        outcome = failure(server, security=security, user="retake")
    assert outcome == Sent(Ending.FAILED, "no secure connection (certificate or TLS)")
    assert not any(command.startswith(("AUTH", "MAIL")) for command in server.commands)


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize(("security", "implicit"), [("starttls", False), ("tls", True)])
def test_a_certificate_for_another_host_is_refused(
    certificate: tuple[Path, Path], security: str, implicit: bool
) -> None:
    with MailServer(tls=server_tls(certificate), implicit=implicit) as server:
        found = mailing(server, security=security)
        found = found._replace(options={**found.options, "host": "localhost"})
        outcome = send(found, "", MESSAGE, 10.0)
    assert outcome == Sent(Ending.FAILED, "no secure connection (certificate or TLS)")


def test_where_starttls_is_not_offered_nothing_is_sent_in_clear() -> None:
    with MailServer() as server:
        outcome = failure(server, security="starttls", user="retake")
    lacking = "the server lacks what the channel's settings need (security, user, to)"
    assert outcome == Sent(Ending.REFUSED, lacking)
    assert [command.split(" ")[0] for command in server.commands] == ["EHLO"]


def test_tls_where_the_server_speaks_none() -> None:
    with MailServer() as server:
        assert failure(server, security="tls") == Sent(Ending.FAILED, "no secure connection (certificate or TLS)")


def test_a_server_that_takes_no_sign_in() -> None:
    with MailServer(offers=()) as server:
        outcome = failure(server, user="retake")
    assert outcome.how is Ending.REFUSED
    assert "lacks what the channel's settings need" in outcome.why


# --- replies --------------------------------------------------------------------------------------------------------

REPLIES: list[tuple[dict[str, Reply], Ending, str]] = [
    ({"greeting": "421 busy"}, Ending.FAILED, "421: busy"),
    ({"greeting": "554 no mail here"}, Ending.REFUSED, "554: no mail here"),
    ({"greeting": "hello"}, Ending.FAILED, "the answer is not that of a mail server"),
    ({"greeting": ""}, Ending.FAILED, "the connection was cut"),
    (
        {"AUTH": "535 bad password c0rrect-horse-battery"},
        Ending.REFUSED,
        "535: the server refused the user or the password",
    ),
    ({"AUTH": "454 later"}, Ending.FAILED, "454: the server refused the user or the password"),
    ({"MAIL": "550 not you"}, Ending.REFUSED, "550: not you"),
    ({"MAIL": "451 later"}, Ending.FAILED, "451: later"),
    ({"MAIL": f"550 no {PASSWORD}"}, Ending.REFUSED, "550: no …"),
    ({"RCPT": "550 no such user"}, Ending.REFUSED, "2 of 2 recipients refused: 550: no such user"),
    ({"RCPT": "450 greylisted"}, Ending.FAILED, "2 of 2 recipients refused: 450: greylisted"),
    ({f"RCPT TO:<{ANN}>": "550 no", "RCPT": "450 later"}, Ending.FAILED, "2 of 2 recipients refused: 550: no"),
    ({"DATA": "452 full"}, Ending.FAILED, "452: full"),
    ({"DATA": "554 no"}, Ending.REFUSED, "554: no"),
    ({"body": "552 too much"}, Ending.REFUSED, "552: too much"),
    ({"body": "451 not now"}, Ending.FAILED, "451: not now"),
    ({"body": ""}, Ending.FAILED, "the connection was cut"),
    ({"DATA": ""}, Ending.FAILED, "the connection was cut"),
]


@pytest.mark.parametrize(("replies", "how", "why"), REPLIES)
def test_what_a_reply_means(replies: dict[str, Reply], how: Ending, why: str) -> None:
    with MailServer(replies) as server:
        outcome = failure(server, user="retake")
    assert (outcome.how, outcome.why) == (how, why)


def test_whoever_is_refused_does_not_keep_the_others_from_being_told() -> None:
    with MailServer({f"RCPT TO:<{BEN}>": "550 5.1.1 no such user"}) as server:
        outcome = send(mailing(server), "", MESSAGE, 10.0)
    assert outcome == Sent(Ending.DELIVERED, "1 of 2 recipients refused: 550: 5.1.1 no such user")
    assert server.mails[0].recipients == (ANN,)


def silent(_connection: socket.socket, stop: threading.Event) -> None:
    stop.wait(120.0)  # longer than the minute that the tests grant a try


def drips(piece: bytes) -> Callable[[socket.socket, threading.Event], None]:
    def act(connection: socket.socket, stop: threading.Event) -> None:
        while not stop.wait(0.02):
            with suppress(OSError):
                connection.sendall(piece)

    return act


HELD = [
    *({place: silent} for place in ("greeting", "EHLO", "MAIL", "RCPT", "DATA", "body")),
    *({place: drips(piece)} for place in ("greeting", "body") for piece in (b"2", b"250-x\r\n")),
]


@pytest.mark.parametrize("replies", HELD, ids=lambda it: "-".join(it))
def test_a_try_has_an_end(replies: dict[str, Reply]) -> None:
    begun = time.monotonic()
    with MailServer(replies) as server:
        outcome = failure(server, 0.3)
        assert time.monotonic() - begun < 60
    assert outcome == Sent(Ending.FAILED, "no answer within 0.3 s", maybe=True)


@pytest.mark.parametrize("security", ["tls", "starttls"])
def test_a_handshake_that_does_not_end(security: str) -> None:
    starts = {"greeting": silent} if security == "tls" else {"STARTTLS": lambda it, stop: _go_on(it, stop)}
    begun = time.monotonic()
    with MailServer(starts, offers=("STARTTLS",), tls=None) as server:
        server.offers = lambda encrypted: ["STARTTLS"]  # type: ignore[method-assign]
        outcome = failure(server, 0.3, security=security)
        assert time.monotonic() - begun < 60
    assert outcome == Sent(Ending.FAILED, "no answer within 0.3 s", maybe=True)


def _go_on(connection: socket.socket, stop: threading.Event) -> None:
    connection.sendall(b"220 go ahead\r\n")
    stop.wait(120.0)


def test_a_delivery_does_not_wait_for_the_leave_taking() -> None:
    with MailServer({"QUIT": silent}) as server:
        begun = time.monotonic()
        sent(server)
        assert time.monotonic() - begun < 60


def pours(connection: socket.socket, stop: threading.Event) -> None:
    with suppress(OSError):
        while not stop.is_set():
            connection.sendall(b"250-" + b"x" * 500 + b"\r\n")


@pytest.mark.parametrize("place", ["greeting", "EHLO", "body"])
def test_a_server_that_replies_without_end_is_left(place: str) -> None:
    with MailServer({place: pours}) as server:
        assert failure(server, 20.0) == Sent(Ending.FAILED, "the connection was cut", maybe=True)


def test_nobody_listens() -> None:
    with MailServer() as server:
        found = mailing(server)
    assert send(found, "", MESSAGE, 10.0) == Sent(Ending.FAILED, "no connection: Connection refused")


def test_a_name_server_that_hangs_does_not_hold_a_try(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(120.0) and [])
    with MailServer() as server:
        begun = time.monotonic()
        outcome = failure(server, 0.2)
        assert time.monotonic() - begun < 60
        released.set()
    assert outcome == Sent(Ending.FAILED, "no answer within 0.2 s", maybe=True)


# --- secrets and settings -------------------------------------------------------------------------------------------


def test_a_missing_password_is_named() -> None:
    with MailServer() as server:
        outcome = send(mailing(server, user="retake"), "", MESSAGE, 10.0)
    assert outcome == Sent(Ending.FAILED, "SMTP_PASSWORD is not set")
    assert server.commands == []


@pytest.mark.parametrize("password", ["pässwört-geheim", "a\udcffbcdefgh"])
def test_a_password_that_smtp_does_not_take(password: str) -> None:
    with MailServer() as server:
        outcome = send(mailing(server, user="retake"), password, MESSAGE, 10.0)
    why = "host, user or SMTP_PASSWORD has characters that SMTP does not take"
    assert outcome == Sent(Ending.REFUSED, why)


def test_trusted_certificates_that_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    with MailServer() as server:
        outcome = failure(server, security="starttls")
    assert outcome.how is Ending.FAILED
    assert outcome.why.startswith("SSL_CERT_FILE: ")


def test_a_resolution_is_a_message_of_its_own() -> None:
    with MailServer() as server:
        _, parsed = sent(server, MESSAGE._replace(event=AlertEvent.RESOLVE, delivery_id="d-0009"))
    assert parsed["Message-ID"] == "<d-0009@studio.example>"
