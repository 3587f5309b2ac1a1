"""Properties of messages that the library cannot read: other programs may have written any."""

from contextlib import suppress

from pamqp.base import BasicProperties
from pamqp.commands import Basic

_unmarshal = Basic.Properties.unmarshal


def tolerate() -> None:
    """Let a property that cannot be read, and those behind it, count as not set. For this process, once and for all.

    RabbitMQ passes on whatever a publisher wrote: a timestamp in nanoseconds, a text that is not UTF-8. Without this,
    the library ends the connection where it gets such a message, which then comes again, and holds up its whole queue.
    """
    Basic.Properties.unmarshal = _tolerant  # type: ignore[assignment, method-assign]


def _tolerant(properties: BasicProperties, flags: int, data: bytes) -> None:
    with suppress(Exception):  # many kinds: ValueError, OverflowError, RecursionError
        _unmarshal(properties, flags, data)
