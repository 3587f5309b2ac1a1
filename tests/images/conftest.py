import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from images_world import ApiBucket, ImagesWorld
from local_servers import RunningServer, running_redis
from rabbit_server import RabbitServer
from servers import empty_rabbit, empty_redis
from service_world import ServiceWorld
from worker_world import WorkerWorld

sys.path.append(str(Path(__file__).parents[1] / "runs"))  # the server of the ledger's tests

from postgres import FAST, new_database, or_skipped, server


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RunningServer]:
    """A Redis for all tests of this process."""
    with running_redis() as started:
        yield started


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[str]:
    """A PostgreSQL for all tests of this process: the URL of its databases, without a name."""
    with or_skipped(), server(*FAST) as base:
        yield base


@pytest.fixture
def redis_server(shared_redis: RunningServer) -> RunningServer:
    """The Redis, empty, for tests that kill it and start it again; it runs when the test begins."""
    shared_redis.start()
    empty_redis(shared_redis.url)
    return shared_redis


@pytest.fixture
def rabbit_server(shared_rabbit: RabbitServer) -> RabbitServer:
    """The RabbitMQ, without queues and exchanges of the service; it runs when the test begins."""
    shared_rabbit.start()
    empty_rabbit(shared_rabbit.url)
    return shared_rabbit


@pytest.fixture
def new_rabbit(shared_rabbit: RabbitServer) -> RabbitServer:
    """The RabbitMQ without anything that it had, for tests that kill it: a queue that is declared again after it was
    deleted does not always survive that. Fixtures that are asked for later use it too."""
    shared_rabbit.begin_anew()
    return shared_rabbit


@pytest.fixture
def redis_url(redis_server: RunningServer) -> str:
    """An empty Redis."""
    return redis_server.url


@pytest.fixture
def rabbitmq_url(rabbit_server: RabbitServer) -> str:
    """A RabbitMQ without queues and exchanges of the service."""
    return rabbit_server.url


@pytest.fixture
def database_url(shared_postgres: str) -> str:
    """A database of the test's own, without tables."""
    return new_database(shared_postgres)


@pytest.fixture
def world(redis_url: str, rabbitmq_url: str, tmp_path: Path) -> Iterator[WorkerWorld]:
    """Redis, RabbitMQ, a bucket; workers and stand-ins of ComfyUI at will."""
    made = WorkerWorld(redis_url, rabbitmq_url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def service_world(redis_url: str, rabbitmq_url: str) -> Iterator[ServiceWorld]:
    """Redis, RabbitMQ and a bucket, without jobs2."""
    world = ServiceWorld(redis_url, rabbitmq_url)
    with world.stack:
        yield world


@pytest.fixture
def table_world(redis_url: str, rabbitmq_url: str, database_url: str) -> Iterator[ServiceWorld]:
    """The same with jobs2."""
    world = ServiceWorld(redis_url, rabbitmq_url, database_url)
    with world.stack:
        yield world


@pytest.fixture
def instances(redis_url: str, rabbitmq_url: str) -> Iterator[Callable[..., ImagesWorld]]:
    """What makes instances of the API on the same servers and the same bucket."""
    bucket = ApiBucket()
    with ExitStack() as stack:

        def make(database_url: str = "", **options: Any) -> ImagesWorld:
            world = ImagesWorld(redis_url, rabbitmq_url, database_url, **{"bucket": bucket, **options})
            world.services.broker.connect(30)
            return stack.enter_context(world.serving())

        yield make


@pytest.fixture
def api(instances: Callable[..., ImagesWorld]) -> ImagesWorld:
    """One instance, without PostgreSQL."""
    return instances()


@pytest.fixture
def table_api(instances: Callable[..., ImagesWorld], database_url: str) -> ImagesWorld:
    """One instance with PostgreSQL."""
    world = instances(database_url)
    assert world.table is not None
    world.table.prepare()
    return world
