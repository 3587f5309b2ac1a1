"""SMS, through Twilio: each recipient gets a separate message."""

import time
from urllib.parse import quote

from retake.alerts.channels.post import basic, judged, post
from retake.alerts.channels.sending import Sending, combined, length
from retake.alerts.message import Ending, Message, Sent
from retake.foreign_text import utf16_cut
from retake.vendors.answers import Reply, as_dict, count, parse

BODY_LIMIT = 320  # UTF-16 code units, and so at most as many characters
_MIN_TEXT = 160  # code units that a link must leave for the text


def send(sending: Sending) -> Sent:
    """Send the message to each recipient that does not have it yet. All of them share the time limit."""
    options, end_s = sending.channel.options, time.monotonic() + sending.timeout_s
    url = f"{options['endpoint']}/2010-04-01/Accounts/{quote(options['account'], safe='')}/Messages.json"
    headers, text = basic(options["account"], sending.secret), body_of(sending.message)
    outcomes = {}
    for recipient in options["to"]:
        if recipient in sending.done:
            continue
        left_s = round(end_s - time.monotonic(), 2)
        if left_s <= 0:
            outcomes[recipient] = Sent(Ending.FAILED, "there was no time left")
            continue
        form = {"To": recipient, "From": options["from"], "Body": text}
        outcomes[recipient] = post(sending._replace(timeout_s=left_s), url, _judge, headers, data=form)
    return combined(outcomes, sending.done)


def body_of(message: Message) -> str:
    """Return level, title, as much of the text as fits, and then the link, if that leaves enough room."""
    text = f"{message.headline}\n{message.text}".strip()
    link = f"\n{message.link}" if message.link and message.link not in text else ""
    if length(text + link) <= BODY_LIMIT:
        return text + link
    ending = f"\n{message.link}" if message.link else ""
    if not ending or BODY_LIMIT - length(ending) < _MIN_TEXT:
        return utf16_cut(text, BODY_LIMIT)
    beginning = utf16_cut(text, BODY_LIMIT - length(ending))
    return beginning if message.link in beginning.split() else beginning + ending


def _judge(reply: Reply) -> Sent:
    body = as_dict(parse(reply.body))
    code, text = count(body.get("code")), body.get("message")
    return judged(
        reply, " ".join(filter(None, ("" if code is None else f"{code}", text if isinstance(text, str) else "")))
    )
