"""Channels built from settings, and messages, for tests of sending."""

from typing import Any

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
    """Return the channel "it" of `kind`, read from settings."""
    faults: list[str] = []
    settings = read_table(ALERTS, {"channels": {"it": {"kind": kind, **keys}}}, "ALERTS", faults)
    assert faults == []
    [found] = settings.channels
    assert isinstance(found, AlertChannel)
    return found
