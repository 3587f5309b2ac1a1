"""Request bodies, read within limits, and responses sent before the application is reached (ASGI)."""

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from retake.foreign_text import one_line

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


MAX_BODY_BYTES = 65_536
"""Maximum size in bytes of a JSON body, or of a form without files."""

BODY_S = 30.0
"""Seconds that a client may take to send a body."""


class TooLarge(Exception):
    """The body exceeds its limit."""


def exceeds_limit(content_length: str, limit: int) -> bool:
    """Return whether a Content-Length exceeds `limit`, or is not a number."""
    plain = content_length.isascii() and content_length.isdigit() and len(content_length) <= 15
    return not plain or int(content_length) > limit


async def read_body(headers: Mapping[bytes, bytes], receive: Receive, limit: int) -> bytes | None:
    """Return the whole body, or None if the client has disconnected.

    Raises TooLarge as soon as the body is known to exceed `limit`, and TimeoutError after BODY_S seconds.
    """
    if exceeds_limit(headers.get(b"content-length", b"0").decode("latin-1"), limit):
        raise TooLarge
    parts, size = [], 0
    async with asyncio.timeout(BODY_S):
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise TooLarge
            if not message.get("more_body", False):
                return b"".join(parts)


async def with_whole_body(
    application: Application, scope: Message, receive: Receive, send: Send, limit: int = MAX_BODY_BYTES
) -> None:
    """Pass a request on to `application` once its body, if any, has arrived; otherwise respond 408.

    Nothing is sent if the client has disconnected, or before TooLarge is raised.
    """
    headers = dict(scope["headers"])
    if b"content-length" not in headers and b"transfer-encoding" not in headers:
        return await application(scope, receive, send)
    try:
        body = await read_body(headers, receive, limit)
    except TimeoutError:
        late = f"the body did not arrive within {BODY_S:g} s"
        return await refuse(send, 408, late, (b"connection", b"close"))
    if body is None:
        return None
    given = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_given() -> Message:
        return given.pop() if given else await receive()

    return await application(scope, receive_given, send)


def bearer(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the token after "Authorization: Bearer", or b""."""
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    return given.strip(b" ") if scheme.lower() == b"bearer" else b""


def secret_matches(given: bytes, secret: bytes) -> bool:
    """Return whether they are equal, comparing in constant time. An empty secret matches nothing."""
    return bool(secret) and hmac.compare_digest(given, secret)


async def refuse(send: Send, status: int, detail: str, *headers: tuple[bytes, bytes]) -> None:
    """Respond with `{"detail": …}`."""
    body = json.dumps({"detail": one_line(detail)}).encode()
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
