"""Downloads from vendors' links: complete, limited in size and time, and verified to be media.

No key is sent, since a link may lead anywhere.
"""

import time
from collections.abc import Callable
from typing import BinaryIO
from urllib.parse import urljoin

from retake.errors import Code, LinkExpired, PollFailed
from retake.vendors.answers import NoReply, Reply, quote, retry_after_s
from retake.vendors.http import IntoFile, bare, check_route, exchange
from retake.vendors.route import ANYWHERE

MAX_BYTES = 512 * 2**20
MAX_REDIRECTS = 5

_PAGE_TYPES = ("text/html", "application/json", "application/xml", "text/xml", "application/xhtml+xml")
_PAGE_STARTS = (b"<!doctype", b"<html", b"<?xml", b"<error")


class HttpDownloader:
    """The `retake.vendors.Downloader` over HTTP.

    `timeout_s` limits the whole download including redirects, `max_bytes` the file unless a call has its own limit.
    Raises SettingsError for a proxy or certificates in the environment that cannot be used.
    """

    def __init__(
        self, timeout_s: float, max_bytes: int = MAX_BYTES, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeout_s, self._max_bytes, self._monotonic = timeout_s, max_bytes, monotonic
        check_route(*ANYWHERE)

    def download(self, url: str, max_bytes: int | None = None) -> bytes:
        """See `Downloader.download`."""
        return self._checked(url, self._max_bytes if max_bytes is None else max_bytes).body

    def save(self, url: str, file: BinaryIO, max_bytes: int | None = None) -> None:
        """See `SavingDownloader.save`."""
        self._checked(url, IntoFile(file, self._max_bytes if max_bytes is None else max_bytes))

    def _checked(self, url: str, limit: int | IntoFile) -> Reply:
        """Return the answer, verified to be media; with `IntoFile` only its beginning. Raises PollFailed."""
        reply = self._follow(url, limit)
        if reply.status != 200:
            code = _code(reply.status)
            answer = f"answered HTTP {reply.status}. {_ADVICE[code]}"
            kind = LinkExpired if reply.status in (403, 404, 410) else PollFailed
            raise kind(code, f"{bare(url)} {answer}", retry_after_s=retry_after_s(reply.headers))
        if not reply.body:
            raise _unusable(url, "is an empty file")
        if is_page(reply):
            raise _unusable(url, f"is a page or a document, not media{_said_type(reply)}")
        return reply

    def _follow(self, url: str, limit: int | IntoFile) -> Reply:
        """Return the answer at the end of the redirects."""
        deadline = self._monotonic() + self._timeout_s
        place = url
        for _ in range(MAX_REDIRECTS + 1):
            reply = self._get(place, deadline - self._monotonic(), limit)
            location = reply.headers.get("Location")
            if reply.status not in (301, 302, 303, 307, 308) or not location:
                return reply
            place = _next(place, location)
        raise _unusable(url, f"leads through more than {MAX_REDIRECTS} redirects")

    def _get(self, url: str, left_s: float, limit: int | IntoFile) -> Reply:
        if left_s <= 0:
            raise PollFailed(Code.TIMEOUT, f"{bare(url)} was not downloaded within {self._timeout_s:g} s.")
        if not url.lower().startswith(("http://", "https://")):
            raise _unusable(url, "is not an http(s) link")
        try:
            return exchange(None, "GET", url, timeout_s=left_s, limit=limit)
        except NoReply as trouble:
            # The link comes from the vendor, so a bad one is a bad answer, not a bad setting.
            code = Code.BAD_ANSWER if trouble.code is Code.CONFIGURATION else trouble.code
            raise PollFailed(code, f"{bare(url)} was not downloaded: {trouble}.") from None


_ADVICE = {
    Code.RATE_LIMIT: "Ask less often.",
    Code.UNAVAILABLE: "Look at the vendor's status page if this persists.",
    Code.BAD_ANSWER: "The link has expired: poll the task for a new one.",
}


def _code(status: int) -> Code:
    """Return the code for a status. Always class A: no key is involved, and an expired link can be renewed."""
    if status == 429:
        return Code.RATE_LIMIT
    return Code.UNAVAILABLE if status >= 500 else Code.BAD_ANSWER


def _next(place: str, location: str) -> str:
    try:
        return urljoin(place, location)
    except ValueError:
        raise _unusable(place, "redirects to something that is not a link") from None


def is_page(reply: Reply) -> bool:
    """Return whether a successful answer is really an error page or document."""
    kind = reply.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return kind in _PAGE_TYPES or reply.body[:256].lstrip().lower().startswith(_PAGE_STARTS)


def _said_type(reply: Reply) -> str:
    said = quote(reply.headers.get("Content-Type", ""), limit=100)
    return f' (its Content-Type: "{said}")' if said else ""


def _unusable(url: str, why: str) -> PollFailed:
    return PollFailed(Code.BAD_ANSWER, f"{bare(url)} {why}. Look at the task at the vendor's.")
