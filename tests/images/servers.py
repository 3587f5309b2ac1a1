"""Empty the servers of the service between tests."""

import asyncio

import aio_pika
import redis

QUEUES = ("TextQueue", "OutfitQueue", "DeadQueue", "ChannelQueue")
EXCHANGES = ("TextExchange", "OutfitExchange", "DeadExchange", "ChannelExchange")


def empty_redis(url: str) -> None:
    """Delete everything in Redis."""
    with redis.Redis.from_url(url) as client:
        client.flushall()


def empty_rabbit(url: str) -> None:
    """Delete the queues and exchanges of the service, with their messages."""
    asyncio.run(_empty_rabbit(url))


async def _empty_rabbit(url: str) -> None:
    connection = await aio_pika.connect(url, timeout=10)
    async with connection, connection.channel() as channel:
        for queue in QUEUES:
            await channel.queue_delete(queue)
        for exchange in EXCHANGES:
            await channel.exchange_delete(exchange)
