"""Consumption of a queue, one message at a time, for threaded programs."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from logging import getLogger
from threading import Condition, Lock
from typing import Any

from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

from retake.rabbit.address import BrokerAway
from retake.rabbit.connection import RabbitConnection
from retake.rabbit.loop_thread import LoopEnded, LoopThread

MAX_MESSAGE_BYTES = 1 << 20
"""Maximum message size in bytes. A larger message is dead-lettered, or dropped if the queue has no dead-letter
exchange."""

_WARN_AFTER = 3  # failures in a row before a warning: a queue that is being recovered may time out once or twice

_log = getLogger(__name__)


class Delivery:
    """A message that was taken. The broker delivers it again if the connection or this process is lost before `ack`."""

    def __init__(
        self,
        message: AbstractIncomingMessage,
        channel: AbstractChannel,
        loop: LoopThread,
        connection: RabbitConnection,
    ) -> None:
        self._message, self._channel, self._loop, self._connection = message, channel, loop, connection
        self._settling = Lock()
        self._settled = False

    @property
    def body(self) -> bytes:
        return self._message.body

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered to somebody before."""
        return bool(self._message.redelivered)

    @property
    def lost(self) -> bool:
        """Whether its channel is closed. The broker then delivers the message again, to any consumer."""
        return self._channel.is_closed

    def ack(self) -> bool:
        """Acknowledge the message. Return whether that was sent; if not, the message is delivered again."""
        return self._settle(self._message.ack)

    def nack(self, *, requeue: bool) -> bool:
        """Requeue the message, or dead-letter it. Return whether that was sent."""
        return self._settle(lambda: self._message.nack(requeue=requeue))

    def _settle(self, send: Callable[[], Awaitable[None]]) -> bool:
        with self._settling:
            if self._settled or self.lost:
                _log.debug("a message that is settled or lost is left alone")
                return False
            try:
                self._loop.call(self._connection.within(send), self._connection.timeout_s)
            except (LoopEnded, BrokerAway) as error:
                _log.debug("a message could not be settled and will be redelivered: %s", type(error).__name__)
                return False
            self._settled = True
            return True

    async def give_back(self) -> None:
        """Requeue the message, from within the loop."""
        with suppress(OSError, RuntimeError):
            await self._message.nack(requeue=True)


def _log_failure(queue: str, error: BrokerAway, failures: int) -> None:
    """Log why nothing is consumed, in one warning, and only if the connection does not report it itself."""
    if failures == _WARN_AFTER:
        _log.warning("the queue %s is not being consumed; retrying: %s", queue, error)
    else:
        _log.debug("%s is not being consumed: %s", queue, error)


async def _tried(queue: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work`; if it fails, the next round of `_consume` does without it."""
    try:
        await work()
    except BrokerAway:
        return
    except Exception:  # noqa: BLE001  a bug must not end the consumer
        _log.exception("%s is not being consumed yet: this is a bug in Retake; retrying", queue)


class Consumer:
    """Takes messages from one queue with a prefetch of 1: until one is settled, the next stays in the queue.

    Threads may share it. It starts consuming with the first `take`, and after a `pause` with the next one.
    """

    def __init__(self, loop: LoopThread, connection: RabbitConnection, queue: str) -> None:
        self._loop, self._connection, self._queue = loop, connection, queue
        self._arrived = Condition()
        self._waiting: deque[Delivery] = deque()
        self._wanted = False
        # The attributes below are used only in the loop.
        self._task: asyncio.Task[None] | None = None
        self._channel: AbstractChannel | None = None
        self._tag: str | None = None
        self._gone = asyncio.Event()

    @property
    def consuming(self) -> bool:
        """Whether the broker has registered this consumer."""
        return self._tag is not None

    def take(self, timeout_s: float) -> Delivery | None:
        """Return the next message, or None if none arrives within `timeout_s`, even while the broker is unreachable."""
        with self._arrived:
            if not self._wanted:
                self._wanted = True
                with suppress(LoopEnded):
                    self._loop.submit(self._begin())
            self._arrived.wait_for(self._drop_lost, timeout_s)
            return self._waiting.popleft() if self._waiting else None

    def pause(self) -> None:
        """Stop taking messages. One that has arrived but was not taken is requeued; taken ones can still be settled."""
        with self._arrived:
            wanted, self._wanted = self._wanted, False
        if wanted:
            self._call(self._stop_consuming())

    def close(self) -> None:
        """Pause, and close the channel: unsettled deliveries go back to the queue."""
        self.pause()
        self._call(self._close_channel())

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        with suppress(LoopEnded):
            self._loop.call(work, 2 * self._connection.timeout_s)

    def _drop_lost(self) -> bool:
        while self._waiting and self._waiting[0].lost:
            self._waiting.popleft()
        return bool(self._waiting)

    # --- in the loop --------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        if self._wanted and self._task is None:
            self._task = asyncio.create_task(self._consume())

    async def _consume(self) -> None:
        failures = 0
        while True:
            await self._connection.ready()
            try:
                await self._consume_channel()
                failures = 0
            except BrokerAway as error:
                failures += 1
                _log_failure(self._queue, error, failures)
            except Exception:  # noqa: BLE001  a bug must not end the consumer
                failures += 1
                _log.exception("%s is not being consumed: this is a bug in Retake; retrying", self._queue)
            if failures:
                # After a call on a channel times out, one layer of the library has closed it and the other reports it
                # as open: nothing would be consumed on it until the connection is lost.
                self._tag = None
                await _tried(self._queue, self._close_channel)
            await asyncio.sleep(self._connection.pause_s(failures))
            # The queue may have been deleted.
            await _tried(self._queue, lambda: self._connection.within(self._connection.declare))

    async def _consume_channel(self) -> None:
        """Consume until the channel or the consumer is gone. Raises BrokerAway."""
        queue = await self._connection.within(self._open)
        self._gone.clear()
        self._tag = await self._connection.within(lambda: queue.consume(self._arrive))
        await self._gone.wait()
        self._tag = None

    async def _open(self) -> AbstractQueue:
        if self._channel is None or self._channel.is_closed:
            channel = await self._connection.channel()
            await channel.set_qos(prefetch_count=1)
            channel.close_callbacks.add(self._ended)
            under = await channel.get_underlay_channel()
            under.on_consumer_cancel_callbacks.add(self._ended)
            self._channel = channel
        return await self._channel.get_queue(self._queue, ensure=False)

    def _ended(self, *_: object) -> None:
        """Note that the broker has closed the channel or cancelled the consumer."""
        self._gone.set()

    async def _arrive(self, message: AbstractIncomingMessage) -> None:
        if self._channel is None:
            return  # its channel is closed: the broker delivers it again
        if len(message.body) > MAX_MESSAGE_BYTES:
            _log.warning("a message of %d bytes in %s is not taken: it is too large", len(message.body), self._queue)
            await message.nack(requeue=False)
            return
        delivery = Delivery(message, self._channel, self._loop, self._connection)
        with self._arrived:
            wanted = self._wanted
            if wanted:
                self._waiting.append(delivery)
                self._arrived.notify()
        if not wanted:
            await message.nack(requeue=True)

    async def _stop_consuming(self) -> None:
        """Cancel the consumer, and requeue the messages that were not taken."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        tag, self._tag = self._tag, None
        if tag is not None and self._channel is not None and not self._channel.is_closed:
            with suppress(BrokerAway):
                queue = await self._channel.get_queue(self._queue, ensure=False)
                await self._connection.within(lambda: queue.cancel(tag))
        with self._arrived:
            waiting, self._waiting = self._waiting, deque()
        for delivery in waiting:
            await delivery.give_back()

    async def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            with suppress(BrokerAway):
                await self._connection.within(channel.close)
