"""A board with a clock, settings and pipelines, evaluated step by step."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from retake.alerts.board import Alert, Board, decoded, encoded
from retake.alerts.conditions import Condition, Findings
from retake.alerts.evaluation import acknowledged, closed, evaluated
from retake.alerts.settings import ALERTS, AlertSettings
from retake.settings.schema import read_table

START = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)  # a Monday, in working hours


def alert_settings(**given: Any) -> AlertSettings:
    faults: list[str] = []
    settings = read_table(ALERTS, given, "ALERTS", faults)
    assert not faults, faults
    found: AlertSettings = settings
    return found


def condition(code: str = "step_failing", occurrence: str = "1", **more: Any) -> Condition:
    given = {"level": "warning", "key": f"{code}/imagine", "title": f"{code} at imagine", **more}
    return Condition(code, occurrence=occurrence, **given)


CHANNELS: Mapping[str, Any] = {"all": {"kind": "webhook"}}


class AlertWorld:
    def __init__(self, **given: Any) -> None:
        self.settings = alert_settings(**{"channels": CHANNELS, **given})
        self.now = START
        self.board = Board()

    def after(self, seconds: float) -> "AlertWorld":
        self.now += timedelta(seconds=seconds)
        return self

    def look(self, *found: Condition, pipeline: str = "story", codes: set[str] | None = None) -> "AlertWorld":
        """Tick a pipeline once. The board goes through JSON, as it does in a bucket."""
        looked = frozenset(codes or {"step_failing", "generation_failed", "outcome_unknown"})
        new = evaluated(self.board, [Findings(pipeline, looked, found)], self.settings, self.now)
        self.board = decoded(encoded(new))
        return self

    def acknowledge(self, by: str = "ann") -> None:
        self.board = acknowledged(self.board, self.alert, by, self.settings, self.now)

    def close(self, by: str = "ann") -> None:
        self.board = closed(self.board, self.alert, by, self.settings, self.now)

    @property
    def alert(self) -> Alert:
        [alert] = self.board.alerts.values()
        return alert

    def queue(self, channel: str = "all") -> list[str]:
        box = self.board.channels.get(channel)
        return [it.event.value for it in box.queue] if box else []

    def sent(self, channel: str = "all") -> list[str]:
        """Return the queued messages, and empty the queue as if they had been sent."""
        found = self.queue(channel)
        if found:
            box = self.board.channels[channel]._replace(queue=())
            self.board = self.board._replace(channels={**self.board.channels, channel: box})
        return found
