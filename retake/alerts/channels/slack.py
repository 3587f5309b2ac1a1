"""Slack, through an incoming webhook."""

import re
from html import escape

from retake.alerts.channels.post import judged, post
from retake.alerts.channels.sending import Sending
from retake.alerts.message import Sent
from retake.vendors.answers import Reply

TEXT_LIMIT = 40_000  # characters; Slack truncates longer texts
_WORDS = re.compile(r"[a-z0-9_]{1,80}")
_PART_OF_ENTITY = re.compile(r"&[a-z]{0,3}\Z")


def send(sending: Sending) -> Sent:
    """Post the title in bold and the text to the webhook whose URL is the secret."""
    message = sending.message
    title, text = (escape(part, quote=False) for part in (message.title, message.text))
    return post(sending, sending.secret, _judge, json={"text": _cut(f"*{title}*\n{text}")})


def _cut(text: str) -> str:
    if len(text) <= TEXT_LIMIT:
        return text
    return _PART_OF_ENTITY.sub("", text[: TEXT_LIMIT - 1]) + "…"


def _judge(reply: Reply) -> Sent:
    """Return the result. Slack's reasons are one word, such as "channel_not_found"; anything else is not quoted."""
    body = reply.body[:100].decode("utf-8", "replace").strip()
    return judged(reply, body if _WORDS.fullmatch(body) else "")
