"""The one place that sends a call, and the JSON door to a vendor that is built on it.

Rules that hold for every call: nothing is retried, no redirect is followed (a POST that is repeated elsewhere may be
paid for twice, a key must not travel), ten seconds to connect, an end to the time and size of the whole, and no
exception of requests or urllib3 gets out: their texts hold whole URLs, signatures included.
"""

from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
import urllib3

from retake.errors import Code, SettingsError
from retake.vendors.answers import NoReply, Reply, Vendor, answered, says_missing, submitted, unanswered
from retake.vendors.body import read_body
from retake.vendors.connection import Line, LineAdapter, Overdue, within
from retake.vendors.route import trusted

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0
_BEHIND_S = 5.0
JSON_LIMIT = 16 * 2**20  # bytes; a longer answer is none that a JSON API gives
_NOT_A_URL = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,  # a SOCKS proxy without PySocks
    urllib3.exceptions.LocationValueError,
    UnicodeError,
)


class JsonApi:
    """A vendor's JSON API, with its key in `headers`. Answers are read by the caller's `pick` functions."""

    def __init__(
        self, vendor: Vendor, headers: Mapping[str, str], *, timeout_s: float, session: requests.Session | None = None
    ) -> None:
        self._vendor = vendor
        self._headers = dict(headers)
        self._timeout_s = timeout_s
        self._session = session

    def submit(self, what: str, url: str, body: Mapping[str, Any], pick: Callable[[object], T | None]) -> T:
        """POST a paid call; what `pick` finds in the answer. Raises Refused, OutcomeUnknown."""
        try:
            reply = self._exchange("POST", url, json=body)
        except NoReply as trouble:
            raise unanswered(self._vendor, what, trouble, paid=True) from None
        return submitted(self._vendor, what, reply, pick)

    def ask(self, what: str, url: str, body: Mapping[str, Any], pick: Callable[[object], T | None]) -> T:
        """POST a free question; what `pick` finds in the answer. Raises PollFailed."""
        return self._question(what, "POST", url, pick, json=body)

    def look(self, what: str, url: str, query: Mapping[str, Any], pick: Callable[[object], T | None]) -> T:
        """GET a free answer; what `pick` finds in it. Raises PollFailed."""
        return self._question(what, "GET", url, pick, params=query)

    def look_for(self, what: str, url: str, query: Mapping[str, Any], pick: Callable[[object], T | None]) -> T | None:
        """`look`; None where the vendor says itself that there is no such thing."""
        return self._search(what, "GET", url, pick, params=query)

    def ask_for(self, what: str, url: str, body: Mapping[str, Any], pick: Callable[[object], T | None]) -> T | None:
        """`ask`; None where the vendor says itself that there is no such thing."""
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
    """`key`, if it can stand in an HTTP header. Raises SettingsError, which does not show it.

    Without this look, requests would name the key in its own error, and httpx would fail with a UnicodeEncodeError.
    """
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise SettingsError(f"{key_name}: the key for {vendor} has spaces, line ends or other signs that no key has")
    return key


def bare(url: str) -> str:
    """`url` without user, query and fragment: what may stand in a message."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that cannot be read"
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
    """Send one request and read the whole answer: at most `limit` bytes, also when they are compressed, in at most
    `timeout_s` seconds from beginning to end, whatever the other side does.

    `content` is what requests calls `json`, `params` or `data`. A `session` of the caller's brings its own adapters,
    whose connections are left, not cut, when the time is over. Raises NoReply, and SettingsError for certificates that
    cannot be read.
    """
    # What comes over the wire is what is counted and checked: no compression. No connection is kept: it may be cut at
    # the moment of its next use, and the outcome of a paid call would be unknown.
    every = {**(headers or {}), "Accept-Encoding": "identity", "Connection": "close"}
    settings = requests.Session() if session is None else session
    try:
        request = settings.prepare_request(requests.Request(method, url, headers=every, auth=_as_it_is, **content))
        given = settings.get_adapter(request.url or "")
        send: Any = settings.merge_environment_settings(request.url, {}, True, None, None)
    except (requests.RequestException, ValueError):
        raise _no_address(url) from None
    # The total is what ends a call; each read's own timeout ends a thread that was left behind, and a caller's session.
    send["timeout"] = (min(CONNECT_TIMEOUT_S, timeout_s), timeout_s + (_BEHIND_S if session is None else 0))
    tls = trusted()

    def work(line: Line) -> Reply:
        # Not session.send: even when it does not follow a redirect, it looks into it, reads all of its body on the way,
        # and fails on a bad one as if nothing had been sent.
        adapter = LineAdapter(line, tls) if session is None else given
        try:
            with adapter.send(request, **send) as response:
                return Reply(response.status_code, response.headers, read_body(response, limit))
        except (requests.RequestException, urllib3.exceptions.HTTPError, HTTPException, OSError, ValueError) as error:
            raise _no_reply(error, url, timeout_s, maybe_sent=line.is_open or session is not None) from None
        finally:
            if session is None:
                adapter.close()

    try:
        return within(timeout_s, work)
    except Overdue as overdue:
        sent = overdue.sent or session is not None
        late = "no answer" if sent else f"no connection to {bare(url)}"
        raise NoReply(Code.TIMEOUT, f"{late} within {timeout_s:g} s", sent=sent) from None


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Authentication by nothing but our own headers: without one, requests takes a password from ~/.netrc instead."""
    return request


def _no_reply(error: Exception, url: str, timeout_s: float, *, maybe_sent: bool) -> NoReply:
    """What `error` says about the request. Only where no connection was made is it certain that nothing was sent."""
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
    return NoReply(
        Code.CONFIGURATION, f"{bare(url)!r} is no address that can be asked, or the proxy is none", sent=False
    )


def _new_connection_error(error: Exception) -> urllib3.exceptions.NewConnectionError | None:
    """The failed attempt to connect (to the vendor, or to the proxy before it) that `error` wraps, if it is one."""
    reason = getattr(error.args[0], "reason", None) if error.args else None
    if isinstance(reason, urllib3.exceptions.ProxyError):
        reason = reason.original_error
    return reason if isinstance(reason, urllib3.exceptions.NewConnectionError) else None
