"""What stands before the API: the key is checked, and the body read within bounds, before anything else is done."""

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from retake.foreign_text import one_line

LARGEST_BODY = 65_536  # bytes
LARGEST_UPDATE = 1_048_576  # bytes; Telegram repeats what is refused, so its bound is well above what it sends
BODY_S = 30.0  # how long a client may take to send a body

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class Gatekeeper:
    """Passes a request on to `application`, its body whole, or answers 401, 403, 408 or 413.

    Below `prefix` the header must be "Authorization: Bearer " with the key. At `hook`, if given, the header
    X-Telegram-Bot-Api-Secret-Token must be `hook_secret`. Both are compared in a time that tells nothing of them.
    """

    def __init__(
        self, application: Application, *, prefix: str, key: str, hook: str | None = None, hook_secret: str = ""
    ) -> None:
        self._application, self._prefix, self._hook = application, prefix, hook
        self._key, self._hook_secret = key.encode(), hook_secret.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._application(scope, receive, send)
        headers, path = dict(scope["headers"]), scope["path"]
        hooked = path == self._hook
        if (path == self._prefix or path.startswith(f"{self._prefix}/")) and not self._bearer(headers):
            unauthorized = "the header Authorization: Bearer does not have the key of MUSIC_API_KEY"
            return await _answer(send, 401, unauthorized, (b"www-authenticate", b"Bearer"))
        if hooked and not _same(headers.get(b"x-telegram-bot-api-secret-token", b""), self._hook_secret):
            return await _answer(send, 403, "the header X-Telegram-Bot-Api-Secret-Token is missing or wrong")
        if b"content-length" not in headers and b"transfer-encoding" not in headers:
            return await self._application(scope, receive, send)
        return await self._with_body(scope, receive, send, LARGEST_UPDATE if hooked else LARGEST_BODY)

    async def _with_body(self, scope: Message, receive: Receive, send: Send, limit: int) -> None:
        try:
            async with asyncio.timeout(BODY_S):
                body = await _body(dict(scope["headers"]), receive, limit)
        except TimeoutError:
            return await _answer(send, 408, f"the body did not arrive within {BODY_S:g} s", (b"connection", b"close"))
        except _TooLarge:
            if scope["path"] == self._hook:  # no update is that large, and Telegram would send it for ever
                return await _answer(send, 200, "ignored: too large")
            return await _answer(send, 413, f"the body is larger than {limit} bytes")
        if body is None:
            return None  # the client is gone
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_given() -> Message:
            return given.pop() if given else await receive()

        return await self._application(scope, receive_given, send)

    def _bearer(self, headers: MutableMapping[bytes, bytes]) -> bool:
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        return _same(key.strip(b" "), self._key) and scheme.lower() == b"bearer"


class _TooLarge(Exception):
    pass


async def _body(headers: MutableMapping[bytes, bytes], receive: Receive, limit: int) -> bytes | None:
    """Return the whole body, or None if the client is gone. Raises _TooLarge, with no more read than `limit`."""
    announced = headers.get(b"content-length", b"0")
    if not announced.isdigit() or len(announced) > 15 or int(announced) > limit:
        raise _TooLarge
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise _TooLarge
        if not message.get("more_body", False):
            return b"".join(parts)


def _same(given: bytes, secret: bytes) -> bool:
    return bool(secret) and hmac.compare_digest(given, secret)


async def _answer(send: Send, status: int, detail: str, *headers: tuple[bytes, bytes]) -> None:
    body = json.dumps({"detail": one_line(detail)}).encode()
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
