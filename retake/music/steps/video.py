"""The video, a waveform of the track over its cover, and the thumbnail, both made on this machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retake.errors import Code, PollFailed
from retake.media import ffmpeg
from retake.media.audio import NotAudio, audio_facts
from retake.media.thumbnail import thumbnail
from retake.media.waveform import WHITE, waveform_video
from retake.music.context import JobContext
from retake.music.texts import colour_in

DECODE_S = 120.0  # time limit of decoding the track
RENDER_S = 4 * 3600.0  # time limit of rendering the video


def make_video(context: JobContext) -> Mapping[str, Any]:
    """Return the video's path once it is in the bucket. Raises VendorError, MediaError, Stopped."""
    audio, cover = _sound(context), context.kept(context.row.cover_url, "cover")
    colour = colour_in(context.row.note or "") or WHITE
    with ffmpeg.scratch() as folder:
        out = folder / "video.mp4"
        waveform_video(cover, audio, out, colour=colour, stopping=context.given_up, timeout_s=RENDER_S)
        with out.open("rb") as made:
            return {"video_url": context.keep_file("video", "mp4", made)}


def make_thumbnail(context: JobContext) -> Mapping[str, Any]:
    """Return the thumbnail's path: the cover with the note's words or the track's title. Raises like `make_video`."""
    cover = context.kept(context.row.cover_url, "cover")
    words = context.row.note or context.row.track_title
    return {"thumbnail_url": context.keep("thumb", "jpg", thumbnail(cover, words))}


def _sound(context: JobContext) -> Path:
    """Return the track's path. Raises PollFailed, which no retry repairs, for a track that cannot be used."""
    path = context.audio()
    try:
        audio_facts(path, timeout_s=DECODE_S, stopping=context.given_up)
    except NotAudio as error:
        raise PollFailed(Code.INVALID_INPUT, f"{context.row.audio}: {error}") from error
    return path
