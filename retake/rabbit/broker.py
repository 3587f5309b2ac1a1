"""RabbitMQ for threaded programs: publishing with confirmation, and consuming one message at a time.

broker = Broker(url, topology, name="api")
broker.start()                                   # connects in the background, and reconnects
broker.publish("TextExchange", "text", body)     # returns once the broker has confirmed
consumer = broker.consume("TextQueue")
delivery = consumer.take(1.0)
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from logging import getLogger
from threading import Condition
from typing import TypeVar

from aio_pika import DeliveryMode, Message

from retake.rabbit.address import BrokerAway as BrokerAway
from retake.rabbit.address import BrokerRefused as BrokerRefused
from retake.rabbit.address import address_of
from retake.rabbit.browsing import BrowsedMessage as BrowsedMessage
from retake.rabbit.browsing import browsed, give_back, held
from retake.rabbit.connection import RabbitConnection
from retake.rabbit.consumer import Consumer as Consumer
from retake.rabbit.consumer import Delivery as Delivery
from retake.rabbit.loop_thread import LoopEnded, LoopThread
from retake.rabbit.topology import Topology

T = TypeVar("T")

_log = getLogger(__name__)


class Broker:
    """A connection to RabbitMQ that is re-established whenever it is lost. Thread-safe.

    RabbitMQ shows `name` for the connection. `timeout_s` limits each attempt to connect and each call. `start` raises
    SettingsError for a URL that cannot be used.
    """

    def __init__(self, url: str, topology: Topology, *, name: str, timeout_s: float = 5.0) -> None:
        self._url, self._topology, self._name, self._timeout_s = url, topology, name, timeout_s
        self._loop = LoopThread(f"rabbit {name}")
        self._changed = Condition()
        self._trouble: BrokerAway | None = None
        self._connected = False
        self._closed = False
        self._connection: RabbitConnection | None = None

    def start(self) -> None:
        """Start connecting. RabbitMQ need not be up."""
        if self._connection is not None:
            return
        self._connection = RabbitConnection(
            address_of(self._url),
            self._topology,
            name=self._name,
            timeout_s=self._timeout_s,
            on_change=self._note,
        )
        self._loop.start()
        self._loop.submit(self._connection.run())

    def close(self) -> None:
        """Close the connection. Unsettled deliveries go back to their queue. May be called again."""
        with self._changed:
            self._closed, self._connected = True, False
            self._changed.notify_all()
        if self._connection is not None:
            with suppress(LoopEnded):
                self._loop.call(self._connection.close(), 3.0)
        self._loop.stop()

    def connect(self, timeout_s: float) -> None:
        """Wait until it is connected and everything is declared.

        Raises BrokerAway with the reason after `timeout_s`, and BrokerRefused (wrong user or password, a queue with
        other arguments) as soon as that is known.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._connected or self._closed or isinstance(self._trouble, BrokerRefused), timeout_s
            )
            if not self._connected:
                raise self._reason()

    @property
    def connected(self) -> bool:
        return self._connected

    def publish(
        self,
        exchange: str,
        key: str,
        body: bytes,
        *,
        timeout_s: float | None = None,
        expiration_s: float | None = None,
    ) -> None:
        """Publish a persistent message; return once the broker has confirmed that a queue has it.

        `expiration_s` limits how long it may wait there. Raises BrokerAway at once if there is no connection, and after
        `timeout_s` without a confirmation; the message may or may not have arrived then.
        """
        limit = self._timeout_s if timeout_s is None else timeout_s
        self._await_first(limit)
        message = Message(body, delivery_mode=DeliveryMode.PERSISTENT, expiration=expiration_s)
        try:
            self._ask(lambda: self._open().publish(exchange, key, message), limit)
        except BrokerRefused:
            raise
        except BrokerAway as error:
            raise BrokerAway(f"{error}; the message may have arrived or not") from None

    def depth(self, queue: str) -> int:
        """Return the number of messages in the queue. Raises BrokerAway."""
        return self._ask(lambda: self._open().depth(queue))

    def consume(self, queue: str) -> Consumer:
        """Return a consumer of the queue, which fetches nothing before its first `take`."""
        return Consumer(self._loop, self._open(), queue)

    def browse(self, queue: str, limit: int) -> list[BrowsedMessage]:
        """Return the first messages of the queue, at most `limit`, and leave them there. Raises BrokerAway.

        RabbitMQ marks them as redelivered, and consumers do not get them in the meantime. A message that has been
        browsed many times moves to the end of the queue.
        """
        long_s = self._timeout_s * (limit + 3)  # each message may take as long as a call
        channel, messages = self._ask(lambda: held(self._open(), queue, limit), long_s)
        self._ask(lambda: give_back(self._open(), queue, channel, messages), long_s)
        return [browsed(message) for message in messages]

    def pull(self, queue: str, take: Callable[[bytes], bool], limit: int) -> list[bytes]:
        """Pass the bodies of the first `limit` messages to `take`, one by one, and return those for which it returned
        true.

        Those are removed from the queue. If `take` raises, that message and all behind it stay. Raises BrokerAway.
        """
        long_s = self._timeout_s * (limit + 3)  # each message may take as long as a call
        channel, messages = self._ask(lambda: held(self._open(), queue, limit), long_s)
        done: list[bytes] = []
        try:
            for message in [*messages]:
                if take(message.body):
                    self._ask(message.ack)
                    messages.remove(message)
                    done.append(message.body)
        finally:
            self._ask(lambda: give_back(self._open(), queue, channel, messages), long_s)
        return done

    def _note(self, trouble: BrokerAway | None) -> None:
        """Record what the connection reports. Each change is logged once, no matter how long it lasts."""
        with self._changed:
            known, self._trouble, self._connected = self._trouble, trouble, trouble is None and not self._closed
            self._changed.notify_all()
        if trouble is None:
            _log.info("connected to RabbitMQ")
        elif str(trouble) != str(known) and not self._closed:
            level = "error" if isinstance(trouble, BrokerRefused) else "warning"
            getattr(_log, level)("%s; retrying", trouble)

    def _reason(self) -> BrokerAway:
        if self._closed or self._connection is None:
            return BrokerAway("RabbitMQ: the connection was closed, or not begun")
        return self._trouble or self._connection.address.away("no answer so far")

    def _await_first(self, timeout_s: float) -> None:
        """Wait for the end of the first attempt to connect. Raises BrokerAway if there is no connection then."""
        with self._changed:
            if self._connection is not None:
                self._changed.wait_for(lambda: self._connected or self._closed or self._trouble is not None, timeout_s)
            if not self._connected:
                raise self._reason()

    def _open(self) -> RabbitConnection:
        if self._connection is None:
            raise self._reason()
        return self._connection

    def _ask(self, work: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Run `work` in the loop and return its result. Raises BrokerAway."""
        limit = self._timeout_s if timeout_s is None else timeout_s
        self._await_first(limit)
        try:
            return self._loop.call(self._open().within(work, limit), limit)
        except LoopEnded:
            if self._connected:  # this process was suspended, so even the loop's own timeout came late
                raise self._open().address.away(f"no answer within {limit:g} s") from None
            raise self._reason() from None
