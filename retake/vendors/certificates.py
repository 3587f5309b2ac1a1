"""Trusted certificates, as set in the environment.

They are checked when a client is created, before anything is paid for and without network access: a mistake here is a
setting to fix, not a call of unknown outcome.
"""

import errno
import os
import re
import ssl
from functools import cache
from typing import Any

from retake.errors import SettingsError
from retake.vendors.http import TRUST_VARIABLES

_HASHED = re.compile(r"[0-9a-f]{8}\.\d+")  # the file names in a folder of certificates (openssl rehash)


def trusted() -> ssl.SSLContext:
    """Return a TLS context with the certificates that the environment trusts. Raises SettingsError."""
    for variable in TRUST_VARIABLES:
        path = os.environ.get(variable)
        if path:
            return _context(variable, path)
    from certifi import where

    return _context("", where())


class ClosingSocket(ssl.SSLSocket):
    """Closes itself if its peer is gone before the handshake: CPython (`SSLSocket._create`) raises and leaves it
    open."""

    def getpeername(self) -> Any:
        """Return the peer's address. Raises ConnectionResetError if the peer is gone."""
        try:
            return super().getpeername()
        except OSError as error:
            self.close()
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from error


@cache  # creating one takes some 20 ms, and each channel has several clients
def _context(variable: str, path: str) -> ssl.SSLContext:
    """Return the context for `path`; `variable` is the one that names it, "" for the certificates that come with
    requests."""
    read = _of_folder if variable == "SSL_CERT_DIR" or os.path.isdir(path) else _of_file
    try:
        context = read(path)
    except ssl.SSLError:
        why = "holds no certificates in PEM"
    except OSError as error:
        why = f"cannot be read: {error.strerror or 'it holds no certificates'}"
    else:
        context.sslsocket_class = ClosingSocket
        return context
    named = variable or "the certificates that come with requests"
    raise SettingsError(f"{named}: the file or folder {why}; correct it, or unset it")


def _of_file(path: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=path)
    if not context.cert_store_stats()["x509"]:
        raise ssl.SSLError
    return context


def _of_folder(path: str) -> ssl.SSLContext:
    """Return the context for folders. Raises OSError if none has a certificate: OpenSSL reads them only at the
    handshake."""
    folders = path.split(os.pathsep)
    for folder in folders:
        if os.path.isdir(folder) and any(map(_HASHED.fullmatch, os.listdir(folder))):
            return ssl.create_default_context(capath=path)
    if any(map(os.path.isdir, folders)):
        raise OSError
    raise FileNotFoundError(2, os.strerror(2))
