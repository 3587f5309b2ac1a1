"""What an operator looks at: the messages of a queue, without taking them away."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from aio_pika import DeliveryMode, Message
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from retake.foreign_text import one_line
from retake.rabbit.address import BrokerAway
from retake.rabbit.connection import RabbitConnection

_GIVEN_BACK, _MOST_GIVEN_BACK = "x-delivery-count", 10


class BrowsedMessage(NamedTuple):
    """A message that is still in its queue. `reason` and `origin` are those of a dead letter: why it was dead-lettered
    ("rejected", "expired", "maxlen", "delivery_limit"), and from which queue; "" for any other."""

    body: bytes
    headers: Mapping[str, Any]
    reason: str
    origin: str


async def held(
    connection: RabbitConnection, queue: str, limit: int
) -> tuple[AbstractChannel, list[AbstractIncomingMessage]]:
    """Return the first messages of the queue, and the channel that holds them: closing it gives them back. Each may
    take as long as a call. Raises BrokerAway, with all given back."""
    channel = await connection.within(connection.channel)
    messages: list[AbstractIncomingMessage] = []
    try:
        place = await channel.get_queue(queue, ensure=False)
        while len(messages) < limit:
            message = await connection.within(lambda: place.get(fail=False, timeout=None))
            if message is None:
                break
            messages.append(message)
    except BrokerAway:
        with suppress(BrokerAway):
            await connection.within(channel.close)
        raise
    return channel, messages


async def give_back(
    connection: RabbitConnection, queue: str, channel: AbstractChannel, messages: Sequence[AbstractIncomingMessage]
) -> None:
    """Give back messages that are held, and close their channel. Raises BrokerAway.

    One that was given back often is renewed: RabbitMQ 4 drops what was given back 20 times to a quorum queue, unless
    the queue says otherwise.
    """
    with suppress(BrokerAway):
        for message in messages:
            if _times_given_back(message) >= _MOST_GIVEN_BACK:
                await connection.within(partial(_renew, connection, queue, message))
    await connection.within(channel.close)


async def _renew(connection: RabbitConnection, queue: str, message: AbstractIncomingMessage) -> None:
    """Put a copy of the message, which counts from 0, at the end of its queue, and take the message out. Who dies in
    between leaves it there twice."""
    headers = {name: it for name, it in message.headers.items() if name != _GIVEN_BACK and _can_be_sent(it)}
    await connection.publish("", queue, Message(message.body, headers=headers, delivery_mode=DeliveryMode.PERSISTENT))
    await message.ack()


def _can_be_sent(header: Any) -> bool:
    """Return whether the library can write what it has read. It reads a text that is not UTF-8 as bytes."""
    if isinstance(header, Mapping):
        return all(map(_can_be_sent, header.values()))
    if isinstance(header, list):
        return all(map(_can_be_sent, header))
    return not isinstance(header, bytes | bytearray)


def _times_given_back(message: AbstractIncomingMessage) -> int:
    count = message.headers.get(_GIVEN_BACK)
    return count if isinstance(count, int) else 0


def browsed(message: AbstractIncomingMessage) -> BrowsedMessage:
    """Return what is to be known of a message."""
    headers = dict(message.headers)
    return BrowsedMessage(message.body, headers, _of_death(headers, "reason"), _of_death(headers, "queue"))


def _of_death(headers: Mapping[str, Any], name: str) -> str:
    """Return a field of the newest entry of x-death, or ""."""
    deaths = headers.get("x-death")
    newest = deaths[0] if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict) else {}
    return one_line(str(newest.get(name, "")))
