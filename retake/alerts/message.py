"""What a channel has to send, and the result of a try to send it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

MAX_WAIT_S = 3600.0
"""Maximum seconds that a service can make us wait before the next try (Retry-After)."""


class AlertEvent(StrEnum):
    """What a message is about."""

    TRIGGER = "trigger"
    REPEAT = "repeat"
    ACKNOWLEDGE = "acknowledge"
    RESOLVE = "resolve"
    REPORT = "report"


class Message(NamedTuple):
    """One message, the same at each try."""

    event: AlertEvent
    at: str  # ISO 8601, UTC: when it was queued
    subject_id: str  # the alert's id; for a report "daily-2026-11-22"
    delivery_id: str  # identifies this message to this channel
    level: str | None  # "warning", "error", "critical"; None for a report
    title: str  # one line
    text: str  # several lines, without the title
    fields: Mapping[str, Any]  # the alert as in `alerts list --json`, or the figures of a report
    link: str | None = None  # to the alert on the dashboard

    @property
    def headline(self) -> str:
        """The title with the level in front: "[CRITICAL] Everything has stopped"."""
        return f"[{self.level.upper()}] {self.title}" if self.level else self.title


class Ending(StrEnum):
    """How a try to send a message ended."""

    DELIVERED = "delivered"
    REFUSED = "refused"  # permanently: another try would be refused too
    FAILED = "failed"  # temporarily: it is tried again


class Sent(NamedTuple):
    """The result of a try. `why` says what was answered, and never contains a URL, since some contain secrets."""

    how: Ending
    why: str = ""
    retry_after_s: float | None = None  # the delay that the channel asked for
    done: tuple[str, ...] = ()  # recipients that already have it, for channels that send to each separately
    maybe: bool = False  # it failed without an answer, and may have been delivered
