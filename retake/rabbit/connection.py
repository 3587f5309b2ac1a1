"""One connection to RabbitMQ that is re-established whenever it is lost. All of it runs in one event loop.

aio-pika's own `connect_robust` is not used: a message published while the connection is down waits there without end,
and channels that the broker has closed stay closed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import SystemRandom
from typing import TypeVar

import aio_pika
from aio_pika import exceptions
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.connection import make_url

from retake.rabbit import properties
from retake.rabbit.address import Address, BrokerAway, connect_error
from retake.rabbit.topology import Topology

BASE_PAUSE_S = 0.2
MAX_PAUSE_S = 5.0
_DECLARING = 3  # multiple of the timeout: after a start, RabbitMQ answers while it is still recovering its queues
_CLOSING_S = 2.0

T = TypeVar("T")


class RabbitConnection:
    """Calls `on_change` after each change: with None once it is connected and everything is declared, else with the
    reason."""

    def __init__(
        self,
        address: Address,
        topology: Topology,
        *,
        name: str,
        timeout_s: float,
        on_change: Callable[[BrokerAway | None], None],
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._topology, self._name, self._on_change = topology, name, on_change
        properties.tolerate()
        self._connection: AbstractConnection | None = None
        self._publishing = _PublishingChannel(self)
        self._ready = asyncio.Event()

    async def run(self) -> None:
        """Stay connected until cancelled."""
        failures = 0
        while True:
            try:
                lost = await self._connect()
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  libraries raise many kinds
                _reraise_own(error)
                failures += 1
                self._on_change(connect_error(self.address, error, self.timeout_s))
            else:
                failures = 0
                self._ready.set()
                self._on_change(None)
                await lost
                self._ready.clear()
                self._on_change(self.address.away("the connection was lost"))
            await self.close()
            await asyncio.sleep(self.pause_s(failures))

    async def close(self) -> None:
        """Close the connection within two seconds."""
        connection, self._connection = self._connection, None
        self._publishing.forget()
        self._ready.clear()
        if connection is None:
            return
        try:
            async with asyncio.timeout(_CLOSING_S):
                await connection.close()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            _reraise_own(error)
        finally:
            if not connection.is_closed:
                await connection.close()  # only marks it as closed: see `_connect`

    def pause_s(self, failures: int) -> float:
        """Return the backoff, in seconds with jitter, after this many failures in a row."""
        longest = min(MAX_PAUSE_S, BASE_PAUSE_S * 2.0 ** min(failures, 10))
        return longest * SystemRandom().uniform(0.5, 1.0)

    async def ready(self) -> None:
        """Wait until it is connected."""
        await self._ready.wait()

    async def within(self, work: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Return the result of `work`, within the timeout of a call or `timeout_s`.

        Raises BrokerAway for everything that can go wrong with a connection.
        """
        limit = self.timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit):
                return await work()
        except TimeoutError:
            raise self.address.away(f"no answer within {limit:g} s") from None
        except asyncio.CancelledError as error:
            _reraise_own(error)
            raise self.address.away("the connection was lost") from None
        except exceptions.ChannelClosed as error:
            raise self.address.away(f"it closed the channel ({_reply(error)})") from None
        except (*exceptions.CONNECTION_EXCEPTIONS, EOFError):
            raise self.address.away("the connection was lost") from None
        except Exception as error:
            if type(error) is Exception:  # raised by the library for a call in progress while the connection closes
                raise self.address.away("the connection was lost") from None
            raise

    async def channel(self, *, confirms: bool = False) -> AbstractChannel:
        """Return a new channel."""
        if self._connection is None or not self._ready.is_set():
            raise self.address.away("not connected")
        return await _opened(self._connection, confirms)

    async def publish(self, exchange: str, key: str, message: aio_pika.Message) -> None:
        """Publish; return once the broker has confirmed it. Raises BrokerAway, BrokerRefused if no queue takes it."""
        if await self._publishing.routed(exchange, key, message):
            return
        await self.declare()  # somebody has deleted the queue
        if not await self._publishing.routed(exchange, key, message):
            raise self.address.refused(f"no queue takes what is published to {exchange!r} with the key {key!r}")

    async def depth(self, queue: str) -> int:
        """Return the number of messages in the queue."""
        channel = await self.channel()
        try:
            found = await channel.declare_queue(queue, passive=True)
            return found.declaration_result.message_count or 0
        finally:
            await channel.close()

    async def declare(self) -> None:
        """Declare everything again: somebody may have deleted a queue. Raises BrokerRefused."""
        if self._connection is None:
            raise self.address.away("not connected")
        async with asyncio.timeout(self.timeout_s * _DECLARING):
            await self._declare(self._connection)

    async def _connect(self) -> Awaitable[None]:
        """Connect and declare; return an awaitable that completes when the connection is lost."""
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_close(*_: object) -> None:
            if not lost.done():
                lost.set_result(None)

        # Stored before it connects, so that `close` finds it: an unreferenced one closes itself in whichever thread
        # collects the garbage.
        self._connection = aio_pika.Connection(
            make_url(self.address.url, heartbeat=self.address.heartbeat_s),  # None leaves the URL's own
            client_properties={"connection_name": self._name},
        )
        async with asyncio.timeout(self.timeout_s):
            await self._connection.connect()
        self._connection.close_callbacks.add(on_close)
        async with asyncio.timeout(self.timeout_s * _DECLARING):
            await self._declare(self._connection)
        return lost

    async def _declare(self, connection: AbstractConnection) -> None:
        what = ""
        try:
            channel = await _opened(connection, confirms=False)
            for exchange in self._topology.exchanges:
                what = f"the exchange {exchange.name}"
                await channel.declare_exchange(exchange.name, exchange.kind, durable=True)
            for queue in self._topology.queues:
                what = f"the queue {queue.name}"
                await channel.declare_queue(queue.name, durable=True, arguments=dict(queue.arguments))
            for binding in self._topology.bindings:
                what = f"the binding of {binding.queue}"
                queue_there = await channel.get_queue(binding.queue, ensure=False)
                await queue_there.bind(binding.exchange, binding.key)
            await channel.close()
        except exceptions.ChannelClosed as error:
            raise self._declared_otherwise(what, error) from None

    def _declared_otherwise(self, what: str, error: exceptions.ChannelClosed) -> BrokerAway:
        reply = _reply(error)
        if reply.startswith("PRECONDITION_FAILED"):
            kind, _, name = what.removeprefix("the ").partition(" ")
            return self.address.refused(
                f"{what} exists with other arguments, which cannot be changed: delete it once it is empty "
                f"(rabbitmqctl delete_{kind} {name}), or use another virtual host"
            )
        if reply.startswith("ACCESS_REFUSED"):
            return self.address.refused(f"the user may not declare {what}: rabbitmqctl set_permissions")
        return self.address.away(f"{what} cannot be declared ({reply})")


class _PublishingChannel:
    """The channel with publisher confirms; it is replaced when it becomes unusable."""

    def __init__(self, connection: RabbitConnection) -> None:
        self._connection = connection
        self._channel: AbstractChannel | None = None
        self._opening = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    def forget(self) -> None:
        """Drop the channel: its connection is closed."""
        self._channel = None

    async def routed(self, exchange: str, key: str, message: aio_pika.Message) -> bool:
        """Publish; return whether a queue has the message. Raises BrokerAway if the broker does not accept it."""
        channel = await self._open()
        place = await channel.get_exchange(exchange, ensure=False)
        try:
            await place.publish(message, key, mandatory=True)
        except exceptions.PublishError:
            return False
        except exceptions.DeliveryError:
            raise self._connection.address.away("it did not take the message") from None
        except asyncio.CancelledError:
            self._give_up(channel)
            raise
        return True

    async def _open(self) -> AbstractChannel:
        async with self._opening:
            if self._channel is None or self._channel.is_closed:
                if self._channel is not None:
                    await self._connection.declare()
                self._channel = await self._connection.channel(confirms=True)
            return self._channel

    def _give_up(self, channel: AbstractChannel) -> None:
        """Close the channel on which a message was not confirmed in time.

        A quorum queue processes the messages of a channel in order: if one was lost while the queue had no leader, none
        after it is ever confirmed on that channel.
        """
        if self._channel is channel:
            self._channel = None
        closing = asyncio.create_task(self._closed(channel))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _closed(self, channel: AbstractChannel) -> None:
        with suppress(BrokerAway):
            await self._connection.within(channel.close, _CLOSING_S)


async def _opened(connection: AbstractConnection, confirms: bool) -> AbstractChannel:
    channel = connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
    await channel.initialize()
    return channel


def _reply(error: exceptions.ChannelClosed) -> str:
    """Return the reason that the broker gave."""
    return str(next((part for part in error.args if isinstance(part, str)), "no reason given"))[:300]


def _reraise_own(error: BaseException) -> None:
    """Raise the error if it cancels this task; the library raises CancelledError for a lost connection too."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
        raise error
