"""The health of the services that the API needs, determined within a time limit."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from redis.exceptions import RedisError

from retake.errors import RetakeError
from retake.images.dispatcher import Dispatcher
from retake.images.start import ImageServices
from retake.serving.bounded_calls import BoundedCalls

CHECK_S = 2.0
"""Seconds that each service has to answer."""


class ServiceHealth:
    """Asks Redis, RabbitMQ and PostgreSQL whether they answer."""

    def __init__(self, services: ImageServices, dispatcher: Dispatcher) -> None:
        self._services, self._dispatcher = services, dispatcher
        self._redis = BoundedCalls("Redis", seconds=CHECK_S, max_calls=4)
        self._database = BoundedCalls("PostgreSQL", seconds=CHECK_S, max_calls=4)

    def now(self) -> dict[str, Any]:
        """Return the body of GET /health, within CHECK_S."""
        table = self._services.table
        with ThreadPoolExecutor(2) as pool:
            redis = pool.submit(_answers, self._redis, self._services.store.client.ping)
            database = pool.submit(_answers, self._database, table.ping) if table else None
        found: dict[str, Any] = {
            "redis": redis.result(),
            "rabbitmq": self._services.broker.connected,
            "database": database.result() if database else None,
        }
        well = all(it is not False for it in found.values())
        dispatcher = {"mode": self._dispatcher.mode, "cached": self._dispatcher.count}
        return {"status": "ok" if well else "degraded", **found, "dispatcher": dispatcher}


def _answers(calls: BoundedCalls, ask: Callable[[], object]) -> bool:
    try:
        calls.run(ask)
    except (RetakeError, RedisError, OSError):
        return False
    return True
