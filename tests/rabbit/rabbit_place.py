"""The exchange and queues of one test, and helpers that tests of the client share."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import aio_pika
from aio_pika.abc import AbstractChannel

from retake.rabbit.broker import Broker
from retake.rabbit.topology import Binding, Exchange, Queue, Topology

QUORUM = {"x-queue-type": "quorum"}


class Place(NamedTuple):
    """Messages of one test: what is published to `exchange` with the key "key" goes to `queue`, and what is refused
    there goes to `dead`."""

    exchange: str
    queue: str
    dead: str

    @property
    def topology(self) -> Topology:
        graveyard = f"{self.exchange}.dead"
        return Topology(
            (Exchange(self.exchange), Exchange(graveyard, "fanout")),
            (Queue(self.queue, {**QUORUM, "x-dead-letter-exchange": graveyard}), Queue(self.dead, QUORUM)),
            (Binding(self.exchange, self.queue, "key"), Binding(graveyard, self.dead)),
        )


class Began(Protocol):
    """Creates a connected broker, which is closed after the test."""

    def __call__(self, topology: Topology | None = None, *, timeout_s: float = 10.0) -> Broker: ...


def raw(url: str, work: Callable[[AbstractChannel], Awaitable[Any]]) -> Any:
    """Call `work` with a channel of aio-pika itself; return its result."""

    async def run() -> Any:
        async with await aio_pika.connect(url) as connection:
            return await work(await connection.channel())

    return asyncio.run(run())


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def logged() -> Iterator[list[str]]:
    """Yield what the client logs during the block, from INFO on."""
    logger, handler = logging.getLogger("retake.rabbit"), _Lines()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
