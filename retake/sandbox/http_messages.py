"""What comes in and goes out over HTTP, as values; the vendors' stand-ins know nothing of sockets."""

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
    """One HTTP request. Header names are in lower case."""

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
        """The body as JSON, or None where it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def fields(self) -> dict[str, Any]:
        """The body's JSON object; an empty one where it is something else."""
        return self.json if isinstance(self.json, dict) else {}

    def summary(self) -> Any:
        """What the books keep of it: the JSON without image bytes and secrets, or the query."""
        return _bare(self.json) if self.body else dict(self.query)


@dataclass(frozen=True)
class Response:
    """One HTTP reply, and what the call was about. `body` is JSON, or bytes of `type`; `price` is in mills."""

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


def html(status: int) -> Response:
    """The page that a gateway answers with."""
    return Response(status, GATEWAY_PAGE, "text/html")


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: "…" if key == "secret" and item else _bare(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_bare(item) for item in value]
    if isinstance(value, str) and value.startswith("data:"):
        return f"{value.partition(',')[0]},… ({len(value)} characters)"
    return value
