"""An operator's view of the alerts, and the actions on them."""

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from retake.alerts.board import ACKNOWLEDGED, Alert, Board, QueuedMessage
from retake.alerts.delivery import Sender
from retake.alerts.evaluation import acknowledged, closed, evaluated
from retake.alerts.message import AlertEvent, Ending, Message, Sent
from retake.alerts.outbox import tested
from retake.alerts.reports import with_report
from retake.alerts.settings import LEVELS, AlertChannel, why_no_channel
from retake.alerts.store import BoardStore
from retake.alerts.wording import fields
from retake.clock import stamp
from retake.operations.pipelines import Operations
from retake.operations.port import OrderDone, Refusal
from retake.operations.reports import PeriodReport

_MAX_ROUNDS = 3
"""How often `deliver` looks for more messages: a refusal by one channel is an alert to the others."""


class ChannelTest(NamedTuple):
    """The result of a test message to a channel."""

    channel: AlertChannel
    outcome: Sent
    seconds: float

    @property
    def delivered(self) -> bool:
        return self.outcome.how is Ending.DELIVERED


class AlertPanel:
    """The alerts of a bucket. `environ` holds the channels' secrets. Every method may raise StateError and
    StorageError."""

    def __init__(self, operations: Operations, environ: Mapping[str, str]) -> None:
        self._settings = operations.terms.alerts
        self._clock = operations.clock
        self.environ = environ
        self._store = BoardStore(operations.bucket, operations.clock)

    def alerts(self, *, ended: bool = False, tolerant: bool = False) -> list[Alert]:
        """Return the active alerts, the most severe first; with `ended` also those that ended in the last 30 days. With
        `tolerant`, days whose document is invalid are left out."""
        board = self._store.read()
        found = [it for it in board.alerts.values() if it.active]
        found.sort(key=lambda it: it.first_at, reverse=True)
        found.sort(key=lambda it: LEVELS.index(it.level), reverse=True)
        return [*found, *self._ended(board, tolerant=tolerant)] if ended else found

    def _ended(self, board: Board, *, tolerant: bool) -> list[Alert]:
        late = [*(it for it in board.alerts.values() if not it.active), *board.ended]
        by_id = {it.id: it for it in (*late, *self._store.history(self._clock.now(), tolerant=tolerant))}
        return sorted(by_id.values(), key=lambda it: it.closed_at or "", reverse=True)

    def find(self, alert_id: str) -> Alert:
        """Return one alert. Raises Refusal for an unknown id."""
        board = self._store.read()
        if alert := board.find(alert_id):
            return alert
        for alert in self._store.history(self._clock.now()):
            if alert.id == alert_id:
                return alert
        raise Refusal(f"there is no alert {alert_id!r}: see alerts list --all")

    def acknowledge(self, alert_id: str, by: str) -> Alert:
        """Acknowledge an alert, so that no more messages about it are sent. Raises Refusal."""
        return self._change(alert_id, by, done="acknowledged")

    def close(self, alert_id: str, by: str) -> Alert:
        """Close an alert until its cause occurs again. Raises Refusal."""
        return self._change(alert_id, by, done="closed")

    def _change(self, alert_id: str, by: str, *, done: str) -> Alert:
        step = acknowledged if done == "acknowledged" else closed

        def change(board: Board) -> tuple[Board, bool]:
            alert = board.find(alert_id)
            if alert is None or not alert.active:
                return board, False
            if done == "acknowledged" and (alert.state, alert.acknowledged_by) == (ACKNOWLEDGED, by):
                return board, True  # acknowledged twice, announced once
            return step(board, alert, by, self._settings, self._clock.now()), True

        if not self._store.change(change):
            alert = self.find(alert_id)
            raise Refusal(f"{alert_id} ended at {alert.closed_at}; it cannot be {done}")
        self.deliver()
        return self.find(alert_id)

    def deliver(self) -> tuple[list[str], Board]:
        """Queue what is due and send what waits. Return the names of the channels that did not take a message, and the
        board afterwards."""
        sender = Sender(self._store, self._settings, self.environ, self._clock)
        tried: set[str] = set()
        for _ in range(_MAX_ROUNDS):
            self._store.change(lambda board: (evaluated(board, (), self._settings, self._clock.now()), None))
            started = sender.start()
            if not started:
                break
            tried.update(started)
            sender.wait(self._settings.timeout_seconds + 1)
        board = self._store.read()
        boxes = ((name, board.channels.get(name)) for name in sorted(tried))
        return [name for name, box in boxes if box and (box.failures or box.refused_at)], board

    def send_report(self, report: PeriodReport, now: datetime) -> list[str]:
        """Send a report, even if it was sent already. Return the channels that take it but have not received it. Raises
        Refusal if no channel takes it."""
        takers = {it.name for it in self._settings.channels if report.kind in it.reports}
        if not takers:
            raise Refusal(
                f"no channel takes the {report.kind} report: name it in the `reports` of one (docs/alerts.md)"
            )
        sent, settings = report.sent(), self._settings
        self._store.change(lambda board: (with_report(board, sent, settings, now, again=True), None))
        failed, board = self.deliver()
        waiting = {name for name in takers if _waits(board, name, lambda it: it.event is AlertEvent.REPORT)}
        return sorted(takers.intersection(failed) | waiting)

    def untold(self, alert: Alert) -> list[str]:
        """Return the channels to which the first message about an alert is still waiting."""
        board = self._store.read()

        def begins(it: QueuedMessage) -> bool:
            return it.subject_id == alert.id and it.event is AlertEvent.TRIGGER and not it.again

        return [name for name in alert.told if _waits(board, name, begins)]

    def test(self, name: str | None) -> list[ChannelTest]:
        """Send a test message to each channel, or to the one called `name`, and return the results. Raises Refusal."""
        chosen = [it for it in self._settings.channels if name in (None, it.name)]
        if not self._settings.channels:
            raise Refusal(f"there is no channel to test: {why_no_channel(self.environ)} (docs/alerts.md)")
        if not chosen:
            names = ", ".join(it.name for it in self._settings.channels)
            raise Refusal(f"there is no channel {name} in ALERTS.channels ({names})")
        found = []
        for channel in chosen:
            began = time.monotonic()
            outcome = self._try(channel)
            found.append(ChannelTest(channel, outcome, time.monotonic() - began))
        now = self._clock.now()
        outcomes = {it.channel.name: it.outcome for it in found}
        self._store.change(lambda board: (tested(board, outcomes, now), None))
        return found

    def _try(self, channel: AlertChannel) -> Sent:
        sender = Sender(self._store, self._settings, self.environ, self._clock)
        at = stamp(self._clock.now())
        alert = Alert(
            f"test-{at}",
            "test",
            "test",
            channel.levels[0] if channel.levels else "warning",
            "This is a test",
            1,
            {},
            at,
            at,
        )
        told = fields(alert, None)
        text = f"The channel {channel.name} works. Nothing is wrong."
        message = Message(AlertEvent.TRIGGER, at, alert.id, alert.id, alert.level, alert.title, text, told)
        outcome = sender.send(channel, message, self._settings.timeout_seconds)
        if channel.kind == "pagerduty" and outcome.how is Ending.DELIVERED:
            return sender.send(channel, message._replace(event=AlertEvent.RESOLVE), self._settings.timeout_seconds)
        return outcome

    def channels(self, board: Board | None = None) -> list[dict[str, Any]]:
        """Return the state of the channels as JSON documents, by default as it is now."""
        board = board or self._store.read()
        return [_channel(it, board, self.environ) for it in self._settings.channels]

    def document(self, alert: Alert, *, whole: bool = False) -> dict[str, Any]:
        """Return the alert's JSON document; `whole` adds the fields of `alerts show`."""
        more = {"told": list(alert.told), "closed_at": alert.closed_at} if whole else {}
        return {**fields(alert, self._settings.web_url), **more}

    def list_document(self) -> dict[str, Any]:
        """Return the JSON document of the active alerts and the channels."""
        return {"alerts": [self.document(it) for it in self.alerts()], "channels": self.channels()}


def change_alert(panel: AlertPanel, verb: str, alert_id: str, by: str) -> OrderDone:
    """Carry out `verb`, "ack" or "close", and return what was done. Raises Refusal."""
    alert = panel.acknowledge(alert_id, by) if verb == "ack" else panel.close(alert_id, by)
    how = f"acknowledged by {alert.acknowledged_by}" if verb == "ack" else "closed"
    what = f"the alert {alert.id} is {how}"
    return OrderDone({"done": verb, "what": what, "alert": panel.document(alert)}, what)


def _waits(board: Board, channel: str, chosen: Callable[[QueuedMessage], bool]) -> bool:
    return channel in board.channels and any(map(chosen, board.channels[channel].queue))


def _channel(channel: AlertChannel, board: Board, environ: Mapping[str, str]) -> dict[str, Any]:
    box = board.channels.get(channel.name)
    missing = channel.needs_secret and not environ.get(channel.env, "").strip()
    return {
        "name": channel.name,
        "kind": channel.kind,
        "waiting": len(box.queue) if box else 0,
        "last_error": f"{channel.env} is not set" if missing else (box.last_error if box else None),
        "last_delivered_at": box.last_delivered_at if box else None,
    }
