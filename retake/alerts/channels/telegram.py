"""Telegram, through a bot."""

from typing import Any

from retake.alerts.channels.post import judged, post
from retake.alerts.channels.sending import Sending
from retake.alerts.message import Ending, Sent
from retake.foreign_text import utf16_cut
from retake.vendors.answers import Reply, as_dict, count, number, parse

TEXT_LIMIT = 4096  # UTF-16 code units
_NOT_IN_A_TOKEN = frozenset("/?#%\\@")


def send(sending: Sending) -> Sent:
    """Send title and text as one plain-text message to the chat. The token is part of the URL."""
    token, options, message = sending.secret, sending.channel.options, sending.message
    if not token.isascii() or not token.isprintable() or " " in token or _NOT_IN_A_TOKEN & set(token):
        return Sent(Ending.REFUSED, f"{sending.channel.env} has characters that no token has")
    body = {
        "chat_id": options["chat_id"],
        "text": utf16_cut(f"{message.title}\n\n{message.text}".strip(), TEXT_LIMIT),
        "link_preview_options": {"is_disabled": True},  # Telegram would fetch the links in the text
    }
    return post(sending, f"{options['endpoint']}/bot{token}/sendMessage", _judge, json=body)


def _judge(reply: Reply) -> Sent:
    body = as_dict(parse(reply.body))
    parameters = as_dict(body.get("parameters"))
    reason = _reason(body, parameters)
    if reply.ok and body.get("ok") is False:
        return Sent(Ending.REFUSED, f"{reply.status}: {reason}")
    outcome = judged(reply, reason)
    wait_s = number(parameters.get("retry_after"))
    return outcome if wait_s is None else outcome._replace(retry_after_s=wait_s)


def _reason(body: dict[str, Any], parameters: dict[str, Any]) -> str:
    description = body.get("description")
    reason = description if isinstance(description, str) else ""
    moved_to = count(parameters.get("migrate_to_chat_id"))
    return reason if moved_to is None else f"{reason}; its chat_id is now {moved_to}"
