"""One RabbitMQ server for all tests of a process; each test has an exchange and queues of its own."""

import os
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

sys.path += [folder for folder in [str(Path(__file__).parent.parent / "alerts")] if folder not in sys.path]

from notices import make_certificate
from rabbit_place import Began, Place, Tls, raw
from rabbit_server import NoRabbit, RabbitServer, running
from waiting import eventually

from retake.images.up.folder import free_port
from retake.rabbit.broker import Broker
from retake.rabbit.topology import Topology

_numbers = count(1)


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return Tls(free_port(), make_certificate(tmp_path_factory.mktemp("tls"))[0])


@pytest.fixture(scope="session")
def only_server(tls: Tls) -> Iterator[RabbitServer]:
    settings = f"""\
listeners.ssl.1 = 127.0.0.1:{tls.port}
ssl_options.certfile = {tls.certificate}
ssl_options.keyfile = {tls.certificate.with_name("key.pem")}
"""
    try:
        with running(settings) as server:
            yield server
    except NoRabbit as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture
def server(only_server: RabbitServer) -> Iterator[RabbitServer]:
    """The server, which a test may freeze, stop or kill."""
    yield only_server
    only_server.thaw() if only_server.runs else only_server.start()


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
