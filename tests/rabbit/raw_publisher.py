"""Publish messages with properties given as bytes, which no library would write and RabbitMQ passes on."""

import socket
import struct
from urllib.parse import unquote, urlsplit


def flagged(bit: int, data: bytes) -> bytes:
    """Return the properties with only the flag `bit` set (AMQP 0-9-1, 4.2.6.1)."""
    return struct.pack(">H", 1 << bit) + data


def short(data: bytes) -> bytes:
    return bytes([len(data)]) + data


def long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def table(name: bytes, value: bytes) -> bytes:
    return long(short(name) + value)


def publish(url: str, queue: str, properties: bytes, body: bytes) -> None:
    """Publish to a queue; return once RabbitMQ has accepted the message."""
    place = urlsplit(url)
    login = f"\0{unquote(place.username or '')}\0{unquote(place.password or '')}".encode()
    host = unquote(place.path[1:]) or "/"
    with (
        socket.create_connection((place.hostname, place.port), timeout=30) as connection,
        connection.makefile("rwb") as stream,
    ):

        def send(kind: int, channel: int, payload: bytes) -> None:
            stream.write(struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce")
            stream.flush()

        def call(channel: int, class_id: int, method: int, arguments: bytes) -> None:
            send(1, channel, struct.pack(">HH", class_id, method) + arguments)

        def answer() -> bytes:
            _, _, length = struct.unpack(">BHI", stream.read(7))
            return stream.read(length + 1)[4:-1]

        stream.write(b"AMQP\0\0\x09\x01")
        stream.flush()
        answer()
        call(0, 10, 11, long(b"") + short(b"PLAIN") + long(login) + short(b"en_US"))
        call(0, 10, 31, answer())
        call(0, 10, 40, short(host.encode()) + short(b"") + b"\0")
        answer()
        call(1, 20, 10, short(b""))
        answer()
        call(1, 60, 40, b"\0\0" + short(b"") + short(queue.encode()) + b"\0")
        send(2, 1, struct.pack(">HHQ", 60, 0, len(body)) + properties)
        send(3, 1, body)
        call(1, 20, 40, struct.pack(">H", 200) + short(b"") + bytes(4))
        assert answer() == b"", "RabbitMQ has not accepted it"
