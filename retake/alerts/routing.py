"""Decides which channels a message goes to, and adds it to their queues."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any

from retake.alerts.board import Alert, ChannelQueue, QueuedMessage
from retake.alerts.hours import zone_of
from retake.alerts.message import AlertEvent
from retake.alerts.settings import AlertChannel, AlertSettings
from retake.alerts.wording import fields, link, text, title
from retake.clock import stamp


def takers(alert: Alert, settings: AlertSettings, now: datetime) -> tuple[str, ...]:
    """Return the names of the channels that an alert goes to: those that take its level and class at this hour, or all
    if none does. An alert about a channel does not go to that channel."""
    return _takers_now(alert, settings, now) or tuple(it.name for it in _others(alert, settings))


def _takers_now(alert: Alert, settings: AlertSettings, now: datetime) -> tuple[str, ...]:
    """Return the names of the channels that take the alert's level and class at this hour."""
    return tuple(it.name for it in _others(alert, settings) if _takes(it, alert, settings, now))


def _others(alert: Alert, settings: AlertSettings) -> list[AlertChannel]:
    """Return the channels other than the one that the alert is about."""
    return [it for it in settings.channels if alert.key != f"channel_refused/{it.name}"]


def _takes(channel: AlertChannel, alert: Alert, settings: AlertSettings, now: datetime) -> bool:
    if alert.level not in channel.levels or (channel.classes and alert.error_class not in channel.classes):
        return False
    if channel.hours == "any":
        return True
    working = settings.working_hours.hold(now.astimezone(zone_of(settings.timezone)))
    return working == (channel.hours == "work")


def recipients(event: AlertEvent, alert: Alert, settings: AlertSettings, now: datetime) -> tuple[str, ...]:
    """Return the names of the channels that an event of an alert goes to.

    A repeat goes where the trigger went, to the channels whose hours have begun since, and to `escalate`. Otherwise
    what was raised just before the end of the working hours would never reach those who are on call after it. An
    acknowledgement goes to PagerDuty, which then stops paging. The resolution goes to every channel that was told of
    the alert and takes resolutions.
    """
    channels = {it.name: it for it in settings.channels}
    told = [name for name in alert.told if name in channels]
    match event:
        case AlertEvent.TRIGGER:
            return takers(alert, settings, now)
        case AlertEvent.REPEAT:
            escalated = (name for name in settings.escalate if name in channels)
            present = _takers_now(alert, settings, now) if told else takers(alert, settings, now)
            return tuple(dict.fromkeys((*told, *present, *escalated)))
        case AlertEvent.ACKNOWLEDGE:
            return tuple(name for name in told if channels[name].kind == "pagerduty")
        case AlertEvent.RESOLVE:
            return tuple(name for name in told if channels[name].resolved)
        case AlertEvent.REPORT:
            return ()


def queued(
    channels: Mapping[str, ChannelQueue],
    event: AlertEvent,
    alert: Alert,
    names: Iterable[str],
    web_url: str | None,
    now: datetime,
) -> dict[str, ChannelQueue]:
    """Return the channels with a message about the alert added to the queues of `names`. `alert.told` are the channels
    that were told of it before."""
    told, at = fields(alert, web_url), stamp(now)
    message = QueuedMessage(
        "",
        event,
        at,
        alert.id,
        alert.level,
        title(alert, event),
        text(alert, web_url),
        told,
        link=link(alert.id, web_url),
    )
    made = {name: message._replace(again=name in alert.told) for name in names}
    return {**channels, **{name: _joined(channels.get(name, ChannelQueue()), it, name) for name, it in made.items()}}


def queued_report(
    channels: Mapping[str, ChannelQueue],
    report_id: str,
    words: str,
    figures: Mapping[str, Any],
    names: Iterable[str],
    at: str,
) -> dict[str, ChannelQueue]:
    """Return the channels with a report added to the queues of `names`."""
    first, _, rest = words.partition("\n")
    message = QueuedMessage("", AlertEvent.REPORT, at, report_id, None, first, rest.strip("\n"), figures)
    return {**channels, **{name: _joined(channels.get(name, ChannelQueue()), message, name) for name in names}}


def _joined(outbox: ChannelQueue, message: QueuedMessage, channel: str) -> ChannelQueue:
    """Return the queue with a message added.

    At most one trigger, repeat, acknowledgement and resolution of an alert wait: a channel that is unreachable for days
    must not make the document grow.
    """
    outbox = _without_superseded(outbox, message)
    waiting = [it for it in outbox.queue if it.subject_id == message.subject_id]
    begun = [it for it in waiting if it.event is AlertEvent.TRIGGER]
    being_sent = outbox.queue[:1] if outbox.sending_until else ()
    stale = {message.event}
    if message.event is AlertEvent.TRIGGER and waiting:
        # The channel has the trigger if that no longer waits, and may have it if it is being sent.
        message = message._replace(again=not begun or any(it.again or it in being_sent for it in begun))
        if begun:  # nothing that followed it was sent, so a resolution that waits is obsolete
            stale = {AlertEvent.TRIGGER, AlertEvent.RESOLVE, AlertEvent.REPEAT, AlertEvent.ACKNOWLEDGE}
    kept = tuple(
        it for it in outbox.queue if it in being_sent or it.subject_id != message.subject_id or it.event not in stale
    )
    if message.event is AlertEvent.REPEAT and any(it.event is AlertEvent.TRIGGER for it in kept if it in waiting):
        return outbox
    source = f"{channel} {message.subject_id} {message.event} {message.at} {message.level} {message.text}"
    name = sha256(source.encode("utf-8", "replace")).hexdigest()[:16]
    return outbox._replace(queue=(*kept, message._replace(id=name)))


def _without_superseded(outbox: ChannelQueue, message: QueuedMessage) -> ChannelQueue:
    """Drop the messages about earlier alerts of the same cause that the channel never received: those alerts are over,
    and the new message says that the cause is back."""
    if message.event is not AlertEvent.TRIGGER:
        return outbox
    being_sent = outbox.queue[:1] if outbox.sending_until else ()
    cause = message.fields.get("key")
    begun = [it for it in outbox.queue if it.event is AlertEvent.TRIGGER and it.fields.get("key") == cause]
    told = {it.subject_id for it in begun if it.again or it in being_sent}
    earlier = {it.subject_id for it in begun} - told - {message.subject_id}
    return outbox._replace(queue=tuple(it for it in outbox.queue if it.subject_id not in earlier))
