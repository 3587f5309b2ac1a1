"""HTTP to vendors: one exchange, limited in time and size, that knows whether the request may have been sent.

Rules for every call: nothing is retried; no redirect is followed (a POST repeated elsewhere may be paid for twice, and
a key must not travel); ten seconds to connect; and no exception of requests or urllib3 escapes, since their texts
contain whole URLs, including signatures.

requests and urllib3 limit each read, not the whole call, so a server that sends a byte now and then could hold a call
for ever. Each call therefore runs in its own thread, and its connection is cut when its time is up.
"""

import os
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from io import BytesIO
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, TypeVar

from retake.errors import Code, SettingsError
from retake.logs import diagnosing
from retake.vendors import Health, Quota
from retake.vendors.answers import DATE_LIMIT, NoReply, Reply, Vendor, answered, says_missing, submitted, unanswered

if TYPE_CHECKING:
    import requests

    from retake.vendors.kept import KeptConnections

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0
JSON_LIMIT = 16 * 2**20  # bytes; no JSON API gives a longer answer
BEGINNING = 1024  # bytes kept of an answer that goes into a file: enough to tell a page from media
_MIN_SKEW = timedelta(minutes=1)  # smaller differences are ignored: caches send dates that are some seconds old
_MAX_SKEW = timedelta(days=36525)  # larger differences are not believed: a clock that has lost its time shows 1970
_CHUNK, _SLICE = 64 * 2**10, 4 * 2**10
_GZIP, _ZLIB = 31, 15  # `wbits` of zlib
_GZIP_START = 0x1F  # the first byte of a member
_COMPRESSED = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _ZLIB}


class OpenAnswer(Protocol):
    """An answer whose body has not been read yet, with the attributes of a requests response."""

    @property
    def status_code(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def raw(self) -> Any:  # has read1(amount, decode_content=False)
        ...


class SentRequest(Protocol):
    """A request, with the attributes of a prepared request of requests."""

    @property
    def method(self) -> str | None: ...
    @property
    def url(self) -> str | None: ...
    @property
    def body(self) -> bytes | str | None: ...


class JsonApi:
    """A vendor's JSON API, with its key in `headers`.

    Each method returns what the caller's `pick` finds in the answer. In messages, `what` completes the sentence "VENDOR
    was asked to …". Free queries use connections of `kept`, if given and there is no proxy.
    """

    def __init__(
        self,
        vendor: Vendor,
        headers: Mapping[str, str],
        *,
        timeout_s: float,
        session: "requests.Session | None" = None,
        kept: "KeptConnections | None" = None,
    ) -> None:
        self._vendor = vendor
        self._headers = dict(headers)
        self._timeout_s = timeout_s
        self._session = session
        self._kept = kept
        self._dated = ("", 0.0)  # the Date of the last answer to a free query, and our time in seconds

    def health(self, says: str, quotas: tuple[Quota, ...] = (), doubts: tuple[str, ...] = ()) -> Health:
        """Return the health that a client has read in an answer, with the difference between the clocks."""
        return Health(says, quotas, doubts, self.clock_ahead().total_seconds())

    def clock_ahead(self) -> timedelta:
        """Return how far the vendor's clock was ahead of ours at its last answer to a free query.

        0 if they differed by less than a minute, or if the answer had no plausible date.
        """
        from email.utils import parsedate_to_datetime

        text, here_s = self._dated
        try:
            ahead = parsedate_to_datetime(text) - datetime.fromtimestamp(here_s, UTC)
        except (ValueError, TypeError):  # TypeError: a date without a zone
            return timedelta(0)
        return ahead if _MIN_SKEW < abs(ahead) < _MAX_SKEW else timedelta(0)

    def submit(self, what: str, url: str, body: Mapping[str, Any], pick: Callable[[object], T | None]) -> T:
        """POST a paid call. Raises Refused, OutcomeUnknown."""
        try:
            reply = self._exchange("POST", url, json=body)
        except NoReply as trouble:
            raise unanswered(self._vendor, what, trouble, paid=True) from None
        return submitted(self._vendor, what, reply, pick)

    def ask(self, what: str, url: str, body: Mapping[str, Any], pick: Callable[[object], T | None]) -> T:
        """POST a free query. Raises PollFailed."""
        return answered(self._vendor, what, self._answer(what, "POST", url, json=body), pick)

    def look(self, what: str, url: str, query: Mapping[str, Any], pick: Callable[[object], T | None]) -> T:
        """GET a free query. Raises PollFailed."""
        return answered(self._vendor, what, self._answer(what, "GET", url, params=query), pick)

    def look_for(self, what: str, url: str, query: Mapping[str, Any], pick: Callable[[object], T | None]) -> T | None:
        """Like `look`, but return None if the vendor itself says that the thing does not exist."""
        return self._found(what, self._answer(what, "GET", url, params=query), pick)

    def ask_for(self, what: str, url: str, body: Mapping[str, Any], pick: Callable[[object], T | None]) -> T | None:
        """Like `ask`, but return None if the vendor itself says that the thing does not exist."""
        return self._found(what, self._answer(what, "POST", url, json=body), pick)

    def _found(self, what: str, reply: Reply, pick: Callable[[object], T | None]) -> T | None:
        return None if says_missing(self._vendor, reply) else answered(self._vendor, what, reply, pick)

    def _answer(self, what: str, method: str, url: str, **content: Any) -> Reply:
        """Return the answer to a free query, and keep its date. Raises PollFailed if there is none."""
        try:
            if self._kept and self._kept.reaches(url) and not diagnosing():
                reply = self._kept.exchange(method, url, self._headers, self._timeout_s, JSON_LIMIT, **content)
            else:
                reply = self._free(method, url, **content)
        except NoReply as trouble:
            raise unanswered(self._vendor, what, trouble, paid=False) from None
        self._dated = (reply.headers.get("Date", "")[:DATE_LIMIT], time.time())
        return reply

    def _free(self, method: str, url: str, **content: Any) -> Reply:
        """Send a free query, if possible without requests, which is slow to load."""
        from retake.vendors import polls

        if self._session or not polls.can_ask(url, content):
            return self._exchange(method, url, **content)
        return polls.ask(method, url, headers=self._headers, timeout_s=self._timeout_s, limit=JSON_LIMIT, **content)

    def _exchange(self, method: str, url: str, **content: Any) -> Reply:
        return exchange(
            self._session, method, url, headers=self._headers, timeout_s=self._timeout_s, limit=JSON_LIMIT, **content
        )


def check_route(*urls: str) -> None:
    """Check the proxies for `urls` and the certificates in the environment, before anything is paid for.

    Raises SettingsError, which names the variable but not its value: a proxy's URL may contain a password.
    """
    if not is_direct():
        from retake.vendors.route import check_proxies

        check_proxies(*urls)
    named = next(filter(None, map(os.environ.get, TRUST_VARIABLES)), None)
    unreadable = named is not None and not os.access(named, os.R_OK)
    if unreadable or any(url.lower().startswith("https:") for url in urls):
        from retake.vendors.certificates import trusted

        trusted()


TRUST_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""The variables that name trusted certificates; the first one that is set counts. Those of requests, then OpenSSL's."""


def is_direct() -> bool:
    """Return whether there is certainly no proxy. Systems other than Linux have proxy settings besides the
    environment."""
    names = (name.lower() for name, value in os.environ.items() if value)
    return sys.platform == "linux" and not any(it.endswith("_proxy") and it != "no_proxy" for it in names)


def key_for_header(vendor: str, key_name: str, key: str) -> str:
    """Return `key` if an HTTP header can hold it. Raises SettingsError, which does not show the key.

    Without this check, requests would quote the key in its own error, and httpx would raise UnicodeEncodeError.
    """
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise SettingsError(f"{key_name}: the key for {vendor} has characters that no key has")
    return key


def bare(url: str) -> str:
    """Return `url` without user, query and fragment, for messages."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
    except ValueError:
        return "an invalid URL"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class IntoFile(NamedTuple):
    """The target of a successful body that is too large for memory. Other answers are read into memory."""

    file: BinaryIO
    limit: int  # bytes


def exchange(
    session: "requests.Session | None",
    method: str,
    url: str,
    *,
    timeout_s: float,
    limit: int | IntoFile,
    headers: Mapping[str, str] | None = None,
    **content: Any,
) -> Reply:
    """Send one request and return the whole answer: at most `limit` bytes, in at most `timeout_s` seconds.

    The body of a 200 goes into the file if `limit` is an `IntoFile`; the Reply then has only its beginning. `content`
    is what requests calls `json`, `params`, `data` or `files`. A caller's `session` brings its own adapters, whose
    connections are left alone when time is up. Raises NoReply, SettingsError (bad certificates).
    """
    from retake.vendors.route import send

    return send(session, method, url, timeout_s=timeout_s, limit=limit, headers=headers, **content)


def in_time(url: str, timeout_s: float, work: "Callable[[Cutter], Reply]", *, may_be_sent: bool = False) -> Reply:
    """Run `work` `within` the time and return its result. Raises NoReply when time is up.

    With `may_be_sent` it cannot be known whether anything was sent.
    """
    try:
        return within(timeout_s, work)
    except NotBegun as error:
        raise NoReply(Code.UNAVAILABLE, f"nothing was sent: {error}", sent=False) from None
    except Overdue as overdue:
        sent = overdue.sent or may_be_sent
        late = "no answer" if sent else f"no connection to {bare(url)}"
        raise NoReply(Code.TIMEOUT, f"{late} within {timeout_s:g} s", sent=sent) from None


def logged(request: SentRequest, send: Callable[[], Reply]) -> Reply:
    """Send the request, and log it in diagnostic mode."""
    if not diagnosing():
        return send()
    from retake.vendors.diagnosis import diagnosed

    return diagnosed(request, send)


def reply_of(response: OpenAnswer, limit: int | IntoFile) -> Reply:
    try:
        if not isinstance(limit, IntoFile):
            body = read_body(response, limit)
        elif response.status_code == 200:
            body = _saved(body_pieces(response, limit.limit), limit)
        else:
            body = read_body(response, min(limit.limit, JSON_LIMIT))
        return Reply(response.status_code, response.headers, body)
    except NoReply as trouble:
        trouble.head = Reply(response.status_code, response.headers, b"")
        raise


def invalid_url(url: str) -> NoReply:
    return NoReply(Code.CONFIGURATION, f"{bare(url)!r} is not a valid URL, or the proxy is not", sent=False)


# --- the body of an answer ------------------------------------------------------------------------------------------


def read_body(response: OpenAnswer, limit: int) -> bytes:
    """Return the whole body, as yielded by `body_pieces`."""
    # Not b"".join, which would copy: BytesIO hands over its buffer.
    whole = BytesIO()
    for piece in body_pieces(response, limit):
        whole.write(piece)
    return whole.getvalue()


def body_pieces(response: OpenAnswer, limit: int) -> Iterator[bytes]:
    """Yield the body, decompressed, at most `limit` bytes in all.

    No compression is requested, but some servers use it anyway: gzip and deflate are supported. Raises NoReply for a
    body of more than `limit` bytes (before reading it, if its Content-Length says so) and for any other encoding;
    urllib3 raises for a body shorter than its Content-Length.
    """
    length = response.headers.get("Content-Length", "")
    if length.isascii() and length.isdigit() and _exceeds(length, limit):
        raise _too_large(limit)
    yield from unpacked(_chunks(response, limit), response.headers.get("Content-Encoding", ""), limit)


def unpacked(chunks: Iterable[bytes], encoding: str, limit: int) -> Iterator[bytes]:
    """Yield `chunks` decoded from their `encoding`, at most `limit` bytes in all. Raises NoReply as `body_pieces`
    does."""
    encoding = encoding.strip().lower()
    if encoding not in ("", "identity", *_COMPRESSED):
        raise _unusable("it has an encoding that was not requested")
    left = limit
    for piece in _decompressed(chunks, _COMPRESSED[encoding]) if encoding in _COMPRESSED else chunks:
        left -= len(piece)
        if left < 0:
            raise _too_large(limit)
        yield piece


def _exceeds(digits: str, limit: int) -> bool:
    digits = digits.lstrip("0")
    return len(digits) > 20 or int(digits or "0") > limit


def _chunks(response: OpenAnswer, limit: int) -> Iterator[bytes]:
    """Yield the bytes on the wire, at most `limit`. `read1` (urllib3 2) returns what has arrived."""
    left = limit
    while chunk := response.raw.read1(_CHUNK, decode_content=False):
        left -= len(chunk)
        if left < 0:
            raise _too_large(limit)
        yield chunk


def _decompressed(chunks: Iterable[bytes], wbits: int) -> Iterator[bytes]:
    """Yield `chunks` decompressed, a bounded piece at a time.

    A gzip body may have several members (RFC 1952, section 2.2). Padding after the last one is ignored.
    """
    machine, more = zlib.decompressobj(wbits), wbits == _GZIP
    try:
        for rest in _slices(chunks):
            while rest:
                if machine.eof:
                    more = more and rest[0] == _GZIP_START
                    if not more:
                        break
                    machine = zlib.decompressobj(wbits)
                yield machine.decompress(rest, _CHUNK)
                rest = machine.unused_data if machine.eof else machine.unconsumed_tail
        yield machine.flush()  # the rest of a match that did not fit into the last piece, at most 258 bytes
    except zlib.error:
        raise _unusable("it cannot be decompressed") from None
    if not machine.eof:
        raise _unusable("it cannot be decompressed to its end")


def _slices(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield `chunks` in small slices: what follows a member is copied, and members may have 20 bytes each."""
    for chunk in chunks:
        for start in range(0, len(chunk), _SLICE):
            yield chunk[start : start + _SLICE]


def _saved(pieces: Iterable[bytes], into: IntoFile) -> bytes:
    """Write `pieces` to the file and return their beginning. Raises NoReply if they cannot be written."""
    beginning = b""
    for piece in pieces:
        beginning += piece[: BEGINNING - len(beginning)]
        try:
            into.file.write(piece)
        except OSError as error:
            what = f"no room for it in the temporary folder ({error.strerror}): make some, or set TMPDIR to another"
            raise NoReply(Code.MEDIA, what, sent=True) from None
    return beginning


def _too_large(limit: int) -> NoReply:
    return NoReply(Code.BAD_ANSWER, f"the answer is larger than {limit:,} bytes", sent=True)


def _unusable(why: str) -> NoReply:
    return NoReply(Code.BAD_ANSWER, f"the answer is unusable: {why}", sent=True)


# --- a connection that can be cut -----------------------------------------------------------------------------------


class Overdue(Exception):
    """A call did not end in time and was cut off. `sent` says whether the server may have received the request."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__("the call did not end in time")
        self.sent = sent


class NotBegun(Overdue):
    """A call could not start, because this machine cannot start another thread."""

    def __init__(self) -> None:
        super().__init__(sent=False)

    def __str__(self) -> str:
        return "this machine starts no more threads (ulimit -u, or memory)"


class Cutter:
    """Cuts the connection of one call, from any thread. Nothing can be sent on it afterwards."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_cut = False
        self._is_open = False
        self._sockets: list[socket.socket] = []

    @property
    def is_open(self) -> bool:
        """Whether the connection was established, including TLS and a proxy's tunnel: a request may have been sent."""
        return self._is_open

    def watch(self, connection: socket.socket) -> None:
        """Register `connection`, so that `cut` shuts it down. After `cut`, close it and raise TimeoutError."""
        with self._lock:
            if self._is_cut:
                connection.close()
            self._check()
            # Duplicate the descriptor: wrapping a socket for TLS detaches the socket object.
            self._sockets.append(socket.socket(fileno=os.dup(connection.fileno())))

    def opened(self) -> None:
        """Note that the connection is established and the request follows. Raises TimeoutError after `cut`."""
        with self._lock:
            self._check()
            self._is_open = True

    def cut(self) -> None:
        """Shut down the connection, or keep it from being established."""
        with self._lock:
            self._is_cut = True
            for connection in self._sockets:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the duplicated descriptors."""
        with self._lock:
            self._is_cut = True
            for connection in self._sockets:
                connection.close()
            self._sockets.clear()

    def _check(self) -> None:
        if self._is_cut:
            raise TimeoutError("the call is over")


def within(timeout_s: float, work: Callable[[Cutter], T]) -> T:
    """Run `work` in its own thread and return its result, or raise what it raises.

    After `timeout_s` seconds its connection is cut and Overdue is raised, even if `work` hangs in something that cannot
    be cut (a DNS server that does not answer): that thread is left behind, unable to send anything. An exception in the
    waiting thread, such as KeyboardInterrupt, cuts the connection too. Raises NotBegun if no thread can be started.
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
            # The answer may have arrived at this very moment, and one to a paid call must not be lost.
            value, error = outcome.get_nowait()
    except Empty:
        raise Overdue(sent=cutter.is_open) from None
    except RuntimeError:
        raise NotBegun from None
    finally:
        cutter.cut()
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # without an error there is a value
