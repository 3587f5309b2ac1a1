"""Videos on YouTube: resumable uploads that never make a second video, thumbnails, and searches for existing videos.

YouTube accepts an upload in two steps. A session is started, which makes no video; then chunks are sent to the
session's URI, and the last one makes the video. The URI can be queried at any time for what has arrived, and returns
the video's id when it is complete. So a caller that saves the URI before the first byte can always find out the outcome
of an upload.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

from retake.errors import Code, PollFailed, SettingsError
from retake.extras import require
from retake.vendors import NO_TASK, Health, UploadHooks, UploadSource, VideoDetails
from retake.vendors.answers import as_dict
from retake.vendors.http import check_route, key_for_header
from retake.vendors.youtube_account import KEY_NAMES, NAME, TOKEN_ENDPOINT, YouTubeAccount, YouTubeKeys, hide_session

CHUNK_UNIT = 256 * 2**10  # bytes; the size of a chunk must be a multiple of it
LOOK_PAGES = 4  # maximum number of pages of 50 videos that are searched, newest first

_OWN_ENDPOINT = "https://youtube.googleapis.com"
_WAITS_S = (0.0, 0.5, 1.0, 2.0, 4.0)  # before a session is queried, by the number of failures in a row


class YouTube:
    """The `retake.vendors.VideoPlatform` for YouTube's Data API. Thread-safe.

    endpoint        base URL of the API, without /youtube/v3; None is YouTube's own
    token_endpoint  URL for access tokens; None is Google's own
    timeout_s       of each request; a chunk has more, depending on its size
    chunk_bytes     a multiple of CHUNK_UNIT
    resumes         how many times in a row an upload is resumed without any progress
    pause           waits for a number of seconds

    Raises SettingsError for keys that cannot be sent, a proxy or certificates in the environment that cannot be used,
    and if google-api-python-client is not installed.
    """

    def __init__(
        self,
        keys: YouTubeKeys,
        *,
        timeout_s: float,
        endpoint: str | None = None,
        token_endpoint: str | None = None,
        chunk_bytes: int = 32 * CHUNK_UNIT,
        resumes: int = 5,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        require("music", "Publishing on YouTube")
        if chunk_bytes < CHUNK_UNIT or chunk_bytes % CHUNK_UNIT:
            raise SettingsError(f"the chunks of an upload must be a multiple of {CHUNK_UNIT} bytes, not {chunk_bytes}")
        for name, key in zip(KEY_NAMES, (keys.client_id, keys.client_secret, keys.refresh_token), strict=True):
            key_for_header(NAME, name, key)
        check_route(endpoint or _OWN_ENDPOINT, token_endpoint or TOKEN_ENDPOINT)
        from retake.vendors import youtube_upload

        self._library = youtube_upload
        self._account = YouTubeAccount(keys, token_endpoint, timeout_s)
        self._service = youtube_upload.service(endpoint, self._call("answer"))
        self._chunk_bytes, self._resumes, self._pause = chunk_bytes, resumes, pause

    def upload(
        self, details: VideoDetails, source: UploadSource, hooks: UploadHooks, *, session: str | None = None
    ) -> str:
        """See `VideoPlatform.upload`.

        After a broken chunk (no answer, 408, 5xx) the session is queried, and the upload continues from there. Raises
        PollFailed when that has failed `resumes` times in a row without any progress.
        """
        if source.size < 1:
            raise PollFailed(Code.INVALID_INPUT, "The video to upload is empty. Make it again.")
        wire = self._library.UploadCall(self._account, source.size, hooks)
        request = self._service.videos().insert(
            part="snippet,status", body=_resource(details), media_body=self._library.Chunks(source, self._chunk_bytes)
        )
        if session is not None:
            hide_session(session)
            request.resumable_uri, request._in_error_state = session, True
        failures, confirmed = 0, 0
        while not wire.video_id:
            try:
                request.next_chunk(http=wire, num_retries=0)
            except self._library.BrokenChunk as broken:
                failures = failures + 1 if wire.confirmed <= confirmed else 1
                confirmed = max(confirmed, wire.confirmed)
                if failures > self._resumes:
                    raise broken.error from None
                self._pause(_WAITS_S[min(failures, len(_WAITS_S)) - 1])
                request._in_error_state = True
        return str(wire.video_id)

    def find(self, nonce: str) -> str | None:
        """See `VideoPlatform.find`. Searches the newest LOOK_PAGES pages of the channel's uploads."""
        for item in self._uploads():
            snippet = as_dict(item.get("snippet"))
            description = snippet.get("description")
            video_id = as_dict(snippet.get("resourceId")).get("videoId")
            if isinstance(description, str) and isinstance(video_id, str) and _last_line(description) == nonce:
                return video_id
        return None

    def set_thumbnail(self, video_id: str, jpeg: bytes) -> None:
        """See `VideoPlatform.set_thumbnail`."""
        request = self._service.thumbnails().set(videoId=video_id, media_body=self._library.Picture(jpeg))
        self._answer("set a thumbnail", request)

    def health(self) -> Health:
        """See `Healthy.health`."""
        channel = self._channel()
        title = as_dict(channel.get("snippet")).get("title")
        return Health(f"it accepts the keys of the channel {title!r:.60}" if title else "it accepts the keys")

    def test_request(self) -> str:
        """See `Healthy.test_request`."""
        found = self.find(NO_TASK)
        return "it lists the channel's uploads" if found is None else f"it has a video of that name: {found}"

    def _channel(self) -> dict[str, Any]:
        what = "show the channel"
        page = self._answer(what, self._service.channels().list(part="snippet,contentDetails", mine=True))
        items = page.get("items", [] if "pageInfo" in page else None)  # YouTube omits an empty list
        if not isinstance(items, list):
            raise self._account.unusable(what, "it has no list of channels")
        if not items:
            message = (
                f"{NAME} was asked to {what}: the account has none. Create one on YouTube, or use another account."
            )
            raise PollFailed(Code.CONFIGURATION, message)
        return as_dict(items[0])

    def _uploads(self) -> Iterator[dict[str, Any]]:
        """Yield the channel's newest videos, as items of a playlist."""
        what, token = "list the channel's videos", None
        lists = as_dict(as_dict(self._channel().get("contentDetails")).get("relatedPlaylists"))
        if not isinstance(lists.get("uploads"), str):
            raise self._account.unusable(what, "the channel has no list of uploads")
        for _ in range(LOOK_PAGES):
            request = self._service.playlistItems().list(
                part="snippet", playlistId=lists["uploads"], maxResults=50, pageToken=token
            )
            page = self._answer(what, request, harmless="playlistNotFound")  # a channel without any video
            items = page.get("items")
            yield from map(as_dict, items if isinstance(items, list) else [])
            token = page.get("nextPageToken")
            if not isinstance(token, str) or not token:
                return

    def _answer(self, what: str, request: Any, harmless: str = "") -> dict[str, Any]:
        return as_dict(request.execute(http=self._call(what, harmless), num_retries=0))

    def _call(self, what: str, harmless: str = "") -> Any:
        return self._library.PlainCall(self._account, what, harmless)


def _resource(details: VideoDetails) -> dict[str, Any]:
    """Return the video in the format of YouTube's API."""
    return {
        "snippet": {
            "title": details.title,
            "description": details.description,
            "tags": list(details.tags),
            "categoryId": details.category_id,
        },
        "status": {"privacyStatus": details.privacy, "selfDeclaredMadeForKids": details.made_for_kids},
    }


def _last_line(description: str) -> str:
    return description.rstrip().rpartition("\n")[2].strip()
