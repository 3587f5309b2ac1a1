"""PagerDuty, through the Events API v2.

An alert's id is the `dedup_key`, so a message that is sent twice makes one incident, and an alert that is acknowledged
or resolved here is acknowledged or resolved there. A report, if the channel takes any, opens an incident of severity
"info" that a person has to resolve.
"""

import json
from typing import Any

from retake.alerts.channels.post import judged, post
from retake.alerts.channels.sending import Sending
from retake.alerts.message import AlertEvent, Message, Sent
from retake.foreign_text import utf16_cut
from retake.vendors.answers import Reply, as_dict, joined, parse

SUMMARY_LIMIT = 1024  # characters
KEY_LIMIT = 255
DETAILS_LIMIT = 400_000  # bytes; PagerDuty refuses events above 512 KB
_ACTIONS = {AlertEvent.ACKNOWLEDGE: "acknowledge", AlertEvent.RESOLVE: "resolve"}


def send(sending: Sending) -> Sent:
    """Send one event. An acknowledgement or resolution needs only the key."""
    message = sending.message
    event: dict[str, Any] = {
        "routing_key": sending.secret,
        "event_action": _ACTIONS.get(message.event, "trigger"),
        "dedup_key": message.subject_id[:KEY_LIMIT],
    }
    if message.event not in _ACTIONS:
        event["payload"] = _payload(message)
        if message.link:
            event["links"] = [{"href": message.link, "text": "The alert on the dashboard"}]
    return post(sending, sending.channel.options["endpoint"], _judge, json=event)


def _payload(message: Message) -> dict[str, Any]:
    fields = message.fields
    pipelines = fields.get("pipelines")
    payload = {
        "summary": utf16_cut(message.title, SUMMARY_LIMIT),
        "source": "retake",
        "severity": message.level or "info",
        "timestamp": message.at,
        "component": fields.get("step"),
        "group": utf16_cut(", ".join(map(str, pipelines if isinstance(pipelines, list) else ())), KEY_LIMIT),
        "class": fields.get("error_code"),
        "custom_details": _details(message),
    }
    return {key: value for key, value in payload.items() if value}


def _details(message: Message) -> dict[str, Any]:
    details = {"text": message.text, **message.fields}
    if len(json.dumps(details)) > DETAILS_LIMIT:
        return {"text": utf16_cut(message.text, DETAILS_LIMIT // 12)}  # JSON may need 12 bytes for a character
    return details


def _judge(reply: Reply) -> Sent:
    body = as_dict(parse(reply.body))
    errors = body.get("errors")
    return judged(reply, joined([body.get("message"), *(errors if isinstance(errors, list) else [])]))
