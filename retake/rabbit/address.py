"""The address of RabbitMQ, checked before any attempt to connect, and what a failure to connect means."""

import asyncio
import os
import socket
import ssl
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from aio_pika import exceptions

from retake.errors import RetakeError, SettingsError
from retake.exit_codes import ExitCode
from retake.foreign_text import one_line

HEARTBEAT_S = 10
"""Heartbeat interval in seconds, unless the URL sets one (`heartbeat`). The library gives up a connection on which
nothing has arrived for three intervals."""


class BrokerAway(RetakeError):
    """RabbitMQ is unreachable, or did not confirm in time. Reconnection goes on in the background."""

    exit_code = ExitCode.TRY_LATER


class BrokerRefused(BrokerAway):
    """RabbitMQ is reachable but refuses the request: a person has to change something."""

    exit_code = ExitCode.CONFIG


class Address(NamedTuple):
    """A usable URL, and its form for messages, without user and password."""

    url: str
    place: str
    heartbeat_s: int | None  # None: the URL sets it

    def away(self, why: str) -> BrokerAway:
        return BrokerAway(f"RabbitMQ at {self.place}: {why}")

    def refused(self, why: str) -> BrokerRefused:
        return BrokerRefused(f"RabbitMQ at {self.place}: {why}")


def address_of(url: str) -> Address:
    """Return the address in `url` (amqp:// or amqps://). Raises SettingsError, which does not quote the URL."""
    wrong = SettingsError(
        "the URL of RabbitMQ cannot be used: write it as amqp://HOST:PORT/VHOST (amqps:// with TLS), before the host "
        "USER:PASSWORD and an @, and each of their characters that is not a letter or digit as %XX"
    )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        asked = parse_qs(parts.query)
    except ValueError:
        raise wrong from None
    # A "/", "?" or "#" in a password would end the host there, and the rest would be parsed as something else.
    misplaced = "@" in parts.path + parts.query or "#" in url
    if parts.scheme not in ("amqp", "amqps") or not host or misplaced or not url.isprintable() or " " in url:
        raise wrong
    shown = f"[{host}]" if ":" in host else host
    place = f"{parts.scheme}://{shown}:{port or (5671 if parts.scheme == 'amqps' else 5672)}"
    return Address(url, place, None if "heartbeat" in asked else HEARTBEAT_S)


def connect_error(address: Address, error: BaseException, timeout_s: float) -> BrokerAway:
    """Return the error for a failed attempt to connect, in words for people."""
    if isinstance(error, BrokerAway):
        return error
    if isinstance(error, exceptions.AuthenticationError | exceptions.ProbableAuthenticationError):
        return address.refused("it refuses the user or the password")
    if isinstance(error, exceptions.InvalidFrameError) and "Connection.Close" in str(error):
        return address.away("it closed the connection: does the virtual host exist, and may this user use it?")
    if isinstance(error, TimeoutError | asyncio.CancelledError):
        return address.away(f"no answer within {timeout_s:g} s")
    return address.away(_cause(error))


def _cause(error: BaseException) -> str:
    cause = error.__cause__ or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return "its certificate is not trusted: name the authority's in the URL (cafile=PATH) or in SSL_CERT_FILE"
    if isinstance(cause, ssl.SSLError):
        return "no TLS connection: is amqps:// right for this port?"
    if isinstance(cause, socket.gaierror):
        return "there is no host with this name"
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno)
    if isinstance(error, exceptions.ProtocolSyntaxError | exceptions.IncompatibleProtocolError):
        return "what answers there is not RabbitMQ"
    if isinstance(error, ConnectionRefusedError) or "Connect call failed" in str(error):
        return "nothing listens there"
    return f"no connection ({one_line(type(error).__name__)})"
