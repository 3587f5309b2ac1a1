"""What a channel is given to send, and how that ended."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

LONGEST_WAIT_S = 3600.0
"""A service that asks for more time than this is asked again all the same."""


class AlertEvent(StrEnum):
    """What a message tells of an alert."""

    TRIGGER = "trigger"
    REPEAT = "repeat"
    ACKNOWLEDGE = "acknowledge"
    RESOLVE = "resolve"
    REPORT = "report"


class Message(NamedTuple):
    """One message, the same at each try."""

    event: AlertEvent
    at: str  # ISO 8601, UTC: when it was queued
    subject_id: str  # of the alert; of a report "daily-2026-11-22"
    delivery_id: str  # of this message to this channel
    level: str | None  # "warning", "error", "critical"; None for a report
    title: str  # one line
    text: str  # several lines, the title not among them
    fields: Mapping[str, Any]  # of the alert as `alerts list --json` has it; of a report its figures
    link: str | None = None  # to the alert on the dashboard

    @property
    def headline(self) -> str:
        """The title with the level before it: "[CRITICAL] Everything has stopped"."""
        return f"[{self.level.upper()}] {self.title}" if self.level else self.title


class Ending(StrEnum):
    """How a try to send a message ended."""

    DELIVERED = "delivered"
    REFUSED = "refused"  # sending it again would change nothing
    FAILED = "failed"  # it is sent again


class Sent(NamedTuple):
    """How a try ended. `why` names what was answered, never a URL: secrets stand in some."""

    how: Ending
    why: str = ""
    retry_after_s: float | None = None  # what the channel asked for
    done: tuple[str, ...] = ()  # the recipients that have it already, where each is sent one of its own
    maybe: bool = False  # it failed without an answer: the channel may have it
