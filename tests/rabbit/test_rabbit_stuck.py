"""A channel on which something timed out is not used again: RabbitMQ, or the client library, may never answer there."""

import socket
import struct
import threading
import time
from collections import Counter
from contextlib import closing, suppress

import pytest
from loopback import LoopbackServer
from rabbit_place import Began, Place, logged
from rabbit_server import RabbitServer
from waiting import eventually

from retake.rabbit.broker import Broker, BrokerAway

_METHOD, _CHANNEL_OPEN_OK = 1, (20, 11)
_BASIC, _ACK, _CONSUME_OK = 60, 80, 21


class Swallower(LoopbackServer):
    """A proxy before RabbitMQ. From a method of Basic's with the number `method` on, it withholds all that RabbitMQ
    sends on that channel, and on no other, unless `always`. A reopened channel counts as another."""

    def __init__(self, port: int, method: int, *, always: bool = False) -> None:
        self._port, self._method, self._always = port, method, always
        self._opened: Counter[int] = Counter()
        self.stuck: list[tuple[int, int]] = []
        super().__init__(60.0)

    def serve(self, connection: socket.socket, stop: threading.Event) -> None:
        with socket.create_connection(("127.0.0.1", self._port)) as server:
            up = threading.Thread(target=_copy, args=(connection, server), daemon=True)
            up.start()
            with server.makefile("rb") as frames, suppress(OSError):
                while head := frames.read(7):
                    kind, channel, size = struct.unpack(">BHI", head)
                    body = frames.read(size + 1)
                    if not (kind == _METHOD and self._kept(channel, struct.unpack(">HH", body[:4]))):
                        connection.sendall(head + body)
        up.join(10)

    def _kept(self, number: int, method: tuple[int, ...]) -> bool:
        self._opened[number] += method == _CHANNEL_OPEN_OK
        channel = (number, self._opened[number])
        first = method == (_BASIC, self._method) and (self._always or not self.stuck)
        if first:
            self.stuck.append(channel)
        return channel in self.stuck


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(65536):
            target.sendall(part)
        target.shutdown(socket.SHUT_RDWR)


def through(swallower: Swallower, server: RabbitServer, place: Place, *, timeout_s: float = 1.0) -> Broker:
    url = server.url.replace(f":{server.port}/", f":{swallower.port}/")
    broker = Broker(url, place.topology, name="test", timeout_s=20.0)
    broker.start()
    broker.connect(60)
    broker._timeout_s = broker._open().timeout_s = timeout_s  # what follows may time out, connecting must not
    return broker


def test_what_is_published_after_a_missing_confirmation_is_confirmed(
    begun: Began, place: Place, server: RabbitServer
) -> None:
    with closing(Swallower(server.port, _ACK)) as swallower, closing(through(swallower, server, place)) as broker:
        with pytest.raises(BrokerAway, match="the message may have arrived or not"):
            broker.publish(place.exchange, "key", b"one", timeout_s=5)
        assert len(swallower.stuck) == 1
        broker.publish(place.exchange, "key", b"two", timeout_s=20)
    assert [it.body for it in begun().browse(place.queue, 10)] == [b"one", b"two"]


def test_a_queue_is_consumed_after_an_answer_is_missing(begun: Began, place: Place, server: RabbitServer) -> None:
    begun().publish(place.exchange, "key", b"one")
    with (
        closing(Swallower(server.port, _CONSUME_OK)) as swallower,
        closing(through(swallower, server, place)) as broker,
    ):
        consumer = broker.consume(place.queue)
        delivery = consumer.take(0.1) or consumer.take(40)
        assert swallower.stuck
        eventually(lambda: consumer.consuming, 100)
        while delivery is None or delivery.lost:  # what the abandoned channel had is delivered again
            delivery = consumer.take(40)
        assert delivery.body == b"one"
        assert delivery.ack()


def test_a_queue_that_never_answers_is_reported_once(begun: Began, place: Place, server: RabbitServer) -> None:
    begun()
    with (
        logged() as lines,
        closing(Swallower(server.port, _CONSUME_OK, always=True)) as deaf,
        closing(through(deaf, server, place)) as broker,
    ):
        consumer = broker.consume(place.queue)
        consumer.take(0.1)
        eventually(lambda: len(deaf.stuck) >= 5, 200)
    told = [line for line in lines if "is not being consumed" in line]
    assert len(told) == 1
    assert told[0].startswith(f"the queue {place.queue} is not being consumed; retrying: RabbitMQ at amqp://127.")


def test_a_close_while_a_call_is_under_way_is_not_a_bug(begun: Began, place: Place, server: RabbitServer) -> None:
    begun()
    with logged() as lines:
        for number in range(30):
            with (
                closing(Swallower(server.port, _CONSUME_OK, always=True)) as deaf,
                closing(through(deaf, server, place, timeout_s=0.1)) as broker,
            ):
                broker.consume(place.queue).take(0.01)
                eventually(lambda it=deaf: it.stuck, 120)  # type: ignore[misc]
                time.sleep(number / 100)
    assert not [line for line in lines if "bug" in line]
