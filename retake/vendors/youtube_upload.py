"""The parts of google-api-python-client that uploads use: YouTube's static discovery document, and resumable uploads
over our own requests.

The library builds the requests and keeps count of the bytes. It starts a session and sends the first chunk in one call
(`next_chunk`); the classes here, which stand in for its HTTP client, intercept both requests.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import httplib2
from googleapiclient.discovery import build_from_document
from googleapiclient.discovery_cache import get_static_doc
from googleapiclient.http import MediaUpload

from retake.errors import Code, PollFailed, SessionGone
from retake.vendors import UploadHooks, UploadSource
from retake.vendors.answers import Reply, as_dict, parse
from retake.vendors.youtube_account import NAME, YouTubeAccount, hide_session, reason_of

_RANGE = re.compile(r"bytes=0-(\d{1,18})", re.ASCII)


class BrokenChunk(Exception):
    """A request to a session failed in a way that querying the session may fix. `error` says how."""

    def __init__(self, error: PollFailed) -> None:
        super().__init__(str(error))
        self.error = error


class Chunks(MediaUpload):  # type: ignore[misc]  # the library has no types
    """The video, read one chunk at a time, as bytes: a chunk that is a stream cannot be sent a second time."""

    def __init__(self, source: UploadSource, chunk_bytes: int) -> None:
        self._source, self._chunk_bytes = source, chunk_bytes

    def chunksize(self) -> int:
        return self._chunk_bytes

    def mimetype(self) -> str:
        return "video/mp4"

    def size(self) -> int:
        return self._source.size

    def resumable(self) -> bool:
        return True

    def has_stream(self) -> bool:
        return False

    def getbytes(self, begin: int, length: int) -> bytes:
        """Return the chunk at `begin`. Raises PollFailed if it is too short: the library would end the video there."""
        wanted = min(length, self._source.size - begin)
        chunk = self._source.read(begin, wanted)
        if len(chunk) != wanted:
            found = f"{len(chunk)} bytes at {begin}, not {wanted}"
            raise PollFailed(Code.MEDIA, f"The video to upload has {found}: it has changed. Make it again.")
        return chunk


class Picture(MediaUpload):  # type: ignore[misc]
    """A JPEG in memory, sent in one request."""

    def __init__(self, jpeg: bytes) -> None:
        self._jpeg = jpeg

    def chunksize(self) -> int:
        return len(self._jpeg)

    def mimetype(self) -> str:
        return "image/jpeg"

    def size(self) -> int:
        return len(self._jpeg)

    def resumable(self) -> bool:
        return False

    def getbytes(self, begin: int, length: int) -> bytes:
        return self._jpeg[begin : begin + length]


class PlainCall:
    """The library's HTTP client for one call; `what` completes the sentence "YouTube was asked to …".

    An error that YouTube calls `harmless` counts as an empty answer.
    """

    def __init__(self, account: YouTubeAccount, what: str, harmless: str = "") -> None:
        self._account, self._what, self._harmless = account, what, harmless

    def request(
        self, uri: str, method: str = "GET", body: Any = None, headers: Mapping[str, str] | None = None, **_: Any
    ) -> tuple[httplib2.Response, bytes]:
        """Send one request. Raises PollFailed unless the answer is a JSON object or empty."""
        reply = self._account.send(self._what, method, uri, body, headers or {})
        if self._harmless and reason_of(reply) == self._harmless:
            return _as_httplib2(reply, b"{}", status=200)
        if not reply.ok:
            raise self._account.failure(self._what, reply)
        found = parse(reply.body or b"{}")
        if not isinstance(found, dict):
            raise self._account.unusable(self._what, "it is not a JSON object")
        return _as_httplib2(reply, json.dumps(found).encode())  # the library reads only UTF-8


class UploadCall:
    """The library's HTTP client for one upload.

    `confirmed` is the number of bytes that the session has confirmed; `video_id` is set when the video is complete.
    """

    def __init__(self, account: YouTubeAccount, total: int, hooks: UploadHooks) -> None:
        self._account, self._total, self._hooks = account, total, hooks
        self.confirmed = 0
        self.video_id = ""

    def request(
        self, uri: str, method: str = "GET", body: Any = None, headers: Mapping[str, str] | None = None, **_: Any
    ) -> tuple[httplib2.Response, bytes]:
        """Send one request of the upload. An exception of a hook ends the upload.

        Raises BrokenChunk, SessionGone, PollFailed.
        """
        self._hooks.check()
        if method == "POST":
            return self._start(uri, body, headers or {})
        return self._put(uri, body, headers or {})

    def _start(self, uri: str, body: Any, headers: Mapping[str, str]) -> tuple[httplib2.Response, bytes]:
        what = "start an upload"
        reply = self._account.send(what, "POST", uri, body, headers)
        if not reply.ok:
            raise self._account.failure(what, reply)
        session = reply.headers.get("Location", "")
        if not session.lower().startswith(("http://", "https://")):
            raise self._account.unusable(what, "it names no session")
        hide_session(session)
        self._hooks.started(session)
        return _as_httplib2(reply, b"", status=200)

    def _put(self, session: str, body: Any, headers: Mapping[str, str]) -> tuple[httplib2.Response, bytes]:
        # An empty body queries what has arrived. The library computes Content-Range from the bytes it was given.
        what = f"take {len(body):,} bytes of a video" if body else "say how much of a video it has"
        if body and self._is_last(headers):
            self._hooks.before_last_chunk()
        try:
            reply = self._account.send(what, "PUT", session, body, headers)
        except PollFailed as unanswered:
            if unanswered.code not in _RESUMABLE:
                raise
            raise BrokenChunk(unanswered) from None
        if reply.status in (200, 201):
            return self._finished(what, reply)
        if reply.status == 308:
            return self._unfinished(what, reply)
        error = self._account.failure(what, reply, session)
        if reply.status in (404, 410):
            raise SessionGone(Code.BAD_ANSWER, str(error))
        raise BrokenChunk(error) if error.code in _RESUMABLE else error

    def _is_last(self, headers: Mapping[str, str]) -> bool:
        content_range = {name.lower(): value for name, value in headers.items()}.get("content-range", "")
        return content_range.partition("/")[0].endswith(f"-{self._total - 1}")

    def _finished(self, what: str, reply: Reply) -> tuple[httplib2.Response, bytes]:
        video_id = as_dict(parse(reply.body)).get("id")
        if not isinstance(video_id, str) or not video_id:
            raise BrokenChunk(self._account.unusable(what, "it names no video"))
        self.video_id = video_id
        return _as_httplib2(reply, json.dumps({"id": video_id}).encode())

    def _unfinished(self, what: str, reply: Reply) -> tuple[httplib2.Response, bytes]:
        """Record what has arrived, which is nothing if the answer has no Range."""
        stated = reply.headers.get("Range")
        found = _RANGE.fullmatch(stated.strip()) if stated is not None else None
        arrived = int(found[1]) + 1 if found else 0
        if (stated is not None and not found) or arrived >= self._total:
            raise BrokenChunk(self._account.unusable(what, f"it is not finished, yet has the range {stated!r:.60}"))
        self.confirmed = arrived
        return _as_httplib2(reply, b"")


_RESUMABLE = (Code.NETWORK, Code.TIMEOUT, Code.UNAVAILABLE, Code.CONFLICT)
"""After an error with one of these codes, the session may be queried and continue."""


def service(endpoint: str | None, http: object) -> Any:
    """Return the library's object for YouTube's API at `endpoint` (None: YouTube's own), without any request.

    `http` is its HTTP client for calls that do not pass another.
    """
    # Not `client_options.api_endpoint`: uploads would still go to `rootUrl`.
    document = dict(_document())
    if endpoint is not None:
        document["rootUrl"] = endpoint.rstrip("/") + "/"
    return build_from_document(document, http=http)


@cache
def _document() -> dict[str, Any]:
    document = as_dict(parse(get_static_doc("youtube", "v3") or ""))
    assert document, f"google-api-python-client comes with the description of {NAME}'s API"
    return document


def _as_httplib2(reply: Reply, body: bytes, status: int | None = None) -> tuple[httplib2.Response, bytes]:
    names = ("location",) if status else ("range", "content-type")  # keeps the session URI that was saved
    headers = {name: reply.headers[name] for name in names if name in reply.headers}
    return httplib2.Response({**headers, "status": str(status or reply.status)}), body
