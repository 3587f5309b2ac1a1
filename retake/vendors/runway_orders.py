"""Orders at Runway, through its official SDK with its retries and redirects disabled. Answers are read raw.

The SDK imports its resources at the first call. Threads whose first calls coincide would import them in different
orders, and one of them could fail with importlib's _DeadlockError, so they are imported here, under one lock.
"""

from collections.abc import Mapping
from typing import Any

import httpx
import runwayml
import runwayml.resources

from retake.errors import Code
from retake.vendors.answers import NoReply, Reply
from retake.vendors.http import JSON_LIMIT, bare, exchange

_HOP_BY_HOP = {"host", "connection", "content-length", "transfer-encoding", "content-encoding", "accept-encoding"}
"""Hop-by-hop headers of a connection, in lower case. They are not passed on: each hop sets its own."""


def send_order(url: str, secret: str, order: Mapping[str, Any], timeout_s: float) -> Reply:
    """Order a video and return the answer, no matter how the SDK itself reads it.

    `order` has the arguments of the SDK's `image_to_video.create`. Raises NoReply.
    """
    transport = _Transport(timeout_s)
    try:
        with _client(url, secret, transport) as client:
            client.image_to_video.with_raw_response.create(**order)
    except (runwayml.RunwayMLError, httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
        if isinstance(error.__cause__, NoReply):
            raise error.__cause__ from None
        if transport.reply is None:  # a URL that the SDK cannot parse
            raise NoReply(Code.CONFIGURATION, f"{bare(url)!r} is not a valid URL", sent=False) from None
    assert transport.reply is not None, "the SDK's answers come only from the transport"
    return transport.reply


def _client(url: str, secret: str, transport: httpx.BaseTransport) -> runwayml.RunwayML:
    return runwayml.RunwayML(
        api_key=secret,
        base_url=url,
        max_retries=0,
        http_client=httpx.Client(transport=transport, follow_redirects=False, trust_env=False),
    )


class _Transport(httpx.BaseTransport):
    """Sends the SDK's requests with `retake.vendors.http.exchange` and keeps the `reply`.

    httpx limits neither the time nor the size of a whole answer.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.reply: Reply | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Make one exchange. Raises NoReply, which the SDK wraps."""
        headers = {name: value for name, value in request.headers.items() if name not in _HOP_BY_HOP}
        limits: Any = {"timeout_s": self._timeout_s, "limit": JSON_LIMIT}
        self.reply = exchange(
            None, request.method, str(request.url), headers=headers, data=request.read() or None, **limits
        )
        reply_headers = [(name, value) for name, value in self.reply.headers.items() if name.lower() not in _HOP_BY_HOP]
        return httpx.Response(self.reply.status, headers=reply_headers, content=self.reply.body)
