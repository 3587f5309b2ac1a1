"""Calls through requests: its adapter, the meaning of its errors, and the proxies in the environment."""

import http.client
import os
from collections.abc import Mapping
from importlib.util import find_spec
from ssl import SSLContext
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies, select_proxy
from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from retake.errors import Code, SettingsError
from retake.vendors.answers import NoReply, Reply
from retake.vendors.certificates import trusted
from retake.vendors.http import (
    CONNECT_TIMEOUT_S,
    Cutter,
    IntoFile,
    bare,
    in_time,
    invalid_url,
    is_direct,
    logged,
    reply_of,
)

ANYWHERE = ("http://files.example/", "https://files.example/")
"""URLs that stand for links to any host."""

_PROXY_SCHEMES = ("http", "https")
_SOCKS_SCHEMES = ("socks4", "socks4a", "socks5", "socks5h")
_BEHIND_S = 5.0
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


def send(
    session: requests.Session | None,
    method: str,
    url: str,
    *,
    timeout_s: float,
    limit: int | IntoFile,
    headers: Mapping[str, str] | None = None,
    **content: Any,
) -> Reply:
    """See `retake.vendors.http.exchange`."""
    # No compression, so that the bytes on the wire are the bytes counted. No keep-alive: a connection may be closed
    # just when it is reused, and the outcome of a paid call would be unknown.
    every = {**(headers or {}), "Accept-Encoding": "identity", "Connection": "close"}
    settings = requests.Session() if session is None else session
    try:
        request = requests.Request(method, url, headers=every, auth=_unauthenticated, **content)
        prepared = settings.prepare_request(request)
        given = settings.get_adapter(prepared.url or "")
        how: Any = settings.merge_environment_settings(prepared.url, {}, True, None, None)
    except (requests.RequestException, ValueError):
        raise invalid_url(url) from None
    # The total time ends a call; the timeout of each read ends an abandoned thread, and a call on a caller's session.
    how["timeout"] = (min(CONNECT_TIMEOUT_S, timeout_s), timeout_s + (_BEHIND_S if session is None else 0))
    tls = trusted() if (prepared.url or "").lower().startswith("https:") or not is_direct() else None

    def work(cutter: Cutter) -> Reply:
        # Not session.send, which reads the body of a redirect that it does not follow, and fails on a bad body as if
        # nothing had been sent.
        adapter = CuttableAdapter(cutter, tls) if session is None else given
        try:
            with adapter.send(prepared, **how) as response:
                return reply_of(response, limit)
        except _FAILURES as error:
            raise _no_reply(error, url, timeout_s, maybe_sent=cutter.is_open or session is not None) from None
        finally:
            if session is None:
                adapter.close()

    return logged(prepared, lambda: in_time(url, timeout_s, work, may_be_sent=session is not None))


def _unauthenticated(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Add no authentication to our own headers: without a handler, requests would use a password from ~/.netrc."""
    return request


def _no_reply(error: Exception, url: str, timeout_s: float, *, maybe_sent: bool) -> NoReply:
    """Return the meaning of `error`. Only without a connection is it certain that nothing was sent."""
    if isinstance(error, _NOT_A_URL):  # for example, a host name that cannot be looked up
        return invalid_url(url)
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


def _new_connection_error(error: Exception) -> urllib3.exceptions.NewConnectionError | None:
    """Return the failure to connect (to the vendor, or to the proxy) that `error` wraps, or None."""
    reason = getattr(error.args[0], "reason", None) if error.args else None
    if isinstance(reason, urllib3.exceptions.ProxyError):
        reason = reason.original_error
    return reason if isinstance(reason, urllib3.exceptions.NewConnectionError) else None


class CuttableAdapter(HTTPAdapter):
    """Sends one call on its own connection, which `cutter` can cut, trusting the certificates in `tls`, or without
    TLS."""

    def __init__(self, cutter: Cutter, tls: SSLContext | None) -> None:
        self._cutter = cutter
        self._tls = tls
        super().__init__(pool_connections=1, pool_maxsize=1)

    def build_connection_pool_key_attributes(
        self, request: requests.PreparedRequest, verify: Any, cert: Any = None
    ) -> tuple[Any, Any]:
        """Return the pool's settings, with our certificates instead of those of requests."""
        where, _ = super().build_connection_pool_key_attributes(request, True)
        if self._tls is None:
            return where, {}
        return where, {"ssl_context": self._tls, "cert_reqs": "CERT_REQUIRED"}

    def cert_verify(self, *_: Any, **__: Any) -> None:
        """Do nothing: `build_connection_pool_key_attributes` has set the trusted certificates."""

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
        response_class = FinalResponse

        def _new_conn(self) -> Any:
            connection = super()._new_conn()
            cutter.watch(connection)
            return connection

        def connect(self) -> None:
            super().connect()
            # urllib3 would apply the connect timeout to sending, too short for a picture on a slow network. The total
            # time limits it instead.
            self.sock.settimeout(None)
            cutter.opened()

    return CuttableConnection


class FinalResponse(http.client.HTTPResponse):
    """Skips every interim response (RFC 9110, 15.2), such as 103 Early Hints.

    http.client skips only 100, and would return any other as the response.
    """

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        return version, http.client.CONTINUE if 102 <= status < 200 else status, reason


# --- proxies ---------------------------------------------------------------------------------------------------------


def check_proxies(*urls: str) -> None:
    """Check the proxies for `urls`. Raises SettingsError, which does not show a proxy's URL: it may contain a
    password."""
    for url in urls:
        if proxy := _proxy_of(url):
            _check_proxy(_variable_of(url, proxy), proxy)


def has_proxy(url: str) -> bool:
    """Return whether the environment sets a proxy for `url`."""
    return bool(_proxy_of(url))


def _proxy_of(url: str) -> str | None:
    try:
        return select_proxy(url, get_environ_proxies(url))
    except ValueError:  # not a URL: the call will say so
        return None


def _check_proxy(variable: str, proxy: str) -> None:
    scheme, host = "", None
    try:
        parts = parse_url(proxy if "://" in proxy else f"http://{proxy}")
        scheme, host = (parts.scheme or "").lower(), parts.host
    except (LocationParseError, ValueError):
        pass
    if not host:
        raise SettingsError(f"{variable}: not the URL of a proxy; write it as http://HOST:PORT, or unset it")
    if scheme in _SOCKS_SCHEMES and find_spec("socks") is None:
        raise SettingsError(
            f"{variable}: a {scheme} proxy needs PySocks; install it (pip install pysocks), or name an http:// proxy"
        )
    if scheme not in (*_PROXY_SCHEMES, *_SOCKS_SCHEMES):
        raise SettingsError(f"{variable}: {scheme!r} is not a supported kind of proxy; write http://HOST:PORT")


def _variable_of(url: str, proxy: str) -> str:
    """Return the name of the variable that `proxy` came from."""
    scheme = url.partition(":")[0].lower()
    for wanted in (f"{scheme}_proxy", "all_proxy"):
        for name in (wanted, wanted.upper()):
            if os.environ.get(name) == proxy:
                return name
    return "the system's proxy settings"
