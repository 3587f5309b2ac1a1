"""The texts about an alert that people read, and its fields for programs."""

from typing import Any

from retake.alerts.board import Alert
from retake.alerts.message import AlertEvent

_MAX_MESSAGE_LENGTH = 600  # characters of the error message
_MAX_PIPELINES_NAMED = 5

_PREFIXES = {
    AlertEvent.REPEAT: "Still open: ",
    AlertEvent.ACKNOWLEDGE: "Acknowledged: ",
    AlertEvent.RESOLVE: "Resolved: ",
}


def title(alert: Alert, event: AlertEvent = AlertEvent.TRIGGER) -> str:
    """Return the title of a message about the alert: one line, without the level."""
    return f"{_PREFIXES.get(event, '')}{alert.title}"


def text(alert: Alert, web_url: str | None) -> str:
    """Return the text of a message below its title, several lines."""
    return "\n".join(f"{name}: {value}" for name, value in lines(alert, web_url))


def lines(alert: Alert, web_url: str | None) -> list[tuple[str, str]]:
    """Return the lines of the text, as (name, value): where it is, what went wrong, since when and how often, what
    happens next, and what a person can do."""
    told = [
        ("Level", alert.level),
        ("Where", _where(alert)),
        ("Error", _error(alert)),
        ("Since", _since(alert)),
        ("Automatically", alert.follows if alert.active else ""),
        ("Command", alert.command if alert.active else ""),
        ("Link", link(alert.id, web_url) or ""),
    ]
    return [(name, value) for name, value in told if value]


def link(alert_id: str, web_url: str | None) -> str | None:
    """Return the URL of the alert on the dashboard, or None without a dashboard."""
    return f"{web_url}/alerts/{alert_id}" if web_url else None


def fields(alert: Alert, web_url: str | None) -> dict[str, Any]:
    """Return the alert as in `alerts list --json`."""
    return {
        "id": alert.id,
        "key": alert.key,
        "code": alert.code,
        "level": alert.level,
        "error_class": alert.error_class,
        "error_code": alert.error_code,
        "state": alert.state,
        "count": alert.occurrences,
        "pipelines": alert.pipelines,
        "generation_id": alert.generation_id,
        "step": alert.step,
        "title": alert.title,
        "text": text(alert, web_url),
        "first_at": alert.first_at,
        "last_at": alert.last_at,
        "acknowledged_by": alert.acknowledged_by,
    }


def _where(alert: Alert) -> str:
    names = alert.pipelines
    more = f" and {len(names) - _MAX_PIPELINES_NAMED} more" if len(names) > _MAX_PIPELINES_NAMED else ""
    parts = [
        ", ".join(names[:_MAX_PIPELINES_NAMED]) + more,
        f"generation {alert.generation_id}" if alert.generation_id else "",
        f"step {alert.step}" if alert.step else "",
        f"attempt {alert.attempt}" if alert.attempt else "",
    ]
    return ", ".join(filter(None, parts))


def _error(alert: Alert) -> str:
    message = alert.message
    if len(message) > _MAX_MESSAGE_LENGTH:
        message = f"{message[:_MAX_MESSAGE_LENGTH]}…"
    kind = f"{alert.error_code} (class {alert.error_class})" if alert.error_code else ""
    return ": ".join(filter(None, [kind, message]))


def _since(alert: Alert) -> str:
    times = "once" if alert.occurrences == 1 else f"{alert.occurrences} times"
    end = f", until {_clock(alert.closed_at)}" if alert.closed_at else ""
    last = f", last {_clock(alert.last_at)}" if alert.occurrences > 1 and not end else ""
    return f"{_clock(alert.since or alert.first_at)}{end}, {times}{last}"


def _clock(stamped: str) -> str:
    return f"{stamped[:10]} {stamped[11:16]} UTC"
