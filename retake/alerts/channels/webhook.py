"""A webhook of any program that takes JSON: the event, the time, and the alert as in `alerts list --json`."""

from retake.alerts.channels.post import post
from retake.alerts.channels.sending import Sending
from retake.alerts.message import Sent


def send(sending: Sending) -> Sent:
    """Post `{event, at, …}` to the URL that is the secret."""
    message = sending.message
    return post(sending, sending.secret, json={"event": message.event.value, "at": message.at, **message.fields})
