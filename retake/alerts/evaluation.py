"""Computes the next board from the board and what is wrong now. Pure and idempotent.

An alert is open while one of its pipelines has its condition. If it is raised again soon after its end, it is the same
alert, and is sent only if it is still open when that time is over: a condition that comes and goes is reported once,
not each time. A condition that is often over at once (`Condition.lasting`) is sent only if it lasts as long.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from types import MappingProxyType

from retake.alerts.board import ACKNOWLEDGED, OPEN, RESOLVED, Alert, Board
from retake.alerts.conditions import Condition, Findings, channel_refused
from retake.alerts.message import AlertEvent
from retake.alerts.outbox import has_waiting
from retake.alerts.routing import queued, recipients
from retake.alerts.settings import LEVELS, AlertSettings
from retake.clock import is_ahead, parse_stamp, stamp
from retake.errors import redact

_CHANNEL_CODES = frozenset({"channel_refused"})


def evaluated(board: Board, looks: Sequence[Findings], settings: AlertSettings, now: datetime) -> Board:
    """Return the board after `looks`: new alerts are raised, alerts that are over are closed, and messages that are due
    are queued."""
    step = _Evaluation(board, settings, now)
    for look in (*looks, _channels(board, settings)):
        step.take(look)
    for alert in step.alerts.values():
        step.tell_if_due(alert)
    return step.board()


def acknowledged(board: Board, alert: Alert, by: str, settings: AlertSettings, now: datetime) -> Board:
    """Return the board with an active alert acknowledged: it is not sent again unless its level rises."""
    step = _Evaluation(board, settings, now)
    step.put(alert._replace(state=ACKNOWLEDGED, acknowledged_by=by, tell_at=None), AlertEvent.ACKNOWLEDGE)
    return step.board()


def closed(board: Board, alert: Alert, by: str, settings: AlertSettings, now: datetime) -> Board:
    """Return the board with an active alert closed by an operator. It stays closed until its cause occurs again."""
    step = _Evaluation(board, settings, now)
    step.close(alert._replace(closed_by=by))
    return step.board()


def _channels(board: Board, settings: AlertSettings) -> Findings:
    """Return what is wrong with the channels themselves."""
    found = [
        channel_refused(name, outbox.last_error or "", outbox.refused_at)
        for name, outbox in board.channels.items()
        if outbox.refused_at and any(it.name == name for it in settings.channels)
    ]
    return Findings("", _CHANNEL_CODES, tuple(found))


class _Evaluation:
    """An evaluation in progress."""

    def __init__(self, board: Board, settings: AlertSettings, now: datetime) -> None:
        names = {it.name for it in settings.channels}
        self._board, self._settings, self._now = board, settings, now
        self._group = timedelta(seconds=settings.group_seconds)
        self.alerts = dict(board.alerts)
        # Another program on this bucket may have channels that these settings do not have.
        self._channels = {name: it for name, it in board.channels.items() if name in names or has_waiting(it, now)}
        self._ended = list(board.ended)

    def board(self) -> Board:
        """Return the resulting board. Alerts that are over are in `ended`, to be moved to the document of their day."""
        lasting = {key: it for key, it in self.alerts.items() if it.active or it.seen or self._recent(it)}
        over = [it for key, it in self.alerts.items() if key not in lasting]
        ended = tuple(self._ended + over)
        return self._board._replace(alerts=lasting, channels=self._channels, ended=ended)

    def take(self, look: Findings) -> None:
        """Raise what was found, and remove the pipeline from alerts whose condition it no longer has."""
        present = {it.key for it in look.found}
        for alert in [*self.alerts.values()]:
            if look.pipeline in alert.seen and alert.code in look.codes and alert.key not in present:
                self._remove_pipeline(alert, look.pipeline)
        for condition in look.found:
            self._raise(condition, look.pipeline)

    def _remove_pipeline(self, alert: Alert, pipeline: str) -> None:
        left = {name: it for name, it in alert.seen.items() if name != pipeline}
        if left or not alert.active:
            self.alerts[alert.key] = alert._replace(seen=left)
        else:
            self.close(alert)  # with `seen` unchanged, since messages name the pipelines
            self.alerts[alert.key] = self.alerts[alert.key]._replace(seen={}, had=tuple(alert.pipelines))

    def close(self, alert: Alert) -> None:
        over = alert._replace(state=RESOLVED, closed_at=stamp(self._now), tell_at=None)
        self.put(over, AlertEvent.RESOLVE if alert.told else None)

    def _raise(self, condition: Condition, pipeline: str) -> None:
        alert = self.alerts.get(condition.key)
        if condition.ending and not (alert and alert.active):
            return
        if alert is None:
            self._open(condition, pipeline)
        elif not alert.active:
            self._reopen(alert, condition, pipeline)
        else:
            self._update(alert, condition, pipeline)

    def _open(self, condition: Condition, pipeline: str, seen: Mapping[str, str] = MappingProxyType({})) -> None:
        at = stamp(self._now)
        name = sha256(f"{condition.key} {at}".encode()).hexdigest()[:12]
        about = Alert(name, condition.key, condition.code, condition.level, condition.title, 1, seen, at, at)
        if condition.lasting:
            about = about._replace(tell_at=stamp(self._now + self._group))
        self.put(_described(about, condition, pipeline), None if condition.lasting else AlertEvent.TRIGGER)

    def _reopen(self, alert: Alert, condition: Condition, pipeline: str) -> None:
        if alert.closed_by and alert.seen.get(pipeline) == condition.occurrence:
            return  # the operator has seen this one
        if not self._recent(alert):
            self._ended.append(alert)
            self._open(condition, pipeline, alert.seen)  # keep the occurrences that an operator has closed
            return
        quiet_until = stamp((self._now if condition.lasting else self._closed_at(alert)) + self._group)
        opened = alert._replace(
            state=OPEN, closed_at=None, closed_by=None, acknowledged_by=None, tell_at=quiet_until, had=()
        )
        self._update(opened, condition, pipeline)

    def _update(self, alert: Alert, condition: Condition, pipeline: str) -> None:
        """Update an active alert: one of its pipelines has the condition, again or still."""
        alone = set(alert.seen) == {pipeline}
        if again := alert.seen.get(pipeline) != condition.occurrence:
            alert = alert._replace(occurrences=alert.occurrences + 1, last_at=stamp(self._now))
        if again or alone:  # among several pipelines, the last occurrence is described
            alert = _described(alert, condition, pipeline)
        worse = LEVELS.index(condition.level) > LEVELS.index(alert.level)
        if worse or alone:
            alert = alert._replace(level=condition.level, title=condition.title)
        if worse:
            alert = alert._replace(state=OPEN, acknowledged_by=None, tell_at=None)
        self.put(alert, AlertEvent.TRIGGER if worse else None)

    def tell_if_due(self, alert: Alert) -> None:
        """Queue the trigger of an alert that was raised again and stayed open, or the repeat of an alert that nobody
        acknowledged."""
        if alert.tell_at:
            if not is_ahead(parse_stamp(alert.tell_at), self._now, longest_s=self._settings.group_seconds):
                self.put(alert, AlertEvent.TRIGGER)
        elif alert.state == OPEN and alert.told_at:
            since = abs(self._now - parse_stamp(alert.told_at))
            if since >= timedelta(seconds=self._settings.repeat_seconds):
                self.put(alert, AlertEvent.REPEAT)

    def put(self, alert: Alert, event: AlertEvent | None) -> None:
        """Put the alert on the board, and queue the event, if any, for its recipients."""
        if event:
            names = recipients(event, alert, self._settings, self._now)
            before = alert
            if event is AlertEvent.RESOLVE:
                names += self._removed(alert)
            if event in (AlertEvent.TRIGGER, AlertEvent.REPEAT):
                told = (*alert.told, *(it for it in names if it not in alert.told))
                alert = alert._replace(told=told, told_at=stamp(self._now), tell_at=None)
            self._channels = queued(self._channels, event, before, names, self._settings.web_url, self._now)
            if event is AlertEvent.RESOLVE:
                alert = alert._replace(told=())
        self.alerts[alert.key] = alert

    def _removed(self, alert: Alert) -> tuple[str, ...]:
        """Return the channels that were notified of the alert, have messages that wait, and are not in the settings:
        where they are, or once they are again, the beginning must not be all that is sent."""
        known = {it.name for it in self._settings.channels}
        return tuple(name for name in alert.told if name in self._channels and name not in known)

    def _recent(self, alert: Alert) -> bool:
        return abs(self._now - self._closed_at(alert)) < self._group

    def _closed_at(self, alert: Alert) -> datetime:
        return parse_stamp(alert.closed_at or alert.last_at)


def _described(alert: Alert, condition: Condition, pipeline: str) -> Alert:
    """Return the alert with the description of the condition as it is now."""
    return alert._replace(
        seen={**alert.seen, pipeline: condition.occurrence},
        title=condition.title,
        message=redact(condition.message),  # a person may have pasted a link into the reason for a mode
        follows=condition.follows,
        command=condition.command,
        since=alert.since or condition.since,
        generation_id=condition.generation_id,
        step=condition.step,
        attempt=condition.attempt,
        error_class=condition.error_class,
        error_code=condition.error_code,
    )
