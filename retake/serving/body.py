"""Bodies of requests, read within bounds, and answers from before the application (ASGI)."""

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


LARGEST_BODY = 65_536
"""Bytes of a body in JSON, or of a form without files."""

BODY_S = 30.0
"""Seconds that a client may take to send a body."""


class TooLarge(Exception):
    """The body is larger than it may be."""


def announces_more(content_length: str, limit: int) -> bool:
    """Return whether a body of this Content-Length is larger than `limit`; so is one whose length is no number."""
    plain = content_length.isascii() and content_length.isdigit() and len(content_length) <= 15
    return not plain or int(content_length) > limit


async def read_body(headers: Mapping[bytes, bytes], receive: Receive, limit: int) -> bytes | None:
    """Return the whole body, or None if the client is gone.

    Raises TooLarge as soon as it shows that the body is larger than `limit`, and TimeoutError after BODY_S seconds.
    """
    if announces_more(headers.get(b"content-length", b"0").decode("latin-1"), limit):
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
    application: Application, scope: Message, receive: Receive, send: Send, limit: int = LARGEST_BODY
) -> None:
    """Pass a request on to `application` once its body is there, if it has one, or answer 408; nothing if the client is
    gone.

    Raises TooLarge: then nothing was answered.
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
    """Return what follows "Authorization: Bearer"; b"" where nothing does."""
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    return given.strip(b" ") if scheme.lower() == b"bearer" else b""


def same(given: bytes, secret: bytes) -> bool:
    """Compare in a time that tells nothing of the secret; an empty one is equal to nothing."""
    return bool(secret) and hmac.compare_digest(given, secret)


async def refuse(send: Send, status: int, detail: str, *headers: tuple[bytes, bytes]) -> None:
    """Answer with `{"detail": …}`."""
    body = json.dumps({"detail": one_line(detail)}).encode()
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
