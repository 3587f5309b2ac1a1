"""Stand-in for YouTube's Data API, as google-api-python-client uses it: OAuth tokens, resumable uploads, thumbnails and
lists.

Formats and reasons are from developers.google.com/youtube/v3 and the guide to resumable uploads. A session makes one
video when its last byte arrives, and then answers every request with that video. Any key and token are valid.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from retake.sandbox.http_messages import Request, Response, error_response
from retake.sandbox.task_service import ApiCall, Control, TaskService

UNIT = 256 * 2**10  # bytes; the size of every chunk except the last is a multiple of it
PAGE_SIZE = 50
UPLOADS = "UUsandbox"  # the playlist of the channel's uploads
DESCRIPTION_LIMIT, TAGS_LIMIT, TITLE_LIMIT, THUMBNAIL_LIMIT = 5000, 500, 100, 2 * 2**20
_SESSIONS, _VIDEOS = "youtube.session", "youtube.video"
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)", re.ASCII)
_REASONS = {
    400: "badRequest",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    429: "rateLimitExceeded",
    500: "backendError",
}
_INVALID_GRANT = {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}


def error(status: int, reason: str = "", message: str = "") -> Response:
    reason = reason or _REASONS.get(status, "backendError" if status >= 500 else "badRequest")
    text = message or f"The request failed ({reason})."
    one = {"message": text, "domain": "youtube.video", "reason": reason}
    return error_response(status, {"error": {"code": status, "message": text, "errors": [one]}})


def quota() -> Response:
    return error(403, "quotaExceeded", "The request cannot be completed because you have exceeded your quota.")


def token_error(status: int) -> Response:
    body = _INVALID_GRANT if status == 400 else {"error": "invalid_client" if status == 401 else "internal_failure"}
    return error_response(status, body)


def token(call: ApiCall) -> Response:
    """POST to the token endpoint: exchange a refresh token for an access token."""
    form = call.request.form
    if form.get("grant_type") != "refresh_token" or not form.get("refresh_token"):
        return token_error(400)
    return Response(200, {"access_token": f"sandbox-access-{call.n}", "expires_in": 3599, "token_type": "Bearer"})


def kind_of(request: Request) -> str:
    """Return the kind of a PUT to a session."""
    return "upload.ask" if request.headers.get("content-range", "").startswith("bytes */") else "upload.put"


def start(call: ApiCall) -> Response:
    """POST /upload/youtube/v3/videos?uploadType=resumable: start a session. It makes no video."""
    request, total = call.request, call.request.headers.get("x-upload-content-length", "")
    if request.query.get("uploadType") != "resumable" or not total.isdigit() or not int(total):
        return error(400, "mediaBodyRequired", "The request does not include the video content.")
    if problem := _problem(request.fields):
        return error(400, problem)
    session_id = sha256(f"{call.service.database.identity}/{call.n}".encode()).hexdigest()[:32]
    session = {"id": session_id, "total": int(total), "resource": request.fields, "received": 0, "parts": []}
    call.service.database.keep(_SESSIONS, session_id, session)
    uri = f"{call.service.url}{request.path}?uploadType=resumable&upload_id={session_id}"
    return Response(200, headers={"Location": uri}, task_id=session_id)


def put(call: ApiCall) -> Response:
    """PUT to a session: a chunk, or a query for what has arrived (bytes */TOTAL)."""
    service, session_id = call.service, call.request.query.get("upload_id", "")
    with service.guard:
        session = service.database.thing(_SESSIONS, session_id)
        if session is None or session.get("gone"):
            return error(404, "notFound", "The upload session does not exist.")
        found = _RANGE.fullmatch(call.request.headers.get("content-range", ""))
        if not found or int(found[3]) != session["total"]:
            return error(400, "badRequest", "Failed to parse Content-Range header.")
        if not session.get("video_id") and found[1] is not None:
            if not _is_chunk(session, int(found[1]), int(found[2]), len(call.request.body)):
                return error(400, "badRequest", "Invalid request. The chunk does not fit the upload.")
            _receive(call, session, int(found[1]))
        return _progress(service, session)


def set_thumbnail(call: ApiCall) -> Response:
    """POST /upload/youtube/v3/thumbnails/set?videoId=…"""
    request, service = call.request, call.service
    with service.guard:
        video = service.database.thing(_VIDEOS, request.query.get("videoId", ""))
        if video is None:
            return error(404, "videoNotFound")
        if not request.headers.get("content-type", "").startswith(("image/jpeg", "image/png")):
            return error(400, "mediaBodyRequired")
        if not request.body or len(request.body) > THUMBNAIL_LIMIT:
            return error(400, "invalidImage" if request.body else "mediaBodyRequired")
        service.database.put("files", f"thumbnail/{video['id']}", request.body)
        service.database.keep(_VIDEOS, video["id"], video | {"thumbnails": video["thumbnails"] + 1})
    return Response(200, {"kind": "youtube#thumbnailSetResponse", "items": [{"default": {"url": "about:blank"}}]})


def channels(_: ApiCall) -> Response:
    """GET /youtube/v3/channels?mine=true."""
    details = {"relatedPlaylists": {"uploads": UPLOADS}}
    channel = {"id": "UCsandbox", "snippet": {"title": "Sandbox"}, "contentDetails": details}
    return Response(200, {"kind": "youtube#channelListResponse", "items": [channel]})


def playlist_items(call: ApiCall) -> Response:
    """GET /youtube/v3/playlistItems, newest first."""
    if call.request.query.get("playlistId") != UPLOADS:
        return error(404, "playlistNotFound")
    first = int(call.request.query.get("pageToken", "0"))
    made = call.service.database.things(_VIDEOS)[::-1]
    items = [{"snippet": _listed(video)} for video in made[first : first + PAGE_SIZE]]
    following = {"nextPageToken": str(first + PAGE_SIZE)} if len(made) > first + PAGE_SIZE else {}
    return Response(200, {"kind": "youtube#playlistItemListResponse", "items": items, **following})


def videos(call: ApiCall) -> Response:
    """GET /youtube/v3/videos?id=…"""
    wanted = call.request.query.get("id", "").split(",")
    found = [video for video_id in wanted if (video := call.service.database.thing(_VIDEOS, video_id))]
    return Response(200, {"kind": "youtube#videoListResponse", "items": [_resource(video) for video in found]})


def _expire(service: TaskService, _: Request) -> Response:
    """POST /sandbox/youtube/expire: forget every session started so far."""
    with service.guard:
        for session in service.database.things(_SESSIONS):
            service.database.keep(_SESSIONS, session["id"], session | {"gone": True})
    return Response(204)


CONTROLS: Mapping[str, Control] = MappingProxyType(
    {
        "POST youtube/expire": _expire,
        "GET youtube/sessions": lambda service, _: Response(200, service.database.things(_SESSIONS)),
        "GET youtube/videos": lambda service, _: Response(200, service.database.things(_VIDEOS)),
        "GET youtube/video": lambda service, request: _file(service, "video", request),
        "GET youtube/thumbnail": lambda service, request: _file(service, "thumbnail", request),
    }
)
"""The channel owner's view and actions, by method and path below /sandbox/."""


def _file(service: TaskService, kind: str, request: Request) -> Response:
    body = service.database.get("files", f"{kind}/{request.query.get('id', '')}")
    return error(404) if body is None else Response(200, body, "video/mp4" if kind == "video" else "image/jpeg")


def _is_chunk(session: dict[str, Any], first: int, last: int, length: int) -> bool:
    ends = last == session["total"] - 1
    fits = first <= session["received"] and last < session["total"] and last - first + 1 == length
    return fits and (ends or length % UNIT == 0)


def _receive(call: ApiCall, session: dict[str, Any], first: int) -> None:
    """Keep what is new in a chunk, or in its first half if the connection was cut. The last byte makes the video."""
    body = call.request.body
    body = body[: len(body) // 2] if call.fault == "cut-midway" else body
    new = body[session["received"] - first :]
    if new:
        call.service.database.put("files", f"upload/{session['id']}/{session['received']}", new)
        session["parts"].append(session["received"])
        session["received"] += len(new)
    if session["received"] == session["total"]:
        _publish(call.service, session)
    call.service.database.keep(_SESSIONS, session["id"], session)


def _publish(service: TaskService, session: dict[str, Any]) -> None:
    video_id = sha256(session["id"].encode()).hexdigest()[:11]
    parts = (service.database.get("files", f"upload/{session['id']}/{part}") for part in session["parts"])
    service.database.put("files", f"video/{video_id}", b"".join(parts))
    resource = session["resource"]
    video = {"id": video_id, "session": session["id"], "size": session["total"], "thumbnails": 0, **resource["snippet"]}
    service.database.keep(_VIDEOS, video_id, video | {"status": resource["status"]})
    session["video_id"] = video_id


def _progress(service: TaskService, session: dict[str, Any]) -> Response:
    """Return 200 with the video, or 308 with the range that has arrived."""
    video = service.database.thing(_VIDEOS, session.get("video_id", ""))
    if video:
        return Response(200, _resource(video), task_id=session["id"])
    arrived = {"Range": f"bytes=0-{session['received'] - 1}"} if session["received"] else {}
    return Response(308, headers=arrived, task_id=session["id"])


def _resource(video: dict[str, Any]) -> dict[str, Any]:
    snippet = {name: video.get(name) for name in ("title", "description", "tags", "categoryId")}
    return {
        "kind": "youtube#video",
        "id": video["id"],
        "snippet": snippet,
        "status": {"uploadStatus": "uploaded", **video["status"]},
    }


def _listed(video: dict[str, Any]) -> dict[str, Any]:
    resource = {"kind": "youtube#video", "videoId": video["id"]}
    return {"title": video["title"], "description": video.get("description", ""), "resourceId": resource}


def _problem(resource: dict[str, Any]) -> str:
    """Return YouTube's reason to refuse a video's details, or ""."""
    snippet, status = resource.get("snippet"), resource.get("status")
    if not isinstance(snippet, dict) or not isinstance(status, dict):
        return "badRequest"
    title, description, tags = snippet.get("title"), snippet.get("description") or "", snippet.get("tags") or []
    if not isinstance(title, str) or not title.strip() or len(title) > TITLE_LIMIT or set("<>") & set(title):
        return "invalidTitle"
    if not isinstance(description, str) or len(description.encode()) > DESCRIPTION_LIMIT:
        return "invalidDescription"
    # A tag with a space counts as if it were quoted, and the commas between tags count.
    if sum(len(tag) + 2 * (" " in tag) for tag in tags) + max(0, len(tags) - 1) > TAGS_LIMIT:
        return "invalidTags"
    return "" if status.get("privacyStatus") in ("private", "unlisted", "public") else "badRequest"
