"""One message at a time, from a queue that outlives its consumers."""

from typing import Any

import aio_pika
import pytest
from rabbit_place import Began, Place, raw
from rabbit_server import RabbitServer
from waiting import eventually

from retake.rabbit.broker import Broker, Consumer, Delivery
from retake.rabbit.consumer import MAX_MESSAGE_BYTES

WAIT_S = 20.0


def taken(consumer: Consumer) -> Delivery:
    delivery = consumer.take(WAIT_S)
    assert delivery is not None
    return delivery


@pytest.fixture
def broker(begun: Began) -> Broker:
    return begun()


def publish(broker: Broker, place: Place, *bodies: bytes) -> None:
    for body in bodies:
        broker.publish(place.exchange, "key", body)


def test_messages_are_taken_in_turn_and_gone_once_acknowledged(broker: Broker, place: Place) -> None:
    publish(broker, place, b"one", b"two")
    consumer = broker.consume(place.queue)
    assert not consumer.consuming
    first = taken(consumer)
    assert consumer.consuming
    assert (first.body, first.redelivered, first.lost) == (b"one", False, False)
    assert first.ack()
    second = taken(consumer)
    assert second.body == b"two"
    assert second.ack()
    consumer.close()
    assert broker.depth(place.queue) == 0


def test_nothing_is_taken_before_somebody_takes(broker: Broker, place: Place) -> None:
    broker.consume(place.queue)
    publish(broker, place, b"one")
    assert broker.depth(place.queue) == 1


def test_none_comes_from_an_empty_queue(broker: Broker, place: Place) -> None:
    assert broker.consume(place.queue).take(0.2) is None


def test_the_second_of_two_messages_stays_in_the_queue_for_others(broker: Broker, begun: Began, place: Place) -> None:
    publish(broker, place, b"one", b"two")
    assert taken(broker.consume(place.queue)).body == b"one"
    assert broker.depth(place.queue) == 1
    assert taken(begun().consume(place.queue)).body == b"two"


def test_what_is_not_acknowledged_comes_again(broker: Broker, begun: Began, place: Place) -> None:
    publish(broker, place, b"one")
    other = begun()
    delivery = taken(other.consume(place.queue))
    other.close()
    assert delivery.lost
    assert not delivery.ack()
    again = taken(broker.consume(place.queue))
    assert (again.body, again.redelivered) == (b"one", True)


def test_a_message_is_given_back_or_dead_lettered(broker: Broker, place: Place) -> None:
    publish(broker, place, b"one")
    consumer = broker.consume(place.queue)
    assert taken(consumer).nack(requeue=True)
    assert taken(consumer).nack(requeue=False)
    eventually(lambda: broker.depth(place.dead) == 1)
    assert broker.depth(place.queue) == 0


def test_a_message_is_settled_once(broker: Broker, place: Place) -> None:
    publish(broker, place, b"one", b"two")
    consumer = broker.consume(place.queue)
    delivery = taken(consumer)
    assert delivery.ack()
    assert not delivery.ack()
    assert not delivery.nack(requeue=True)
    assert taken(consumer).body == b"two"  # the channel has survived


def test_a_pause_gives_back_what_nobody_was_given(broker: Broker, place: Place) -> None:
    publish(broker, place, b"one", b"two")
    consumer = broker.consume(place.queue)
    first = taken(consumer)
    assert first.ack()
    eventually(lambda: broker.depth(place.queue) == 0)  # the second has arrived
    consumer.pause()
    assert not consumer.consuming
    eventually(lambda: broker.depth(place.queue) == 1)
    assert taken(consumer).body == b"two"


def test_what_was_given_before_a_pause_can_be_acknowledged_after_it(broker: Broker, place: Place) -> None:
    publish(broker, place, b"one")
    consumer = broker.consume(place.queue)
    delivery = taken(consumer)
    consumer.pause()
    consumer.pause()
    assert not delivery.lost
    assert delivery.ack()
    assert consumer.take(0.2) is None
    consumer.close()
    assert broker.depth(place.queue) == 0


def test_a_closed_consumer_gives_back_what_it_gave(broker: Broker, place: Place) -> None:
    publish(broker, place, b"one")
    consumer = broker.consume(place.queue)
    delivery = taken(consumer)
    consumer.close()
    assert delivery.lost
    eventually(lambda: broker.depth(place.queue) == 1)


def test_a_message_that_is_too_large_is_dead_lettered(broker: Broker, place: Place) -> None:
    publish(broker, place, b"x" * (MAX_MESSAGE_BYTES + 1), b"two")
    assert taken(broker.consume(place.queue)).body == b"two"
    eventually(lambda: broker.depth(place.dead) == 1)


def test_a_queue_that_is_deleted_is_declared_and_consumed_again(
    broker: Broker, place: Place, server: RabbitServer
) -> None:
    consumer = broker.consume(place.queue)
    assert consumer.take(0.5) is None
    eventually(lambda: consumer.consuming)
    before = consumer._tag
    raw(server.url, lambda channel: channel.queue_delete(place.queue))
    eventually(lambda: consumer._tag not in (None, before))  # a consumer may be missing for one look at most
    publish(broker, place, b"one")
    assert taken(consumer).body == b"one"


def test_an_error_of_the_library_of_any_kind_does_not_end_the_consumer(
    broker: Broker, place: Place, server: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raises AttributeError when a connection is closed underneath it."""
    consumer, declare, raised = broker.consume(place.queue), aio_pika.Channel.declare_queue, list[str]()

    async def closed_below(channel: aio_pika.Channel, name: str, **arguments: Any) -> Any:
        if not raised:
            raised.append(name)
            raise AttributeError("'NoneType' object has no attribute 'write'")
        return await declare(channel, name, **arguments)

    assert consumer.take(0.5) is None
    eventually(lambda: consumer.consuming)
    before = consumer._tag
    monkeypatch.setattr(aio_pika.Channel, "declare_queue", closed_below)
    raw(server.url, lambda channel: channel.queue_delete(place.queue))
    eventually(lambda: raised and consumer._tag not in (None, before), WAIT_S)
    publish(broker, place, b"one")
    assert taken(consumer).body == b"one"
