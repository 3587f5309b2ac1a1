"""A message with properties that the library cannot read, perhaps from another program, holds up no other."""

from functools import reduce

import pytest
from rabbit_place import Began, Place
from rabbit_server import RabbitServer
from raw_publisher import flagged, long, publish, short, table

HEADERS, CORRELATION_ID, TIMESTAMP, CONTENT_TYPE = 13, 10, 6, 15

ODD = {
    "nanoseconds": flagged(TIMESTAMP, (1_764_200_000_000_000_000).to_bytes(8)),
    "the largest time": flagged(TIMESTAMP, b"\xff" * 8),
    "an id that is no UTF-8": flagged(CORRELATION_ID, short(b"\xff\xfe")),
    "a type that is no UTF-8": flagged(CONTENT_TYPE, short(b"\xff")),
    "a header's name that is no UTF-8": flagged(HEADERS, table(b"\xff", b"t\x01")),
    "a header with such a time": flagged(HEADERS, table(b"a", b"T" + b"\xff" * 8)),
    "a list with such a time": flagged(HEADERS, table(b"a", b"A" + long(b"T" + b"\xff" * 8))),
    "tables in tables": flagged(HEADERS, reduce(lambda inner, _: table(b"a", b"F" + inner), range(3000), long(b""))),
}


@pytest.mark.parametrize("properties", ODD.values(), ids=ODD.keys())
def test_properties_that_cannot_be_read_hold_up_no_other_message(
    server: RabbitServer, begun: Began, place: Place, properties: bytes
) -> None:
    broker = begun()
    publish(server.url, place.queue, properties, b"odd")
    broker.publish(place.exchange, "key", b"later")
    consumer = broker.consume(place.queue)
    for body in (b"odd", b"later"):
        delivery = consumer.take(20)
        assert delivery
        assert delivery.body == body
        assert delivery.nack(requeue=False)
    consumer.close()
    assert broker.connected
    assert [it.body for it in broker.browse(place.dead, 10)] == [b"odd", b"later"]
