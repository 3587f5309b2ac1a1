"""The gate before the API: keys are checked, and bodies limited in time and size, before anything else happens."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from retake.images.settings import EVERYBODY, AccessKeys
from retake.serving.body import (
    BODY_S,
    MAX_BODY_BYTES,
    Application,
    Message,
    Receive,
    Send,
    TooLarge,
    bearer,
    exceeds_limit,
    refuse,
    secret_matches,
    with_whole_body,
)

MIN_BYTES_PER_S = 65_536  # minimum bytes per second for a body that takes longer than BODY_S

OPEN_PATHS = ("/health", "/docs", "/openapi.json")
OPEN_FOLDERS = ("/docs/", "/static-offline-docs/")  # what the page /docs loads
FORM_PATHS = ("/upload", "/jobChangeOutfit")
"""Paths whose bodies are read in chunks, by `bounded_chunks`."""


class AccessGate:
    """Passes a request on to `application` with the user that its key belongs to, or responds 401, 408 or 413.

    The user is in `scope["state"]["acts_for"]`, "*" for a key that acts for every user; see `check_acts_for`.
    """

    def __init__(self, application: Application, *, keys: AccessKeys) -> None:
        self._application = application
        self._keys = [(user, key.encode()) for user, key in keys]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._application(scope, receive, send)
        headers, path = dict(scope["headers"]), scope["path"]
        if path not in OPEN_PATHS and not path.startswith(OPEN_FOLDERS):
            user = self._user_of(bearer(headers))
            if user is None:
                unauthorized = "the header Authorization: Bearer does not have a key of IMAGES_KEYS"
                return await refuse(send, 401, unauthorized, (b"www-authenticate", b"Bearer"))
            scope.setdefault("state", {})["acts_for"] = user
        if path in FORM_PATHS and scope["method"] == "POST":
            return await self._application(scope, receive, send)
        try:
            await with_whole_body(self._application, scope, receive, send)
        except TooLarge:
            await refuse(send, 413, f"the body is larger than {MAX_BODY_BYTES} bytes", (b"connection", b"close"))

    def _user_of(self, given: bytes) -> str | None:
        """Return the user whose key this is, or None. Every key is compared, each in constant time."""
        found = [user for user, key in self._keys if secret_matches(given, key)]
        return found[0] if found else None


# --- permissions ----------------------------------------------------------------------------------------------------


def acts_for(request: Request) -> str:
    """Return the user that the request's key belongs to, or "*"."""
    return str(request.scope["state"]["acts_for"])


def may(acting: str, user_id: str) -> bool:
    """Return whether a key of `acting` acts for this user."""
    return acting in (EVERYBODY, user_id)


def check_acts_for(acting: str, user_id: str) -> None:
    """Raise HTTPException (403) if a key of `acting` does not act for this user."""
    if not may(acting, user_id):
        raise HTTPException(403, "the key belongs to another userId")


# --- large bodies ---------------------------------------------------------------------------------------------------


class BodyRefused(MultiPartException):
    """The body is too large (413), has too many parts (413), or arrives too slowly (408)."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class ClientGone(MultiPartException):
    """The client closed the connection: nobody would read a response."""


async def bounded_chunks(headers: Any, receive: Receive, limit: int) -> AsyncGenerator[bytes, None]:
    """Yield the body as it arrives. Raises BodyRefused, having read at most `limit` bytes, and ClientGone.

    The client has BODY_S seconds, plus one second for every MIN_BYTES_PER_S bytes that it has sent.
    """
    if exceeds_limit(headers.get("content-length", "0"), limit):
        raise BodyRefused(413, f"the body is larger than {limit} bytes")
    size, loop = 0, asyncio.get_running_loop()
    began = loop.time()
    while True:
        try:
            async with asyncio.timeout_at(began + BODY_S + size / MIN_BYTES_PER_S):
                message = await receive()
        except TimeoutError:
            raise BodyRefused(408, f"the body came too slowly: {size} bytes in {loop.time() - began:.0f} s") from None
        if message["type"] != "http.request":
            raise ClientGone("the client is gone")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise BodyRefused(413, f"the body is larger than {limit} bytes")
        yield chunk
        if not message.get("more_body", False):
            return
