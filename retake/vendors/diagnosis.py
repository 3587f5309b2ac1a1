"""What diagnostic mode logs about a request: the vendor, the outcome, and the shape of request and answer.

It never logs a value: a body is shown as its size and the names of its keys, a URL without user, query and fragment. A
path segment that belongs to a secret (a webhook) is masked.
"""

import time
from collections.abc import Callable
from logging import getLogger
from urllib.parse import urlsplit

from retake.logs import part_of_secret
from retake.vendors.answers import NOT_JSON, NoReply, Reply, parse
from retake.vendors.http import SentRequest

_log = getLogger("retake.diagnosis.http")

_KEYS, _KEY_LENGTH, _DEPTH = 20, 40, 3
"""Limits on the shape of a body that is shown: keys of an object, characters of a key, nesting depth."""


def diagnosed(request: SentRequest, send: Callable[[], Reply]) -> Reply:
    """Send the request with `send`, and log it and its answer."""
    asked = _shape(_octets(request.body))
    fields = {"method": request.method, "url": _place(request.url or ""), "request": asked}
    who, began = f"{fields['method']} {fields['url']}", time.monotonic()
    try:
        reply = send()
    except Exception as error:
        seconds = round(time.monotonic() - began, 3)
        ending = str(error) if isinstance(error, NoReply) else f"no answer ({type(error).__name__})"
        more = {**fields, "status": None, "bytes": 0, "seconds": seconds}
        _log.debug("%s: %s, %.3f s; sent %s", who, ending, seconds, asked, extra=more)
        raise
    seconds, answer = round(time.monotonic() - began, 3), _shape(reply.body)
    more = {**fields, "status": reply.status, "bytes": len(reply.body), "seconds": seconds, "answer": answer}
    _log.debug("%s: HTTP %s, %.3f s; sent %s; got %s", who, reply.status, seconds, asked, answer, extra=more)
    return reply


def _place(url: str) -> str:
    """Return scheme, host and path of a URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an invalid URL"
    path = "/".join("…" if part_of_secret(it) else it for it in parts.path.split("/"))
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"


def _octets(body: object) -> bytes:
    return body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else b""


def _shape(body: bytes) -> str:
    """Return a body's size, and the names of its keys if it is JSON."""
    value = parse(body) if body[:1] in (b"{", b"[") else NOT_JSON
    return f"{len(body)} bytes" + ("" if value is NOT_JSON else f" {_keys(value, _DEPTH)}")


def _keys(value: object, depth: int) -> str:
    if isinstance(value, dict):
        inner = [f"{str(key)[:_KEY_LENGTH]}{_within(part, depth)}" for key, part in [*value.items()][:_KEYS]]
        more = ["…"] if len(value) > _KEYS else []
        return "{" + ", ".join([*inner, *more]) + "}"
    if isinstance(value, list):
        return f"[{len(value)}" + (f" × {_keys(value[0], depth - 1)}" if value and depth > 1 else "") + "]"
    return {str: "text", bool: "true or false", type(None): "null"}.get(type(value), "number")


def _within(part: object, depth: int) -> str:
    """Return the shape of a key's value if it has keys of its own, else ""."""
    return f": {_keys(part, depth - 1)}" if isinstance(part, (dict, list)) and part and depth > 1 else ""
