"""Publishing, which never happens twice.

An upload session makes no video until its last byte has arrived, and reports its outcome afterwards. So its URI is in
the row before the first byte is sent, and the next attempt asks it first. If the session is gone, the row says whether
its last chunk was begun: if not, nothing was published; if so, the video is searched for by the nonce in its
description, and if it is not found, a person decides.
"""

from collections.abc import Mapping
from logging import getLogger
from typing import Any

from retake.attempts import countdown
from retake.errors import ErrorClass, PollFailed, SessionGone, Stopped
from retake.music.attempts import shown_reason
from retake.music.context import JobContext
from retake.music.rows import PipelineRow, as_object
from retake.music.steps.cover import AwaitsPerson
from retake.music.texts import description_with_nonce, new_nonce
from retake.retrying.backoff import Intervals
from retake.runs.run import StaleRun
from retake.runs.worker import coded
from retake.vendors import VideoDetails

LOOK_PAUSE_S = 10.0
"""Seconds between two searches for a video: it may take a while until a new one is listed."""

_log = getLogger(__name__)


def publish(context: JobContext) -> Mapping[str, Any]:
    """Return the video's id, and a warning if it has no thumbnail. Raises VendorError, AwaitsPerson, Stopped."""
    row = context.row
    video_id = row.youtube_video_id
    if video_id is None:
        video_id = _uploaded(context)
        context.save(youtube_video_id=video_id)  # upload_session stays: a worker that resumes finds it taken
        _log.info("%s: published as %s", row.task_id, video_id, extra={"step": "publish"})
    return {"youtube_video_id": video_id, "warning": _thumbnail_set(context, video_id)}


def _uploaded(context: JobContext) -> str:
    row = context.row
    if row.nonce is None:
        row = context.save(nonce=new_nonce(row.id, context.shared.random))
    while True:
        kept = row.upload_session
        try:
            return _sent(context, row, kept)
        except SessionGone as gone:
            row = context.present()
            if row.last_chunk_begun:
                return _found(context, row, gone)
            if kept is None:  # this attempt has already started a session
                raise
        _log.info("%s: its upload was given up by YouTube unfinished; a new one is started", row.task_id)
        row = context.save(upload_session=None, last_chunk_begun=False)


def _sent(context: JobContext, row: PipelineRow, session: str | None) -> str:
    music, meta = context.settings.music, as_object(row.metadata_json) or {}
    details = VideoDetails(
        title=str(meta.get("title") or row.track_title),
        description=description_with_nonce(str(meta.get("description") or ""), row.nonce or ""),
        tags=tuple(map(str, meta.get("tags") or [])),
        category_id=music.category_id,
        privacy=music.privacy,
        made_for_kids=music.made_for_kids,
    )
    video = context.kept_file(row.video_url, "video")
    return context.shared.vendors.youtube().upload(details, video, UploadLog(context), session=session)


def _found(context: JobContext, row: PipelineRow, gone: SessionGone) -> str:
    """Return the id of the video that the upload has made. Raises AwaitsPerson if it is not found."""
    youtube = context.shared.vendors.youtube()
    left = countdown(context.settings.music.publish_look_seconds, context.clock)
    while True:
        context.check()
        try:
            if found := youtube.find(row.nonce or ""):
                return found
        except PollFailed as error:
            _log.warning("%s: looking for its video failed: %s", row.task_id, error)
        if (left_s := left()) <= 0:
            break
        context.pause(min(LOOK_PAUSE_S, left_s))
    looked = context.settings.music.publish_look_seconds
    text = f"its upload may have made a video, and none was found in {looked:g} s; look on YouTube, then say which"
    raise AwaitsPerson(PollFailed(gone.code, text)) from gone


def _thumbnail_set(context: JobContext, video_id: str) -> str | None:
    """Set the thumbnail, with the retries of a step; return what went wrong, or None."""
    music, youtube = context.settings.music, context.shared.vendors.youtube()
    pauses, attempt = Intervals(music.step_retry_backoff_sec), 1
    while True:
        context.check()
        try:
            youtube.set_thumbnail(video_id, context.kept(context.row.thumbnail_url, "thumbnail"))
        except (Stopped, StaleRun):
            raise
        except Exception as failure:  # noqa: BLE001  the video is published, with or without a thumbnail
            error = coded(failure)
            _log.warning("%s: the thumbnail is not set: %s", context.row.task_id, error)
            if error.error_class is not ErrorClass.TEMPORARY or attempt > music.step_max_retries:
                return shown_reason(f"the thumbnail could not be set: {error}")
            context.pause(max(pauses.delay_s(attempt), error.retry_after_s or 0.0))
            attempt += 1
        else:
            return None


class UploadLog:
    """The `retake.vendors.UploadHooks`: saves in the row what must be on record before anything is sent."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._last_chunk_begun = False

    def check(self) -> None:
        """Raise Stopped or StaleRun if nothing more may be sent."""
        self._context.check()
        self._context.present()

    def started(self, session: str) -> None:
        self._context.shared.attempts.save_session(self._context.attempt, session)

    def before_last_chunk(self) -> None:
        if not self._last_chunk_begun:
            self._context.save(last_chunk_begun=True)
            self._last_chunk_begun = True
