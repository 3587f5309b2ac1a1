"""The alerts on record and the queues of the channels: one JSON document, `alerts/state.json` at the bucket's root.

It is changed only by compare-and-set, and read at the beginning of each tick, so it must stay small. An alert that is
over moves to the document of its day, `alerts/YYYY-MM-DD.json`, where it is kept for thirty days.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from retake.alerts.message import AlertEvent
from retake.alerts.settings import LEVELS
from retake.clock import parse_stamp

FOLDER = "alerts/"
"""The folder of a bucket that holds the board and the documents of days."""

BOARD = "state"
"""The name of the board in the folder."""

OPEN, ACKNOWLEDGED, RESOLVED = "open", "acknowledged", "resolved"


class Alert(NamedTuple):
    """One alert. Times are ISO 8601, UTC."""

    id: str
    key: str  # identifies its cause
    code: str
    level: str
    title: str
    occurrences: int
    seen: Mapping[str, str]  # the occurrence counted last, by pipeline that has it ("": what all share)
    first_at: str
    last_at: str
    state: str = OPEN
    message: str = ""
    follows: str = ""
    command: str = ""
    since: str | None = None
    generation_id: str | None = None
    step: str | None = None
    attempt: str | None = None
    error_class: str | None = None
    error_code: str | None = None
    acknowledged_by: str | None = None
    closed_at: str | None = None
    closed_by: str | None = None  # the operator who closed it while its condition persisted
    tell_at: str | None = None  # when it will be sent, if that is still to come
    told_at: str | None = None  # when it was last sent
    told: tuple[str, ...] = ()  # the channels that it was sent to
    had: tuple[str, ...] = ()  # once it is over, the pipelines that had it last

    @property
    def active(self) -> bool:
        return self.state != RESOLVED

    @property
    def pipelines(self) -> list[str]:
        """The pipelines that have it, or had it most recently."""
        return sorted(filter(None, self.seen)) or list(self.had)


class QueuedMessage(NamedTuple):
    """A message that waits in the queue of a channel."""

    id: str
    event: AlertEvent
    at: str
    subject_id: str
    level: str | None
    title: str
    text: str
    fields: Mapping[str, Any]
    done: tuple[str, ...] = ()  # recipients that already have it
    link: str | None = None  # to the alert on the dashboard
    again: bool = False  # whether the channel may already know of the alert, and so needs its resolution


class ChannelQueue(NamedTuple):
    """The queue of one channel, and how its last deliveries ended."""

    queue: tuple[QueuedMessage, ...] = ()
    sending_until: str | None = None  # until when a sender has claimed the channel
    next_at: str | None = None  # after a failed try, the time of the next one
    failures: int = 0  # in a row
    last_error: str | None = None
    refused_at: str | None = None  # set if it refused the last delivery
    last_delivered_at: str | None = None


class Board(NamedTuple):
    """The alerts that are open or ended recently, by key, and the queues of the channels, by name.

    `ended` are alerts that are over, which move to the document of their day next. `reports` has the time for which
    each report was last made. `mode` is a copy of the state of the degraded mode, and is kept unchanged.
    """

    alerts: Mapping[str, Alert] = {}
    channels: Mapping[str, ChannelQueue] = {}
    ended: tuple[Alert, ...] = ()
    reports: Mapping[str, str] = {}
    mode: Mapping[str, Any] | None = None

    def find(self, alert_id: str) -> Alert | None:
        """Return the alert with this id, or None."""
        return next((it for it in (*self.alerts.values(), *self.ended) if it.id == alert_id), None)


def decoded(raw: Mapping[str, Any] | None) -> Board:
    """Return the stored board `raw`. Raises ValueError, whose message names the field."""
    raw = raw or {}
    alerts = [decoded_alert(it) for it in _list(raw, "alerts")]
    channels = {name: _queue(it, f"channels.{name}") for name, it in _object(raw, "channels").items()}
    ended = tuple(decoded_alert(it) for it in _list(raw, "ended"))
    reports = dict(_object(raw, "reports"))
    return Board({it.key: it for it in alerts}, channels, ended, reports, raw.get("mode"))


def encoded(board: Board) -> dict[str, Any]:
    """Return the board as JSON types."""
    return {
        "alerts": [encoded_alert(it) for it in board.alerts.values()],
        "channels": {name: _encoded_queue(it) for name, it in board.channels.items()},
        "ended": [encoded_alert(it) for it in board.ended],
        "reports": dict(board.reports),
        "mode": board.mode,
    }


def decoded_alert(raw: Any) -> Alert:
    """Return the stored alert `raw`. Raises ValueError. Descriptive fields that are not text are left out, so that the
    rest can be sent."""
    values = _texts_among(_known(raw, Alert._fields, "an alert"), _DESCRIPTION)
    if values.get("state") not in (OPEN, ACKNOWLEDGED, RESOLVED):
        values.pop("state", None)
    _check_there(values, Alert, "an alert")
    try:
        seen = {str(name): str(it) for name, it in dict(values["seen"]).items()}
        alert = Alert(**{**values, "seen": seen, **_tuples(values, "told", "had")})
    except TypeError as error:
        raise ValueError(f"an alert: {error}") from error
    _check_texts(alert, ("id", "key", "code", "title", "first_at", "last_at"), "an alert")
    if alert.level not in LEVELS or type(alert.occurrences) is not int:
        raise ValueError(f"an alert: level must be one of {', '.join(LEVELS)}, and occurrences a whole number")
    _check_times(alert, ("first_at", "last_at", "closed_at", "tell_at", "told_at"), "an alert")
    return alert


_DESCRIPTION = (
    *("message", "follows", "command", "since", "generation_id", "step", "attempt", "error_class", "error_code"),
    *("acknowledged_by", "closed_by"),
)


def encoded_alert(alert: Alert) -> dict[str, Any]:
    """Return the alert as JSON types, without fields that have their default."""
    return {**_without_defaults(alert), "seen": dict(alert.seen)}


def _queue(raw: Any, where: str) -> ChannelQueue:
    values = _texts_among(_known(raw, ChannelQueue._fields, where), ("last_error", "last_delivered_at"))
    queue = tuple(_delivery(it, f"{where}.queue") for it in _list(values, "queue"))
    outbox = ChannelQueue(**{**values, "queue": queue})
    if type(outbox.failures) is not int:
        raise ValueError(f"{where}: failures: is not a whole number")
    _check_times(outbox, ("sending_until", "next_at", "refused_at", "last_delivered_at"), where)
    return outbox


def _delivery(raw: Any, where: str) -> QueuedMessage:
    values = _texts_among(_known(raw, QueuedMessage._fields, where), ("link",))
    if values.get("level") not in LEVELS:
        values["level"] = None
    _check_there(values, QueuedMessage, where)
    try:
        message = QueuedMessage(**{**values, "event": AlertEvent(values["event"]), **_tuples(values, "done")})
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error
    if not isinstance(message.fields, dict):
        raise ValueError(f"{where}: fields: is not an object")  # noqa: TRY004  a fault of the document
    _check_texts(message, ("id", "at", "subject_id", "title", "text"), where)
    _check_times(message, ("at",), where)
    return message


def _texts_among(values: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the values without those of `names` that are not text."""
    odd = {name for name in names if not isinstance(values.get(name), str)}
    return {name: it for name, it in values.items() if name not in odd}


def _check_there(values: Mapping[str, Any], kind: type[Alert] | type[QueuedMessage], where: str) -> None:
    if missing := [name for name in kind._fields if name not in values and name not in kind._field_defaults]:
        raise ValueError(f"{where}: has no {', '.join(missing)}")


def _check_texts(value: Any, names: Iterable[str], where: str) -> None:
    for name in names:
        if not isinstance(getattr(value, name), str):
            raise ValueError(f"{where}: {name}: is not text")  # noqa: TRY004  a fault of the document


def _check_times(value: Any, names: Iterable[str], where: str) -> None:
    for name in names:
        moment = getattr(value, name)
        try:
            if moment is not None:
                parse_stamp(moment)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{where}: {name}: is not a time") from error


def _encoded_queue(outbox: ChannelQueue) -> dict[str, Any]:
    return {**_without_defaults(outbox), "queue": [_without_defaults(it) for it in outbox.queue]}


def _without_defaults(value: Any) -> dict[str, Any]:
    defaults = value._field_defaults
    return {name: it for name, it in value._asdict().items() if name not in defaults or it != defaults[name]}


def _tuples(values: Mapping[str, Any], *names: str) -> dict[str, tuple[str, ...]]:
    return {name: tuple(map(str, values.get(name) or ())) for name in names}


def _known(raw: Any, fields: Iterable[str], where: str) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise ValueError(f"{where}: is not an object")  # noqa: TRY004  a fault of the document
    return {name: raw[name] for name in fields if name in raw}


def _list(raw: Mapping[str, Any], key: str) -> list[Any]:
    value = raw.get(key) or []
    if not isinstance(value, list):
        raise ValueError(f"{key}: is not a list")  # noqa: TRY004  a fault of the document
    return value


def _object(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key) or {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}: is not an object")  # noqa: TRY004  a fault of the document
    return value
