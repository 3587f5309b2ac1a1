"""The kinds of channels. Each file speaks one service's protocol; none is imported before a message is due."""

from retake.alerts.message import Message, SendOutcome
from retake.alerts.settings import AlertChannel


def send(
    channel: AlertChannel, secret: str, message: Message, timeout_s: float, done: tuple[str, ...] = ()
) -> SendOutcome:
    raise NotImplementedError
