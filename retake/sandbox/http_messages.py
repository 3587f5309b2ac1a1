"""HTTP requests and responses as values, so that stand-ins need no sockets."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, urlsplit

GATEWAY_PAGE = (
    b"<html>\r\n<head><title>Bad Gateway</title></head>\r\n"
    b"<body>\r\n<center><h1>The upstream server did not answer</h1></center>\r\n<hr>"
    b"<center>nginx</center>\r\n</body>\r\n</html>\r\n"
)


@dataclass(frozen=True)
class Request:
    """An HTTP request. Header names are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)

    @cached_property
    def path(self) -> str:
        return urlsplit(self.target).path.rstrip("/") or "/"

    @cached_property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query))

    @cached_property
    def json(self) -> Any:
        """The body as JSON, or None if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def fields(self) -> dict[str, Any]:
        """The JSON object in the body, or an empty one."""
        return self.json if isinstance(self.json, dict) else {}

    @property
    def form(self) -> dict[str, str]:
        """The fields of a form in the body."""
        if self.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            return dict(parse_qsl(self.body.decode("utf-8", "replace")))
        return {}

    @property
    def api_key(self) -> str:
        return self.headers.get("x-api-key", "").strip()

    @property
    def bearer_token(self) -> str:
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""

    @property
    def is_json_object(self) -> bool:
        """Whether the body is sent as JSON and is a non-empty object."""
        return self.headers.get("content-type", "").startswith("application/json") and bool(self.fields)

    def summary(self) -> Any:
        """Return what is recorded about the request: a chunk's range; or its form or JSON without image bytes and
        secrets; or its query."""
        if "content-range" in self.headers:
            return {**self.query, "content_range": self.headers["content-range"], "bytes": len(self.body)}
        if self.form:
            return _redacted(self.form)
        return _redacted(self.json) if self.body else dict(self.query)


@dataclass(frozen=True)
class Response:
    """An HTTP response and the price of the call, in mills. `body` is JSON, or bytes of the content type `type`."""

    status: int
    body: Any = None
    type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    task_id: str = ""
    price: int = 0

    @property
    def ok(self) -> bool:
        return self.status < 400

    def payload(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return b"" if self.body is None else json.dumps(self.body, ensure_ascii=False).encode()


def error_response(status: int, body: dict[str, Any]) -> Response:
    """Return an error; a 429 has a Retry-After header."""
    return Response(status, body, headers={"Retry-After": "1"} if status == 429 else {})


def gateway_page(status: int) -> Response:
    """Return the HTML page that a gateway in front of a vendor sends."""
    return Response(status, GATEWAY_PAGE, "text/html")


_SECRETS = ("secret", "client_secret", "refresh_token", "secret_token")


def _redacted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: "…" if key in _SECRETS and item else _redacted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_redacted(item) for item in value]
    if isinstance(value, str) and value.startswith("data:"):
        return f"{value.partition(',')[0]},… ({len(value)} characters)"
    return value
