"""What an operator sees of queues, and what is declared."""

import asyncio
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel
from rabbit_place import QUORUM, Began, Place, raw
from rabbit_server import RabbitServer
from waiting import eventually

from retake.errors import StateError
from retake.exit_codes import ExitCode
from retake.rabbit.broker import Broker, BrokerAway, BrokerRefused
from retake.rabbit.topology import Queue, Topology


def test_a_missing_queue_has_no_depth(begun: Began) -> None:
    broker = begun()
    with pytest.raises(BrokerAway, match="NOT_FOUND"):
        broker.depth("nowhere")
    with pytest.raises(BrokerAway, match="NOT_FOUND"):
        broker.browse("nowhere", 10)


def test_dead_letters_are_looked_at_and_stay(begun: Began, place: Place) -> None:
    broker = begun()
    consumer = broker.consume(place.queue)
    for body in (b"one", b"two", b"three"):
        broker.publish(place.exchange, "key", body)
        delivery = consumer.take(20)
        assert delivery
        assert delivery.nack(requeue=False)
    eventually(lambda: broker.depth(place.dead) == 3)
    found = broker.browse(place.dead, 2)
    assert [(it.body, it.reason, it.origin) for it in found] == [
        (b"one", "rejected", place.queue),
        (b"two", "rejected", place.queue),
    ]
    eventually(lambda: broker.depth(place.dead) == 3)


def test_looking_at_a_message_does_not_wear_it_out(begun: Began, place: Place) -> None:
    """RabbitMQ 4 drops a message that was returned 20 times, unless the queue says otherwise, as it does here."""
    topology = place.topology
    limited = Queue(place.dead, {**QUORUM, "x-delivery-limit": 20})
    broker = begun(topology._replace(queues=(topology.queues[0], limited)))
    broker.publish(place.exchange, "key", b"one")
    delivery = broker.consume(place.queue).take(20)
    assert delivery
    assert delivery.nack(requeue=False)
    for _ in range(15):
        eventually(lambda: broker.depth(place.dead) == 1)
        assert broker.pull(place.dead, lambda _: False, 10) == []
        eventually(lambda: broker.depth(place.dead) == 1)
        (found,) = broker.browse(place.dead, 10)
        assert (found.body, found.reason, found.origin) == (b"one", "rejected", place.queue)


class NotUtf8(str):
    def encode(self, *_: object) -> bytes:  # type: ignore[override]
        return b"\xff"


def test_a_header_that_is_not_utf8_does_not_end_a_look(begun: Began, place: Place, server: RabbitServer) -> None:
    broker = begun()
    headers: Any = {"kept": "yes", "odd": NotUtf8("x"), "deep": [{"odd": NotUtf8("x")}]}

    async def publish(channel: AbstractChannel) -> None:
        await channel.default_exchange.publish(aio_pika.Message(b"one", headers=headers), place.queue)

    raw(server.url, publish)
    for _ in range(12):
        eventually(lambda: broker.depth(place.queue) == 1)
        (found,) = broker.browse(place.queue, 10)
        assert (found.body, found.headers["kept"]) == (b"one", "yes")


@pytest.mark.parametrize("deaths", ["often", [], ["often"], [{}]])
def test_a_history_that_another_program_has_written_does_not_end_a_look(
    begun: Began, place: Place, server: RabbitServer, deaths: Any
) -> None:
    broker = begun()

    async def publish(channel: AbstractChannel) -> None:
        await channel.default_exchange.publish(aio_pika.Message(b"one", headers={"x-death": deaths}), place.queue)

    raw(server.url, publish)
    eventually(lambda: broker.depth(place.queue) == 1)
    (found,) = broker.browse(place.queue, 10)
    assert (found.body, found.reason, found.origin) == (b"one", "", "")


def test_many_are_looked_at_over_a_slow_connection(begun: Began, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    get = aio_pika.Queue.get

    async def slow(*given: Any, **named: Any) -> Any:
        await asyncio.sleep(0.5)
        return await get(*given, **named)

    broker = begun(timeout_s=2.0)
    for n in range(8):
        broker.publish(place.exchange, "key", b"%d" % n)
    monkeypatch.setattr(aio_pika.Queue, "get", slow)
    assert len(broker.browse(place.queue, 10)) == 8
    eventually(lambda: broker.depth(place.queue) == 8)
    assert len(broker.pull(place.queue, lambda _: True, 10)) == 8


def test_what_is_looked_at_leaves_no_channel_open(begun: Began, place: Place) -> None:
    broker = begun()
    connection: Any = broker._open()._connection

    def look() -> int:
        assert broker.depth(place.queue) == 0
        assert broker.browse(place.queue, 10) == []
        assert broker.pull(place.queue, lambda body: True, 10) == []
        return len(connection.transport.connection.channels)

    before = look()
    assert [look() for _ in range(3)] == [before] * 3


def test_those_that_are_wanted_are_pulled_out_of_the_queue(begun: Began, place: Place) -> None:
    broker = begun()
    for n in range(5):
        broker.publish(place.exchange, "key", b"%d" % n)
    assert broker.pull(place.queue, lambda body: body in (b"1", b"3"), 10) == [b"1", b"3"]
    eventually(lambda: broker.depth(place.queue) == 3)
    assert sorted(it.body for it in broker.browse(place.queue, 10)) == [b"0", b"2", b"4"]


def test_what_was_looked_at_is_there_for_the_next_look_at_once(begun: Began, place: Place) -> None:
    broker, other = begun(), begun()
    for n in range(5):
        broker.publish(place.exchange, "key", b"%d" % n)
    for _ in range(15):  # often enough to renew each
        assert len(broker.browse(place.queue, 3)) == 3
        assert other.depth(place.queue) == 5
        assert other.pull(place.queue, lambda _: False, 10) == []
        assert len(broker.browse(place.queue, 10)) == 5


def test_what_cannot_be_moved_stays(begun: Began, place: Place) -> None:
    broker = begun()
    broker.publish(place.exchange, "key", b"one")

    def fail(body: bytes) -> bool:
        raise StateError("no")

    with pytest.raises(StateError):
        broker.pull(place.queue, fail, 10)
    eventually(lambda: broker.depth(place.queue) == 1)


def test_a_queue_with_other_arguments_is_reported_with_what_to_do(
    begun: Began, place: Place, server: RabbitServer
) -> None:
    begun()
    other = Topology(queues=(Queue(place.queue, {**QUORUM, "x-max-length": 3}),))
    broker = Broker(server.url, other, name="test")
    broker.start()
    with pytest.raises(BrokerRefused, match=rf"the queue {place.queue} .* delete_queue {place.queue}") as caught:
        broker.connect(60)
    assert caught.value.exit_code == ExitCode.CONFIG
    with pytest.raises(BrokerRefused):
        broker.publish(place.exchange, "key", b"one")
    broker.close()
    assert not broker.connected


def test_a_wrong_password_is_reported_at_once(server: RabbitServer) -> None:
    broker = Broker(f"amqp://retake:secret@127.0.0.1:{server.port}/", Topology(), name="test")
    broker.start()
    try:
        with pytest.raises(BrokerRefused, match="it refuses the user or the password") as caught:
            broker.connect(60)
        assert "secret" not in str(caught.value)
    finally:
        broker.close()


def test_a_missing_virtual_host_is_reported(server: RabbitServer) -> None:
    broker = Broker(f"{server.root_url}nowhere", Topology(), name="test", timeout_s=20.0)
    broker.start()
    try:
        with pytest.raises(BrokerAway, match="does the virtual host exist"):
            broker.depth("queue")
    finally:
        broker.close()
