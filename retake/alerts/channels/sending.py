"""Sends one message through one channel, once, and returns the result."""

import json
import logging
import re
from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple
from urllib.parse import quote as percent_encoded
from urllib.parse import unquote

from retake.alerts.message import MAX_WAIT_S, Ending, Message, Sent
from retake.alerts.settings import AlertChannel
from retake.foreign_text import one_line, several_lines
from retake.vendors.answers import SECRET_LENGTH, as_dict, parse, quote

WHY_LIMIT = 200  # characters
_MODULES = {"apprise": "apprise_urls"}  # a module "apprise" beside the library of that name would mislead readers
_SEPARATORS = re.compile(r"[\s/:?&=@#,;]+")


def _quotes_no_url(record: logging.LogRecord) -> bool:
    return "url=" not in str(record.msg)


# urllib3 warns of malformed headers in an answer with the whole URL, which for some kinds is a secret.
logging.getLogger("urllib3.connection").addFilter(_quotes_no_url)


class Sending(NamedTuple):
    """The parameters of one try, for a kind of channel."""

    channel: AlertChannel
    secret: str
    message: Message
    timeout_s: float  # for the whole try
    done: tuple[str, ...] = ()  # the recipients that already have it

    def late(self) -> Sent:
        """Return the result of a try whose time ran out before there was an answer."""
        return Sent(Ending.FAILED, f"no answer within {self.timeout_s:g} s", maybe=True)

    def __repr__(self) -> str:
        """Name the message without the secret."""
        return f"Sending({self.channel.name!r}, {self.message.delivery_id!r})"


def send(channel: AlertChannel, secret: str, message: Message, timeout_s: float, done: tuple[str, ...] = ()) -> Sent:
    """Send `message` once, within `timeout_s` seconds.

    `secret` is the value of the variable `channel.env`, or "" if it is not set. `done` comes from the result of the
    last try of the same message. Raises nothing for failures of the network or the service. The result's `why` never
    contains the secret or a part of it.
    """
    secret = secret.strip()
    if channel.needs_secret and not secret:
        return Sent(Ending.FAILED, f"{channel.env} is not set", done=done)
    fields = as_dict(parse(json.dumps(dict(message.fields))))  # some JSON readers are stricter than Python's
    shown = message._replace(title=one_line(message.title), text=several_lines(message.text), fields=fields)
    kind = import_module(f"retake.alerts.channels.{_MODULES.get(channel.kind, channel.kind)}")
    outcome: Sent = kind.send(Sending(channel, secret, shown, timeout_s, done))
    failed = outcome.how is Ending.FAILED
    wait_s = outcome.retry_after_s if failed else None
    return Sent(
        outcome.how,
        quote(without_secret(outcome.why, secret), limit=WHY_LIMIT),
        None if wait_s is None else min(max(wait_s, 0.0), MAX_WAIT_S),
        (outcome.done or done) if failed else (),
        failed and outcome.maybe,
    )


def without_secret(text: str, secret: str) -> str:
    """Return `text` without `secret`, and without parts of it that a service may quote, such as a token in a URL."""
    if not secret or not text:
        return text
    parts = {part for part in _SEPARATORS.split(secret) if len(part) >= SECRET_LENGTH} | {secret}
    forms = {form for part in parts for form in (part, unquote(part), percent_encoded(part, safe="", errors="replace"))}
    longest_first = sorted(forms, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), "…", text, flags=re.IGNORECASE)


def length(text: str) -> int:
    """Return the number of UTF-16 code units: two for a character outside the basic plane, such as most emoji."""
    return len(text.encode("utf-16-le", "replace")) // 2


def combined(outcomes: Mapping[str, Sent], done: tuple[str, ...]) -> Sent:
    """Return the overall result of a message that is sent to each recipient separately.

    `outcomes` are by recipient. Those in `done` received it in an earlier try. The result is FAILED, and the message is
    tried again, if any recipient's try FAILED.
    """
    failed = [it for it in outcomes.values() if it.how is Ending.FAILED]
    refused = [it for it in outcomes.values() if it.how is Ending.REFUSED]
    have = (*done, *(name for name, it in outcomes.items() if it.how is Ending.DELIVERED))
    troubles = failed + refused
    why = troubles[0].why if troubles else ""
    if why and len(outcomes) + len(done) > 1:
        why = f"{len(troubles)} of {len(outcomes) + len(done)} recipients: {why}"
    if failed:
        waits = [it.retry_after_s for it in failed if it.retry_after_s is not None]
        return Sent(Ending.FAILED, why, max(waits, default=None), have, any(it.maybe for it in failed))
    return Sent(Ending.REFUSED if refused and not have else Ending.DELIVERED, why)
