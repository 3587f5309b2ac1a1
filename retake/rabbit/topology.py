"""The exchanges, queues and bindings that must exist in RabbitMQ before messages flow."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Exchange(NamedTuple):
    """A durable exchange. `kind` is "direct", "fanout" or "topic"."""

    name: str
    kind: str = "direct"


class Queue(NamedTuple):
    """A durable queue. Its arguments are fixed: RabbitMQ refuses different ones for an existing queue."""

    name: str
    arguments: Mapping[str, Any]


class Binding(NamedTuple):
    """A binding: messages of `exchange` with this routing key go to `queue`."""

    exchange: str
    queue: str
    key: str = ""


class Topology(NamedTuple):
    """Exchanges, queues and bindings. Every new connection declares them all, which leaves existing ones unchanged."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()
