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


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RunningServer]:
    """Start the Redis that all tests of this process share."""
    with running_redis() as started:
        yield started


@pytest.fixture
def redis_server(shared_redis: RunningServer) -> RunningServer:
    """Return the empty, running Redis, for tests that kill and restart it."""
    shared_redis.start()
    empty_redis(shared_redis.url)
    return shared_redis


@pytest.fixture
def rabbit_server(shared_rabbit: RabbitServer) -> RabbitServer:
    """Return the running RabbitMQ, without queues and exchanges of the service."""
    shared_rabbit.start()
    empty_rabbit(shared_rabbit.url)
    return shared_rabbit


@pytest.fixture
def new_rabbit(shared_rabbit: RabbitServer) -> RabbitServer:
    """Return a fresh RabbitMQ for tests that kill it: a queue that is declared again after its deletion does not always
    survive that. Fixtures requested after this one use it, too."""
    shared_rabbit.begin_anew()
    return shared_rabbit


@pytest.fixture
def redis_url(redis_server: RunningServer) -> str:
    """Return the URL of an empty Redis."""
    return redis_server.url


@pytest.fixture
def rabbitmq_url(rabbit_server: RabbitServer) -> str:
    """Return the URL of a RabbitMQ without queues and exchanges of the service."""
    return rabbit_server.url


@pytest.fixture
def world(redis_url: str, rabbitmq_url: str, tmp_path: Path) -> Iterator[WorkerWorld]:
    """Provide Redis, RabbitMQ and a bucket, with workers and stand-ins for ComfyUI as needed."""
    made = WorkerWorld(redis_url, rabbitmq_url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def service_world(redis_url: str, rabbitmq_url: str) -> Iterator[ServiceWorld]:
    """Provide Redis, RabbitMQ and a bucket, without jobs2."""
    world = ServiceWorld(redis_url, rabbitmq_url)
    with world.stack:
        yield world


@pytest.fixture
def table_world(redis_url: str, rabbitmq_url: str, database_url: str) -> Iterator[ServiceWorld]:
    """Provide Redis, RabbitMQ, a bucket and jobs2."""
    world = ServiceWorld(redis_url, rabbitmq_url, database_url)
    with world.stack:
        yield world


@pytest.fixture
def instances(redis_url: str, rabbitmq_url: str) -> Iterator[Callable[..., ImagesWorld]]:
    """Yield a function that creates instances of the API on the same servers and bucket."""
    bucket = ApiBucket()
    with ExitStack() as stack:

        def make(database_url: str = "", **options: Any) -> ImagesWorld:
            world = ImagesWorld(redis_url, rabbitmq_url, database_url, **{"bucket": bucket, **options})
            world.services.broker.connect(30)
            return stack.enter_context(world.serving())

        yield make


@pytest.fixture
def api(instances: Callable[..., ImagesWorld]) -> ImagesWorld:
    """Return one instance, without PostgreSQL."""
    return instances()


@pytest.fixture
def table_api(instances: Callable[..., ImagesWorld], database_url: str) -> ImagesWorld:
    """Return one instance with PostgreSQL."""
    world = instances(database_url)
    assert world.table is not None
    world.table.prepare()
    return world
