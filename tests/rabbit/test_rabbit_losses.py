"""RabbitMQ hangs, is stopped, killed, or absent; the client survives it."""

import socket
import threading
import time
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from loopback import LoopbackServer
from rabbit_place import Began, Place, logged
from rabbit_server import RabbitServer, Tls
from waiting import eventually

from retake.exit_codes import ExitCode
from retake.images.up.folder import free_port
from retake.rabbit.broker import Broker, BrokerAway, Consumer
from retake.rabbit.topology import Topology


def test_what_hangs_does_not_confirm_and_is_used_again_when_it_answers(
    begun: Began, place: Place, server: RabbitServer
) -> None:
    broker = begun(timeout_s=2.0)
    server.freeze()
    started = time.monotonic()
    with pytest.raises(BrokerAway, match=r"no answer within 0\.5 s; the message may have arrived or not") as caught:
        broker.publish(place.exchange, "key", b"one", timeout_s=0.5)
    assert caught.value.exit_code == ExitCode.TRY_LATER
    with pytest.raises(BrokerAway, match=r"no answer within 2 s$"):
        broker.depth(place.queue)
    assert time.monotonic() - started < 60
    server.thaw()

    def published() -> bool:
        """Return whether it took the message: after a long hang either side may drop the connection for lack of
        heartbeats, and a message of that moment is published again."""
        try:
            broker.publish(place.exchange, "key", b"two", timeout_s=20)
        except BrokerAway:
            return False
        return True

    eventually(published)
    assert b"two" in [it.body for it in begun().browse(place.queue, 10)]


def test_a_stop_and_a_kill_lose_no_message(begun: Began, place: Place, server: RabbitServer) -> None:
    broker = begun()
    with logged() as lines:
        for body in (b"one", b"two", b"three"):
            broker.publish(place.exchange, "key", body)
        consumer = broker.consume(place.queue)
        delivery = consumer.take(20)
        assert delivery
        assert delivery.body == b"one"

        server.stop()
        eventually(lambda: not broker.connected)
        eventually(lambda: delivery.lost)
        assert not delivery.ack()
        started = time.monotonic()
        with pytest.raises(BrokerAway, match="RabbitMQ at amqp://127"):
            broker.publish(place.exchange, "key", b"four", timeout_s=30)
        assert consumer.take(0.1) is None
        consumer.pause()
        assert time.monotonic() - started < 60
        server.start()
        broker.connect(30)
        again = consumer.take(30)
        assert again
        assert again.redelivered
        assert again.body == b"one"
        assert again.ack()
        second = consumer.take(30)
        assert second
        assert second.body == b"two"

        server.kill()
        eventually(lambda: second.lost)
        server.start()
        broker.connect(30)
        bodies = []
        for _ in range(2):
            found = consumer.take(30)
            assert found
            assert found.ack()
            bodies.append(found.body)
        assert sorted(bodies) == [b"three", b"two"]
    assert len([line for line in lines if line == "connected to RabbitMQ"]) == 2
    refused = [line for line in lines if "refused" in line]
    assert 1 <= len(refused) <= 2  # once each time, however long it lasted
    password = urlsplit(server.url).password
    assert password
    assert password not in "".join(lines)


def test_a_missing_server_is_reported_with_its_place() -> None:
    port = free_port()
    broker = Broker(f"amqp://ann:secret@127.0.0.1:{port}/", Topology(), name="test", timeout_s=20.0)
    broker.start()
    with pytest.raises(BrokerAway, match=f"RabbitMQ at amqp://127.0.0.1:{port}: Connection refused"):
        broker.depth("queue")  # ends with the first attempt
    with pytest.raises(BrokerAway, match=f"RabbitMQ at amqp://127.0.0.1:{port}: Connection refused"):
        broker.connect(0.5)
    assert not broker.connected
    started = time.monotonic()
    broker.close()
    broker.close()
    assert time.monotonic() - started < 60
    assert [it.name for it in threading.enumerate() if it.name.startswith("rabbit")] == []


def test_a_connection_that_cannot_be_closed_in_good_order_is_closed(begun: Began, server: RabbitServer) -> None:
    """Otherwise it would be closed when it is collected, in whichever thread that happens, and Python warns about
    it."""
    broker = begun()
    connection = broker._open()._connection
    assert connection
    server.freeze()
    broker._loop.call(broker._open().close(), 20)
    server.thaw()
    assert connection.is_closed


def test_where_the_process_stands_still_an_answer_is_late(begun: Began, place: Place) -> None:
    broker, goes_on = begun(timeout_s=0.2), threading.Event()

    async def stand_still() -> None:
        goes_on.wait(60)

    broker._loop.submit(stand_still())
    with pytest.raises(BrokerAway, match=r"no answer within 0\.2 s$"):
        broker.depth(place.queue)
    goes_on.set()


def test_a_name_that_nobody_knows_is_reported() -> None:
    broker = Broker("amqp://rabbit.invalid/", Topology(), name="test", timeout_s=20.0)
    broker.start()
    with pytest.raises(BrokerAway, match=r"there is no host with this name|no answer within"):
        broker.depth("queue")
    broker.close()
    eventually(lambda: [it.name for it in threading.enumerate() if it.name.startswith("rabbit")] == [])


def test_a_broker_that_was_never_started_says_so() -> None:
    broker = Broker("amqp://127.0.0.1/", Topology(), name="test")
    with pytest.raises(BrokerAway, match="not begun"):
        broker.publish("exchange", "key", b"one")
    broker.close()


class Silent(LoopbackServer):
    def serve(self, connection: socket.socket, stop: threading.Event) -> None:
        stop.wait(self._patience_s)


class Web(LoopbackServer):
    def serve(self, connection: socket.socket, stop: threading.Event) -> None:
        connection.recv(100)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        stop.wait(0.1)


@pytest.mark.parametrize(
    ("kind", "timeout_s", "words"),
    [(Silent, 0.3, "no answer within 0.3 s"), (Web, 20.0, "no connection|not RabbitMQ")],
)
def test_what_answers_and_is_not_rabbitmq_is_left_in_time(
    kind: type[LoopbackServer], timeout_s: float, words: str
) -> None:
    with closing(kind(20.0)) as other:
        url = f"amqp://ann:secret@127.0.0.1:{other.port}/"
        broker = Broker(url, Topology(), name="test", timeout_s=timeout_s)
        broker.start()
        with pytest.raises(BrokerAway, match=words):
            broker.publish("exchange", "key", b"one", timeout_s=60)  # ends with the first attempt
        started = time.monotonic()
        broker.close()
        assert time.monotonic() - started < 60


def test_amqps_does_not_speak_to_a_port_without_tls(server: RabbitServer) -> None:
    broker = Broker(server.url.replace("amqp://", "amqps://"), Topology(), name="test", timeout_s=20.0)
    broker.start()
    with pytest.raises(BrokerAway, match="is amqps:// right for this port"):
        broker.depth("queue")
    broker.close()


def test_amqps_trusts_what_the_url_says_and_nobody_else(place: Place, server: RabbitServer, tls: Tls) -> None:
    url = server.url.replace("amqp://", "amqps://").replace(f":{server.port}/", f":{tls.port}/")
    with closing(Broker(url, place.topology, name="test", timeout_s=20.0)) as stranger:
        stranger.start()
        with pytest.raises(BrokerAway, match=r"certificate is not trusted: .*cafile=PATH"):
            stranger.depth(place.queue)
    ours = f"{url}?cafile={tls.certificate}&heartbeat=20"
    with closing(Broker(ours, place.topology, name="test", timeout_s=20.0)) as broker:
        broker.start()
        broker.publish(place.exchange, "key", b"one")
        assert broker.depth(place.queue) == 1


def test_a_channel_that_the_broker_closes_is_opened_again(begun: Began, place: Place) -> None:
    broker = begun()
    broker.publish(place.exchange, "key", b"one")
    consumer = broker.consume(place.queue)
    delivery = consumer.take(20)
    assert delivery
    # As after half an hour without an acknowledgement: PRECONDITION_FAILED. Here, by one for a message never sent.
    broker._loop.call(_acknowledged(consumer, 99), 10)
    eventually(lambda: delivery.lost)
    assert not delivery.ack()
    again = consumer.take(20)
    assert again
    assert again.redelivered
    assert again.ack()


async def _acknowledged(consumer: Consumer, tag: int) -> None:
    channel = consumer._channel
    assert channel
    await (await channel.get_underlay_channel()).basic_ack(tag)
