"""A message is published once the broker has it, or BrokerAway is raised."""

from concurrent.futures import ThreadPoolExecutor
from re import search

import pytest
from rabbit_place import Began, Place, raw
from rabbit_server import RabbitServer
from waiting import eventually

from retake.exit_codes import ExitCode
from retake.rabbit.broker import Broker, BrokerAway, BrokerRefused


def test_a_published_message_waits_in_its_queue(begun: Began, place: Place) -> None:
    broker = begun()
    broker.publish(place.exchange, "key", b"one")
    broker.publish(place.exchange, "key", b"two")
    assert broker.depth(place.queue) == 2
    assert [it.body for it in broker.browse(place.queue, 10)] == [b"one", b"two"]


def test_a_message_is_persistent(begun: Began, place: Place, server: RabbitServer) -> None:
    begun().publish(place.exchange, "key", b"one")

    async def mode(channel):  # type: ignore[no-untyped-def]
        return (await (await channel.get_queue(place.queue)).get()).delivery_mode

    assert raw(server.url, mode) == 2


def test_a_message_that_waits_too_long_is_gone(begun: Began, place: Place) -> None:
    broker = begun()
    broker.publish(place.exchange, "key", b"one", expiration_s=0.1)
    eventually(lambda: broker.depth(place.queue) == 0)


def test_threads_publish_at_once(begun: Began, place: Place) -> None:
    broker = begun()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: broker.publish(place.exchange, "key", b"%d" % n), range(200)))
    bodies = [it.body for it in broker.browse(place.queue, 1000)]
    assert sorted(int(body) for body in bodies) == list(range(200))


def test_what_no_queue_takes_is_an_error(begun: Began, place: Place) -> None:
    broker = begun()
    with pytest.raises(BrokerRefused, match="no queue takes what is published") as caught:
        broker.publish(place.exchange, "another", b"one")
    assert caught.value.exit_code == ExitCode.CONFIG
    broker.publish(place.exchange, "key", b"two")  # it goes on


def test_a_missing_exchange_ends_that_message_alone(begun: Began, place: Place) -> None:
    broker = begun()
    with pytest.raises(BrokerAway, match="NOT_FOUND"):
        broker.publish("nowhere", "key", b"one")
    broker.publish(place.exchange, "key", b"two")
    assert broker.depth(place.queue) == 1


def test_a_queue_that_was_deleted_is_there_again_for_the_next_message(
    begun: Began, place: Place, server: RabbitServer
) -> None:
    broker = begun()
    raw(server.url, lambda channel: channel.queue_delete(place.queue))
    broker.publish(place.exchange, "key", b"one")
    assert broker.depth(place.queue) == 1


def test_the_first_message_waits_for_the_first_connection(begun: Began, place: Place, server: RabbitServer) -> None:
    begun()
    broker = Broker(server.url, place.topology, name="test", timeout_s=20.0)
    broker.start()
    broker.publish(place.exchange, "key", b"one")
    assert broker.depth(place.queue) == 1
    broker.close()
    with pytest.raises(BrokerAway, match="closed"):
        broker.publish(place.exchange, "key", b"two")


def test_rabbitmq_shows_the_name(begun: Began, server: RabbitServer) -> None:
    begun()
    eventually(lambda: search(r"- test\)?: user 'retake' authenticated", server.log()) is not None)
