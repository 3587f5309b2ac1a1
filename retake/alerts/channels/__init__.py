"""The kinds of channels. Each file speaks one service's protocol; none is imported before a message is due."""

from retake.alerts.message import Message, Outcome
from retake.alerts.settings import Channel


def send(channel: Channel, secret: str, message: Message, timeout_s: float, done: tuple[str, ...] = ()) -> Outcome:
    raise NotImplementedError
