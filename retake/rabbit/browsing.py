"""Queue browsing for operators: reading messages and leaving them in the queue."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from aio_pika import DeliveryMode, Message
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from retake.foreign_text import one_line
from retake.rabbit.address import BrokerAway
from retake.rabbit.connection import RabbitConnection

_DELIVERY_COUNT, _MAX_DELIVERIES = "x-delivery-count", 10
_MAX_COUNTS, _PAUSE_S = 100, 0.02  # maximum number of counts of the returned messages, and the pause between two


class BrowsedMessage(NamedTuple):
    """A message that is still in its queue.

    For a dead-lettered message, `reason` says why ("rejected", "expired", "maxlen", "delivery_limit") and `origin` is
    the queue it came from; both are "" for any other.
    """

    body: bytes
    headers: Mapping[str, Any]
    reason: str
    origin: str


async def held(
    connection: RabbitConnection, queue: str, limit: int
) -> tuple[AbstractChannel, list[AbstractIncomingMessage]]:
    """Return the first messages of the queue and the channel that holds them; closing the channel gives them back.

    Each message may take as long as a call. Raises BrokerAway after giving all back.
    """
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
    """Give held messages back and close their channel. Raises BrokerAway.

    Returns once others can get them, which takes RabbitMQ a moment, or after some seconds if a consumer has them.

    A message that has often been given back is renewed: RabbitMQ 4 drops a message of a quorum queue after 20 returns,
    unless the queue sets another limit.
    """
    count = partial(connection.within, partial(connection.depth, queue))
    there = 0
    with suppress(BrokerAway):
        there = await count() + len(messages) if messages else 0
        for message in messages:
            if _times_given_back(message) >= _MAX_DELIVERIES:
                await connection.within(partial(_renew, connection, queue, message))
    await connection.within(channel.close)
    with suppress(BrokerAway):
        for _ in range(_MAX_COUNTS):
            if await count() >= there:
                break
            await asyncio.sleep(_PAUSE_S)


async def _renew(connection: RabbitConnection, queue: str, message: AbstractIncomingMessage) -> None:
    """Put a copy of the message, whose count starts at 0, at the end of the queue, and remove the original.

    A crash in between leaves both in the queue.
    """
    headers = {name: it for name, it in message.headers.items() if name != _DELIVERY_COUNT and _can_be_sent(it)}
    await connection.publish("", queue, Message(message.body, headers=headers, delivery_mode=DeliveryMode.PERSISTENT))
    await message.ack()


def _can_be_sent(header: Any) -> bool:
    """Return whether the library can write a header that it has read. It reads text that is not UTF-8 as bytes."""
    if isinstance(header, Mapping):
        return all(map(_can_be_sent, header.values()))
    if isinstance(header, list):
        return all(map(_can_be_sent, header))
    return not isinstance(header, bytes | bytearray)


def _times_given_back(message: AbstractIncomingMessage) -> int:
    count = message.headers.get(_DELIVERY_COUNT)
    return count if isinstance(count, int) else 0


def browsed(message: AbstractIncomingMessage) -> BrowsedMessage:
    """Return the message as operators see it."""
    headers = dict(message.headers)
    return BrowsedMessage(message.body, headers, _of_death(headers, "reason"), _of_death(headers, "queue"))


def _of_death(headers: Mapping[str, Any], name: str) -> str:
    """Return a field of the newest entry of x-death, or ""."""
    deaths = headers.get("x-death")
    newest = deaths[0] if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict) else {}
    return one_line(str(newest.get(name, "")))
