"""Free queries to a vendor without requests, which takes several times as long to load as a poll takes.

Only simple queries are supported: a plain URL, JSON or no body, and no proxy. All others, and every paid call, go
through requests (`retake.vendors.http.exchange`). The rules of that module apply, and failures have the same wording;
tests/vendors/test_polls.py compares the two. HTTP is spoken by h11: http.client would load the e-mail parser, and TLS
even if it is not used.
"""

import errno
import json
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import h11

from retake.errors import Code
from retake.vendors.answers import NoReply, Reply
from retake.vendors.http import CONNECT_TIMEOUT_S, Cutter, bare, in_time, is_direct, logged, reply_of

if TYPE_CHECKING:
    from ssl import SSLContext

_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_PLAIN = re.compile(rf"https?://{_LABEL}(?:\.{_LABEL})*(?::[1-9][0-9]{{0,4}})?(?:/(?!\.)[A-Za-z0-9_~.-]*)*")
_MAX_HOST_LENGTH = 200  # maximum characters of a host name
_BEHIND_S = 5.0  # after the total time, when an abandoned thread ends
_HEAD_LIMIT = 2**20  # maximum bytes of an answer before its body
_UNUSABLE = rb"(?i)\AHTTP/1\.[01] 101\b|\ncontent-length:[ \t]*[0-9]{21}"
"""Answers that h11 treats as a broken connection, and requests as an answer."""


class _Query(NamedTuple):
    """A request, with the attribute names of requests."""

    method: str
    url: str
    body: bytes | None
    headers: Mapping[str, str]


def can_ask(url: str, content: Mapping[str, Any]) -> bool:
    """Return whether `ask` supports this URL and this content ("json", "params")."""
    return not content.get("params") and not content.keys() - {"json", "params"} and is_plain(url) and is_direct()


def is_plain(url: str) -> bool:
    """Return whether the URL is simple: valid, and without anything to encode."""
    if not _PLAIN.fullmatch(url):
        return False
    host, port = _place(url)
    return len(host) <= _MAX_HOST_LENGTH and port < 2**16


def ask(method: str, url: str, *, timeout_s: float, limit: int, headers: Mapping[str, str], **content: Any) -> Reply:
    """Send one request and return the whole answer, like `retake.vendors.http.exchange`.

    Raises NoReply, SettingsError (bad certificates).
    """
    every = {"User-Agent": "retake", "Accept": "*/*", "Connection": "close", **headers}
    every["Accept-Encoding"] = "identity"
    body = None
    if content.get("json") is not None:
        body = json.dumps(content["json"], allow_nan=False).encode()
        every |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    query = _Query(method, url, body, every)
    tls = None
    if url.startswith("https:"):
        from retake.vendors.certificates import trusted

        tls = trusted()

    def work(cutter: Cutter) -> Reply:
        with _connection(url, timeout_s, cutter, tls) as connection:
            try:
                return reply_of(_PolledAnswer(connection, query), limit)
            except (h11.ProtocolError, OSError, ValueError) as error:
                raise _no_reply(error, url, timeout_s, sent=True) from None

    return logged(query, lambda: in_time(url, timeout_s, work))


def _place(url: str) -> tuple[str, int]:
    """Return the host and port in a URL."""
    scheme, _, rest = url.partition("://")
    host, _, port = rest.partition("/")[0].partition(":")
    return host.lower(), int(port or {"http": 80, "https": 443}[scheme])


@contextmanager
def _connection(url: str, timeout_s: float, cutter: Cutter, tls: "SSLContext | None") -> Iterator[socket.socket]:
    """Connect, with TLS if needed, and close the connection afterwards. Raises NoReply: nothing was sent."""
    host, port = _place(url)
    try:
        connection = _connected(host, port, min(CONNECT_TIMEOUT_S, timeout_s))
    except TimeoutError:
        raise NoReply(Code.TIMEOUT, f"no connection to {bare(url)} in time", sent=False) from None
    except OSError as error:
        reason = error.strerror or "it failed"
        raise NoReply(Code.NETWORK, f"no connection to {bare(url)}: {reason}", sent=False) from None
    try:
        cutter.watch(connection)
        if tls:
            connection = tls.wrap_socket(connection, server_hostname=host)
        connection.settimeout(timeout_s + _BEHIND_S)
        cutter.opened()
    except (OSError, ValueError) as error:
        connection.close()
        raise _no_reply(error, url, timeout_s, sent=False) from None
    with connection:
        yield connection


def _connected(host: str, port: int, timeout_s: float) -> socket.socket:
    """Connect to the first of the host's addresses that accepts the connection. Raises the OSError of the last one."""
    # Bytes, since for a str Python would load its IDNA codec.
    failure = OSError()
    for family, kind, protocol, _, address in socket.getaddrinfo(host.encode(), port, 0, socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.connect(address)
        except OSError as error:
            failure = error
            connection.close()
        else:
            return connection
    raise failure


class _Headers(Mapping[str, str]):
    """Headers with case-insensitive names."""

    def __init__(self, fields: Iterable[tuple[bytes, bytes]]) -> None:
        self._fields: dict[str, str] = {}
        for raw_name, raw in fields:
            name, value = raw_name.decode("ascii"), raw.decode("latin-1")
            known = self._fields.get(name)
            self._fields[name] = value if known is None else f"{known}, {value}"

    def __getitem__(self, name: str) -> str:
        return self._fields[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


class _PolledAnswer:
    """The answer to a query, with the attribute names of requests."""

    def __init__(self, connection: socket.socket, query: _Query) -> None:
        self.raw = self
        self._connection = connection
        self._http = h11.Connection(h11.CLIENT, _HEAD_LIMIT)
        self._begun = b""
        self._send(query)
        try:
            response = self._next()
            while not isinstance(response, h11.Response):  # an interim one, such as 103 Early Hints
                response = self._next()
        except h11.ProtocolError:
            if re.search(_UNUSABLE, self._begun):
                why = "the answer is unusable: it has no end, or uses an unknown protocol"
                raise NoReply(Code.BAD_ANSWER, why, sent=True) from None
            raise
        self.status_code = response.status_code
        self.headers = _Headers(response.headers)

    def read1(self, amount: int, *, decode_content: bool) -> bytes:
        """Return what has arrived, or b"" at the end. Raises ProtocolError if the answer ends too soon."""
        event = self._next()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    def _send(self, query: _Query) -> None:
        host, _, path = query.url.partition("://")[2].partition("/")
        request = h11.Request(method=query.method, target="/" + path, headers=[("Host", host), *query.headers.items()])
        events = (request, *([h11.Data(query.body)] if query.body else []), h11.EndOfMessage())
        octets = b"".join(filter(None, map(self._http.send, events)))
        try:
            self._connection.sendall(octets)
        except OSError as error:  # it may have answered before it hung up
            if error.errno not in (errno.EPIPE, errno.EPROTOTYPE, errno.ECONNRESET):
                raise

    def _next(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            octets = self._connection.recv(2**16)
            self._begun = self._begun or octets
            self._http.receive_data(octets)
        if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
            raise h11.RemoteProtocolError("no HTTP follows")
        return event


def _no_reply(error: Exception, url: str, timeout_s: float, *, sent: bool) -> NoReply:
    if isinstance(error, TimeoutError):
        return NoReply(Code.TIMEOUT, f"no answer within {timeout_s:g} s", sent=sent)
    if type(error).__module__ == "ssl":
        return NoReply(Code.NETWORK, f"no secure connection to {bare(url)} (certificate or TLS)", sent=sent)
    return NoReply(Code.NETWORK, f"the connection to {bare(url)} was cut", sent=sent)
