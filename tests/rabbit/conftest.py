"""The RabbitMQ of this process; each test has an exchange and queues of its own."""

import threading
from collections.abc import Iterator
from itertools import count

import pytest
from rabbit_place import Began, Place, raw
from rabbit_server import RabbitServer, Tls
from waiting import eventually

from retake.rabbit.broker import Broker
from retake.rabbit.topology import Topology

_numbers = count(1)


@pytest.fixture
def server(shared_rabbit: RabbitServer) -> Iterator[RabbitServer]:
    """Yield the server, which a test may freeze, stop or kill."""
    shared_rabbit.start()
    yield shared_rabbit
    shared_rabbit.thaw() if shared_rabbit.runs else shared_rabbit.start()


@pytest.fixture
def tls(server: RabbitServer) -> Tls:
    return server.tls


@pytest.fixture
def place(server: RabbitServer) -> Iterator[Place]:
    name = f"t{next(_numbers)}"
    found = Place(f"{name}.exchange", f"{name}.queue", f"{name}.dead")
    yield found
    if not server.runs:
        server.start()
    for queue in (found.queue, found.dead):
        raw(server.url, lambda channel, it=queue: channel.queue_delete(it))  # type: ignore[misc]


@pytest.fixture
def begun(server: RabbitServer, place: Place) -> Iterator[Began]:
    brokers: list[Broker] = []

    def begin(topology: Topology | None = None, *, timeout_s: float = 10.0) -> Broker:
        brokers.append(Broker(server.url, topology or place.topology, name="test", timeout_s=timeout_s))
        brokers[-1].start()
        brokers[-1].connect(20)
        return brokers[-1]

    yield begin
    for broker in brokers:
        broker.close()
    eventually(lambda: [it.name for it in threading.enumerate() if it.name.startswith("rabbit")] == [])
