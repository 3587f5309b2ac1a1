"""Proxies and trusted certificates, as the environment sets them.

They are checked when a client is created, before anything is paid for and without the network: a mistake here is a
setting to fix, not a call of unknown outcome.
"""

import errno
import os
import re
import ssl
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

from requests.utils import DEFAULT_CA_BUNDLE_PATH, get_environ_proxies, select_proxy
from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from retake.errors import SettingsError

TRUST_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""The variables that name trusted certificates; the first one that is set counts. Those of requests, then OpenSSL's."""

ANYWHERE = ("http://files.example/", "https://files.example/")
"""URLs that stand for links to anywhere."""

_PROXY_SCHEMES = ("http", "https")
_SOCKS_SCHEMES = ("socks4", "socks4a", "socks5", "socks5h")
_HASHED = re.compile(r"[0-9a-f]{8}\.\d+")  # the file names in a folder of certificates (openssl rehash)


class _Trust(NamedTuple):
    """The path of trusted certificates, and the variable that names it; "" for those that come with requests."""

    variable: str
    path: str


def check_route(*urls: str) -> None:
    """Check the proxies for `urls` and the trusted certificates.

    Raises SettingsError, which names the variable but not its value: a proxy's URL may hold a password.
    """
    for url in urls:
        try:
            proxy = select_proxy(url, get_environ_proxies(url))
        except ValueError:  # not a URL: the call will say so
            continue
        if proxy:
            _check_proxy(_variable_of(url, proxy, os.environ), proxy)
    trusted()


def has_proxy(url: str) -> bool:
    """Return whether the environment sets a proxy for `url`."""
    try:
        return bool(select_proxy(url, get_environ_proxies(url)))
    except ValueError:  # not a URL
        return False


def trusted() -> ssl.SSLContext:
    """Return a TLS context with the certificates that the environment trusts. Raises SettingsError."""
    for variable in TRUST_VARIABLES:
        path = os.environ.get(variable)
        if path:
            return _context(_Trust(variable, path))
    return _context(_Trust("", DEFAULT_CA_BUNDLE_PATH))


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


def _variable_of(url: str, proxy: str, environ: Mapping[str, str]) -> str:
    """Return the name of the variable that `proxy` came from."""
    scheme = url.partition(":")[0].lower()
    for wanted in (f"{scheme}_proxy", "all_proxy"):
        for name in (wanted, wanted.upper()):
            if environ.get(name) == proxy:
                return name
    return "the system's proxy settings"


class ClosingSocket(ssl.SSLSocket):
    """Closes itself if its peer is gone before the handshake: CPython (`SSLSocket._create`) then raises and leaves the
    socket open."""

    def getpeername(self) -> Any:
        """Return the peer's address. Raises ConnectionResetError if the peer is gone."""
        try:
            return super().getpeername()
        except OSError as error:
            self.close()
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from error


@cache  # takes some 20 ms, for each client of each channel
def _context(trust: _Trust) -> ssl.SSLContext:
    kinds: dict[bool, Callable[[str], ssl.SSLContext]] = {True: _of_folder, False: _of_file}
    is_folder = trust.variable == "SSL_CERT_DIR" or os.path.isdir(trust.path)
    try:
        context = kinds[is_folder](trust.path)
    except ssl.SSLError:
        why = "holds no certificates in PEM"
    except OSError as error:
        why = f"cannot be read: {error.strerror or 'it holds no certificates'}"
    else:
        context.sslsocket_class = ClosingSocket
        return context
    named = trust.variable or "the certificates that come with requests"
    raise SettingsError(f"{named}: the file or folder {why}; correct it, or unset it")


def _of_file(path: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=path)
    if not context.cert_store_stats()["x509"]:
        raise ssl.SSLError
    return context


def _of_folder(path: str) -> ssl.SSLContext:
    """Raises OSError if none of the folders has a certificate; OpenSSL reads them only at the handshake."""
    folders = path.split(os.pathsep)
    for folder in folders:
        if os.path.isdir(folder) and any(map(_HASHED.fullmatch, os.listdir(folder))):
            return ssl.create_default_context(capath=path)
    if any(map(os.path.isdir, folders)):
        raise OSError
    raise FileNotFoundError(2, os.strerror(2))
