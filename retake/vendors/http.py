"""HTTP to vendors: one exchange, bounded in time and size, that knows whether the request may have been sent.

Rules for every call: nothing is retried; no redirect is followed (a POST repeated elsewhere may be paid for twice, and
a key must not travel); ten seconds to connect; and no exception of requests or urllib3 gets out, since their texts hold
whole URLs, signatures included.

requests and urllib3 bound each read, not a call: a server that sends a byte now and then holds them for ever. So a call
runs in a thread of its own, and its connection is cut when its time is over.
"""

import http.client
import os
import socket
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from queue import Empty, SimpleQueue
from ssl import SSLContext
from threading import Lock, Thread
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter

from retake.errors import Code, SettingsError
from retake.logs import diagnosing
from retake.vendors.answers import NoReply, Reply, Vendor, answered, says_missing, submitted, unanswered
from retake.vendors.route import trusted

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0
_BEHIND_S = 5.0
JSON_LIMIT = 16 * 2**20  # bytes; no JSON API gives a longer answer
_CHUNK = 64 * 2**10
_GZIP, _ZLIB = 31, 15  # what zlib calls `wbits`
_COMPRESSED = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _ZLIB}
_NOT_A_URL = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,  # a SOCKS proxy without PySocks
    urllib3.exceptions.LocationValueError,
    UnicodeError,
)
_FAILURES = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
    ValueError,
)


class JsonApi:
    """A vendor's JSON API, with its key in `headers`.

    Each method returns what the caller's `pick` finds in the answer. `what` completes the sentence "VENDOR was asked
    to …" in messages.
    """

    def __init__(
        self, vendor: Vendor, headers: Mapping[str, str], *, timeout_s: float, session: requests.Session | None = None
    ) -> None:
        self._vendor = vendor
        self._headers = dict(headers)
        self._timeout_s = timeout_s
        self._session = session

    def submit(self, what: str, url: str, body: Mapping[str, Any], pick: Callable[[object], T | None]) -> T:
        """POST a paid call. Raises Refused, OutcomeUnknown."""
        try:
            reply = self._exchange("POST", url, json=body)
        except NoReply as trouble:
            raise unanswered(self._vendor, what, trouble, paid=True) from None
        return submitted(self._vendor, what, reply, pick)

    def ask(self, what: str, url: str, body: Mapping[str, Any], pick: Callable[[object], T | None]) -> T:
        """POST a free query. Raises PollFailed."""
        return self._question(what, "POST", url, pick, json=body)

    def look(self, what: str, url: str, query: Mapping[str, Any], pick: Callable[[object], T | None]) -> T:
        """GET a free query. Raises PollFailed."""
        return self._question(what, "GET", url, pick, params=query)

    def look_for(self, what: str, url: str, query: Mapping[str, Any], pick: Callable[[object], T | None]) -> T | None:
        """Like `look`, but return None if the vendor itself says that there is no such thing."""
        return self._search(what, "GET", url, pick, params=query)

    def ask_for(self, what: str, url: str, body: Mapping[str, Any], pick: Callable[[object], T | None]) -> T | None:
        """Like `ask`, but return None if the vendor itself says that there is no such thing."""
        return self._search(what, "POST", url, pick, json=body)

    def _search(self, what: str, method: str, url: str, pick: Callable[[object], T | None], **content: Any) -> T | None:
        try:
            reply = self._exchange(method, url, **content)
        except NoReply as trouble:
            raise unanswered(self._vendor, what, trouble, paid=False) from None
        return None if says_missing(self._vendor, reply) else answered(self._vendor, what, reply, pick)

    def _question(self, what: str, method: str, url: str, pick: Callable[[object], T | None], **content: Any) -> T:
        try:
            reply = self._exchange(method, url, **content)
        except NoReply as trouble:
            raise unanswered(self._vendor, what, trouble, paid=False) from None
        return answered(self._vendor, what, reply, pick)

    def _exchange(self, method: str, url: str, **content: Any) -> Reply:
        return exchange(
            self._session, method, url, headers=self._headers, timeout_s=self._timeout_s, limit=JSON_LIMIT, **content
        )


def key_for_header(vendor: str, key_name: str, key: str) -> str:
    """Return `key` if an HTTP header can hold it. Raises SettingsError, which does not show the key.

    Without this check, requests would quote the key in its own error, and httpx would raise UnicodeEncodeError.
    """
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise SettingsError(f"{key_name}: the key for {vendor} has characters that no key has")
    return key


def bare(url: str) -> str:
    """Return `url` without user, query and fragment, fit for a message."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an invalid URL"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def exchange(
    session: requests.Session | None,
    method: str,
    url: str,
    *,
    timeout_s: float,
    limit: int,
    headers: Mapping[str, str] | None = None,
    **content: Any,
) -> Reply:
    """Send one request and return the whole answer: at most `limit` bytes, in at most `timeout_s` seconds.

    `content` is what requests calls `json`, `params`, `data` or `files`. A `session` given by the caller brings its own
    adapters, whose connections are left alone, not cut, when the time is over. Raises NoReply, and SettingsError for
    certificates that cannot be read.
    """
    # No compression, so that what comes over the wire is what is counted. No keep-alive: a connection may be cut just
    # when it is used again, and the outcome of a paid call would be unknown.
    every = {**(headers or {}), "Accept-Encoding": "identity", "Connection": "close"}
    settings = requests.Session() if session is None else session
    try:
        request = requests.Request(method, url, headers=every, auth=_unauthenticated, **content)
        prepared = settings.prepare_request(request)
        given = settings.get_adapter(prepared.url or "")
        send: Any = settings.merge_environment_settings(prepared.url, {}, True, None, None)
    except (requests.RequestException, ValueError):
        raise _no_address(url) from None
    # The total ends a call; the timeout of each read ends a thread that was left behind, and a call of a given session.
    send["timeout"] = (min(CONNECT_TIMEOUT_S, timeout_s), timeout_s + (_BEHIND_S if session is None else 0))
    tls = trusted()

    def work(cutter: Cutter) -> Reply:
        # Not session.send: it reads the body of a redirect that it does not follow, and fails on a bad one as if
        # nothing had been sent.
        adapter = CuttableAdapter(cutter, tls) if session is None else given
        try:
            with adapter.send(prepared, **send) as response:
                return _reply(response, limit)
        except _FAILURES as error:
            raise _no_reply(error, url, timeout_s, maybe_sent=cutter.is_open or session is not None) from None
        finally:
            if session is None:
                adapter.close()

    try:
        return _told(prepared, lambda: within(timeout_s, work))
    except Overdue as overdue:
        sent = overdue.sent or session is not None
        late = "no answer" if sent else f"no connection to {bare(url)}"
        raise NoReply(Code.TIMEOUT, f"{late} within {timeout_s:g} s", sent=sent) from None


def _told(request: requests.PreparedRequest, send: Callable[[], Reply]) -> Reply:
    """Send the request; log it in the diagnostic mode."""
    if not diagnosing():
        return send()
    from retake.vendors.diagnosis import diagnosed

    return diagnosed(request, send)


def _reply(response: requests.Response, limit: int) -> Reply:
    try:
        return Reply(response.status_code, response.headers, read_body(response, limit))
    except NoReply as trouble:
        trouble.head = Reply(response.status_code, response.headers, b"")
        raise


def _unauthenticated(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Add no authentication beyond our own headers: without a handler, requests would use a password from ~/.netrc."""
    return request


def _no_reply(error: Exception, url: str, timeout_s: float, *, maybe_sent: bool) -> NoReply:
    """Return what `error` means for the request. Only without a connection is it certain that nothing was sent."""
    if isinstance(error, _NOT_A_URL):  # a host name that no name server can be asked for
        return _no_address(url)
    if isinstance(error, requests.ConnectTimeout):
        return NoReply(Code.TIMEOUT, f"no connection to {bare(url)} in time", sent=False)
    refusal = _new_connection_error(error)
    if refusal is not None:
        reason = getattr(refusal.__cause__, "strerror", None) or "it failed"
        return NoReply(Code.NETWORK, f"no connection to {bare(url)}: {reason}", sent=False)
    if isinstance(error, (requests.ReadTimeout, urllib3.exceptions.ReadTimeoutError)):
        return NoReply(Code.TIMEOUT, f"no answer within {timeout_s:g} s", sent=maybe_sent)
    if isinstance(error, (requests.exceptions.SSLError, urllib3.exceptions.SSLError)):
        return NoReply(Code.NETWORK, f"no secure connection to {bare(url)} (certificate or TLS)", sent=maybe_sent)
    if isinstance(error, requests.exceptions.ProxyError) and not maybe_sent:
        return NoReply(Code.NETWORK, f"the proxy makes no connection to {bare(url)}", sent=False)
    return NoReply(Code.NETWORK, f"the connection to {bare(url)} was cut", sent=maybe_sent)


def _no_address(url: str) -> NoReply:
    return NoReply(Code.CONFIGURATION, f"{bare(url)!r} is not a valid URL, or the proxy is not", sent=False)


def _new_connection_error(error: Exception) -> urllib3.exceptions.NewConnectionError | None:
    """Return the failure to connect (to the vendor, or to the proxy) that `error` wraps, or None."""
    reason = getattr(error.args[0], "reason", None) if error.args else None
    if isinstance(reason, urllib3.exceptions.ProxyError):
        reason = reason.original_error
    return reason if isinstance(reason, urllib3.exceptions.NewConnectionError) else None


# --- the body of an answer ------------------------------------------------------------------------------------------


def read_body(response: requests.Response, limit: int) -> bytes:
    """Return the whole body, decompressed.

    No compression is requested, but some servers send it all the same: gzip and deflate are understood. Raises NoReply
    for a body of more than `limit` bytes (before it is read, if its Content-Length says so) and for any other encoding;
    urllib3 raises for a body that is shorter than its Content-Length.
    """
    length = response.headers.get("Content-Length", "")
    if length.isascii() and length.isdigit() and _exceeds(length, limit):
        raise _too_large(limit)
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    chunks = _chunks(response, limit)
    if encoding in ("", "identity"):
        return _joined(chunks, limit)
    if encoding not in _COMPRESSED:
        raise _unusable("it has an encoding that was not requested")
    return _joined(_decompressed(chunks, _COMPRESSED[encoding]), limit)


def _exceeds(digits: str, limit: int) -> bool:
    digits = digits.lstrip("0")
    return len(digits) > 20 or int(digits or "0") > limit


def _chunks(response: requests.Response, limit: int) -> Iterator[bytes]:
    """Yield what comes over the wire, at most `limit` bytes. `read1` (urllib3 2) returns what has arrived."""
    left = limit
    while chunk := response.raw.read1(_CHUNK, decode_content=False):
        left -= len(chunk)
        if left < 0:
            raise _too_large(limit)
        yield chunk


def _decompressed(chunks: Iterable[bytes], wbits: int) -> Iterator[bytes]:
    """Yield `chunks` decompressed, a bounded piece at a time."""
    machine = zlib.decompressobj(wbits)
    try:
        for chunk in chunks:
            while chunk and not machine.eof:
                yield machine.decompress(chunk, _CHUNK)
                chunk = machine.unconsumed_tail
        yield machine.flush()  # the rest of a match that did not fit into the last piece: 258 bytes at most
    except zlib.error:
        raise _unusable("it cannot be decompressed") from None
    if not machine.eof:
        raise _unusable("it cannot be decompressed to its end")


def _joined(chunks: Iterable[bytes], limit: int) -> bytes:
    """Return one bytes object without copying: BytesIO gives away its buffer."""
    whole = BytesIO()
    for chunk in chunks:
        if whole.tell() + len(chunk) > limit:
            raise _too_large(limit)
        whole.write(chunk)
    return whole.getvalue()


def _too_large(limit: int) -> NoReply:
    return NoReply(Code.BAD_ANSWER, f"the answer is larger than {limit:,} bytes", sent=True)


def _unusable(why: str) -> NoReply:
    return NoReply(Code.BAD_ANSWER, f"the answer is unusable: {why}", sent=True)


# --- a connection that can be cut -----------------------------------------------------------------------------------


class Overdue(Exception):
    """A call did not end in time and was cut. `sent` says whether the server may have seen the request."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__("the call did not end in time")
        self.sent = sent


class Cutter:
    """Cuts the connection of one call, from any thread. Nothing can be sent on it afterwards."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_cut = False
        self._is_open = False
        self._sockets: list[socket.socket] = []

    @property
    def is_open(self) -> bool:
        """Whether the connection was established, with TLS and a proxy's tunnel: a request may have been sent."""
        return self._is_open

    def watch(self, connection: socket.socket) -> None:
        """Let `cut` shut `connection` down. Raises TimeoutError after `cut`."""
        with self._lock:
            self._check()
            # A copy of the descriptor: wrapping a socket for TLS detaches the socket object.
            self._sockets.append(socket.socket(fileno=os.dup(connection.fileno())))

    def opened(self) -> None:
        """Note that the connection is established and the request follows. Raises TimeoutError after `cut`."""
        with self._lock:
            self._check()
            self._is_open = True

    def cut(self) -> None:
        """Shut down the connection. One that is not established yet never will be."""
        with self._lock:
            self._is_cut = True
            for connection in self._sockets:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the copied descriptors."""
        with self._lock:
            self._is_cut = True
            for connection in self._sockets:
                connection.close()
            self._sockets.clear()

    def _check(self) -> None:
        if self._is_cut:
            raise TimeoutError("the call is over")


def within(timeout_s: float, work: Callable[[Cutter], T]) -> T:
    """Run `work` in a thread of its own and return its result, or raise what it raises.

    After `timeout_s` seconds its connection is cut and Overdue is raised, even if `work` hangs in something that cannot
    be cut (a name server that does not answer): that thread is left behind, unable to send anything. An exception in
    the waiting thread, such as KeyboardInterrupt, cuts the connection too.
    """
    cutter = Cutter()
    outcome: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            result: tuple[T | None, BaseException | None] = (work(cutter), None)
        except BaseException as error:  # noqa: BLE001 (raised again in the waiting thread)
            result = (None, error)
        cutter.close()
        outcome.put(result)

    try:
        Thread(target=run, name="vendor call", daemon=True).start()
        try:
            value, error = outcome.get(timeout=timeout_s)
        except Empty:
            cutter.cut()
            # It may have arrived in the same moment, and the answer to a paid call must not be lost.
            value, error = outcome.get_nowait()
    except Empty:
        raise Overdue(sent=cutter.is_open) from None
    except RuntimeError:  # no more threads can be started
        raise Overdue(sent=False) from None
    finally:
        cutter.cut()
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # there is a value where there is no error


class CuttableAdapter(HTTPAdapter):
    """Sends one call on a connection of its own, which `cutter` can cut, with the certificates that `tls` trusts."""

    def __init__(self, cutter: Cutter, tls: SSLContext) -> None:
        self._cutter = cutter
        self._tls = tls
        super().__init__(pool_connections=1, pool_maxsize=1)

    def build_connection_pool_key_attributes(
        self, request: requests.PreparedRequest, verify: Any, cert: Any = None
    ) -> tuple[Any, Any]:
        """Return the pool's settings, with our certificates instead of those of requests."""
        where, _ = super().build_connection_pool_key_attributes(request, True)
        return where, {"ssl_context": self._tls, "cert_reqs": "CERT_REQUIRED"}

    def cert_verify(self, *_: Any, **__: Any) -> None:
        """Do nothing: `build_connection_pool_key_attributes` has set what is trusted."""

    def proxy_manager_for(self, proxy: str, **settings: Any) -> Any:
        """Return the pool of `proxy`; an https:// proxy is verified with the same certificates."""
        if proxy.lower().startswith("https:"):
            settings["proxy_ssl_context"] = self._tls
        return super().proxy_manager_for(proxy, **settings)

    def get_connection_with_tls_context(self, *args: Any, **settings: Any) -> Any:
        """Return the pool for a request, whose connections can be cut."""
        pool: Any = super().get_connection_with_tls_context(*args, **settings)
        pool.ConnectionCls = _cuttable(pool.ConnectionCls, self._cutter)
        return pool


def _cuttable(kind: Any, cutter: Cutter) -> Any:
    """Return the connection class `kind` with connections that `cutter` can cut."""

    class CuttableConnection(kind):  # type: ignore[misc]
        response_class = _FinalResponse

        def _new_conn(self) -> Any:
            connection = super()._new_conn()
            try:
                cutter.watch(connection)
            except TimeoutError:
                connection.close()
                raise
            return connection

        def connect(self) -> None:
            super().connect()
            # urllib3 would limit sending to the connect timeout, too short for a picture on a slow network. The total
            # limits it instead.
            self.sock.settimeout(None)
            cutter.opened()

    return CuttableConnection


class _FinalResponse(http.client.HTTPResponse):
    """Skips every interim response (RFC 9110, 15.2), such as 103 Early Hints; http.client only skips 100 and takes
    any other for the response itself."""

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        return version, http.client.CONTINUE if 102 <= status < 200 else status, reason
