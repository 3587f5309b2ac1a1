"""Message properties that the library cannot parse: other programs may have written anything."""

from contextlib import suppress

from pamqp.base import BasicProperties
from pamqp.commands import Basic

_unmarshal = Basic.Properties.unmarshal


def tolerate() -> None:
    """Treat a property that cannot be parsed, and all after it, as not set. Applies to this process, permanently.

    RabbitMQ passes on whatever a publisher wrote: a timestamp in nanoseconds, text that is not UTF-8. Without this, the
    library closes the connection when it receives such a message, which is then redelivered and blocks its whole queue.
    """
    Basic.Properties.unmarshal = _tolerant  # type: ignore[assignment, method-assign]


def _tolerant(properties: BasicProperties, flags: int, data: bytes) -> None:
    with suppress(Exception):  # many kinds: ValueError, OverflowError, RecursionError
        _unmarshal(properties, flags, data)
