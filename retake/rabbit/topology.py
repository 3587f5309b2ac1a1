"""What has to be there in RabbitMQ before messages flow: exchanges, queues, and what binds them."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Exchange(NamedTuple):
    """A durable exchange. `kind` is "direct", "fanout" or "topic"."""

    name: str
    kind: str = "direct"


class Queue(NamedTuple):
    """A durable queue. Its arguments cannot be changed later: RabbitMQ refuses other ones for a queue that exists."""

    name: str
    arguments: Mapping[str, Any]


class Binding(NamedTuple):
    """Messages of `exchange` with this routing key go to `queue`."""

    exchange: str
    queue: str
    key: str = ""


class Topology(NamedTuple):
    """All of them. They are declared with every new connection, which changes nothing where they are there."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()
