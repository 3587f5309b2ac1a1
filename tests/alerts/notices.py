"""Channels as the settings make them, and messages, for tests of sending."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from retake.alerts.message import AlertEvent, Message
from retake.alerts.settings import ALERTS, AlertChannel
from retake.settings.schema import read_table

LINK = "https://dash.example/alerts/a1"
FIELDS = {
    "id": "a1",
    "key": "stopped/runway",
    "code": "stopped",
    "level": "critical",
    "error_class": "C",
    "error_code": "UNAUTHORIZED",
    "state": "open",
    "count": 3,
    "pipelines": ["story", "news"],
    "generation_id": "20261122-1",
    "step": "runway",
    "title": "Stopped: 3 failures & counting <now>",
    "text": "since 08:00, at attempt 3\npython -m retake alerts show a1",
    "first_at": "2026-11-22T08:00:00Z",
    "last_at": "2026-11-22T08:50:00Z",
    "acknowledged_by": None,
}
MESSAGE = Message(
    event=AlertEvent.TRIGGER,
    at="2026-11-22T08:51:21Z",
    subject_id="a1",
    delivery_id="d-0001",
    level="critical",
    title=str(FIELDS["title"]),
    text=str(FIELDS["text"]),
    fields=FIELDS,
    link=LINK,
)
REPORT = Message(
    AlertEvent.REPORT,
    MESSAGE.at,
    "daily-2026-11-22",
    "d-0002",
    None,
    "Daily report",
    "made: 4",
    {"made": 4, "failed": 1},
)


def channel(kind: str, **keys: Any) -> AlertChannel:
    """The channel "it" of `kind`, read from settings."""
    faults: list[str] = []
    settings = read_table(ALERTS, {"channels": {"it": {"kind": kind, **keys}}}, "ALERTS", faults)
    assert faults == []
    [found] = settings.channels
    assert isinstance(found, AlertChannel)
    return found


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody has signed, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, private = folder / "certificate.pem", folder / "key.pem"
    public.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return public, private


def server_tls(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context
