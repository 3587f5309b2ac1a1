"""The ASGI middleware that every request passes first: it checks host and session, and adds security headers."""

from collections.abc import Collection, Mapping
from urllib.parse import quote, urlsplit

from retake.serving.body import Application, Message, Receive, Send, bearer, refuse
from retake.web.sessions import COOKIE, Sessions

MAX_COOKIE_BYTES = 8192  # of the header that are read

OPEN_PATHS = ("/login", "/healthz")  # these need no session
OPEN_PREFIX = "/static/"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")

_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)


class Gate:
    """Passes signed-in requests for one of `hosts` on to `application`, and adds to their scope:

    scope["retake.session"]     the session cookie; "" for a program
    scope["retake.program"]     whether the token was sent as a bearer token

    Others are redirected to /login (pages) or answered 401 (programs); a foreign host is answered 400.
    """

    def __init__(self, application: Application, sessions: Sessions, hosts: Collection[str]) -> None:
        self._application, self._sessions = application, sessions
        self._hosts = {*LOOPBACK, *hosts}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._application(scope, receive, send)
        headers, path = dict(scope["headers"]), scope["path"]

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": with_security_headers(message["headers"])}
            await send(message)

        if host_name(headers.get(b"host", b"").decode("latin-1")) not in self._hosts:
            return await refuse(send_secured, 400, "this host is not allowed: add it to WEB.hosts")
        token = bearer(headers).decode("latin-1")
        program = bool(token) and self._sessions.is_token(token)
        session = session_of(headers)
        signed_in = program or self._sessions.holds(session)
        scope["retake.program"], scope["retake.session"] = program, "" if program or not signed_in else session
        if signed_in or path in OPEN_PATHS or path.startswith(OPEN_PREFIX):
            return await self._application(scope, receive, send_secured)
        if not from_program(scope):
            return await _to_login(scope, send_secured)
        challenge = (b"www-authenticate", b"Bearer")
        return await refuse(send_secured, 401, "send the header Authorization: Bearer with RETAKE_WEB_TOKEN", challenge)


def host_name(host: str) -> str:
    """Return the lower-case name in a Host header, without the port."""
    text = host.strip().lower()
    name, colon, port = text.rpartition(":")
    return name if colon and port.isdecimal() and (name.endswith("]") or ":" not in name) else text


def session_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the session cookie, or "".

    Browsers do not tell ports apart, so the header may hold cookies of other programs on this host. `http.cookies`
    would stop at the first one that is malformed, such as JSON."""
    header = headers.get(b"cookie", b"")[:MAX_COOKIE_BYTES].decode("latin-1")
    pairs = (it.partition("=") for it in header.split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}.get(COOKIE, "")


def wants_page(scope: Message) -> bool:
    """Return whether to answer with a page: a program's Accept header names application/json before text/html, if at
    all."""
    accept: bytes = dict(scope["headers"]).get(b"accept", b"").lower()
    html, data = accept.find(b"text/html"), accept.find(b"application/json")
    return data < 0 or 0 <= html < data


def from_program(scope: Message) -> bool:
    """Return whether a program sent the request, so that errors are answered in JSON."""
    return b"authorization" in dict(scope["headers"]) or not wants_page(scope)


def own_path(text: str) -> str:
    """Return `text` if it is a path on this site that a browser may be redirected to, else "/"."""
    try:
        parts = urlsplit(text) if len(text) <= 2000 and text.isprintable() else None
    except ValueError:  # "//[", for example
        return "/"
    ours = parts and not parts.scheme and not parts.netloc and text.startswith("/") and text[1:2] not in ("/", "\\")
    return text if ours and "\\" not in text else "/"


def with_security_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Add the headers that every answer has. An answer without Cache-Control is not cached."""
    names = {name.lower() for name, _ in headers}
    more = [] if b"cache-control" in names else [(b"cache-control", b"no-store")]
    return [*headers, *(it for it in _HEADERS if it[0] not in names), *more]


async def _to_login(scope: Message, send: Send) -> None:
    asked = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
    target = f"/login?next={quote(own_path(asked), safe='/')}" if scope["method"] in ("GET", "HEAD") else "/login"
    headers = [(b"location", target.encode("latin-1")), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
