"""Making a video from a picture, and checking videos."""

import os
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from retake.media import MediaError, ffmpeg, picture
from retake.media.picture import Size
from retake.media.structure import MAX_PARTS

ZOOM_PER_SECOND = 0.012  # a slow zoom: 12 % in ten seconds
MAX_ZOOM = 0.15  # in total, so that the edges stay visible

MAX_FRAMES = 1_000_000  # eleven hours

# The only containers that ffmpeg opens: a playlist disguised as a video could make it read other files.
CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm"

MAX_FRAME_PIXELS = 36_000_000  # per frame: 8K has 33 million
ENCODER_MEMORY = 6 * 2**30  # bytes of address space: 4096 × 4096 with eight threads takes some 3 GB
CHECK_S = 60.0  # time limit of a check

STILL = "scale=out_color_matrix=bt709:out_range=tv,format={},loop=loop=-1:size=1"
"""The filters that repeat a picture for ever, with a placeholder for its pixel format."""

BT709 = "setparams=colorspace=bt709:color_primaries=bt709:color_trc=bt709:range=tv"
OUTPUT = ("-map_metadata", "-1", "-fflags", "+bitexact", "-movflags", "+faststart", "video.mp4")

_LOOK = [
    *("-threads", str(ffmpeg.THREADS), "-max_pixels", str(MAX_FRAME_PIXELS)),
    *("-format_whitelist", CONTAINERS, "-skip_frame", "nokey", "-i", "video"),
    *("-map", "0:v:0", "-f", "null", "-"),  # decodes the key frames
    *("-map", "0:v:0", "-map", "0:a?", "-c", "copy", "-f", "null", "-"),  # reads every packet
]
_BEGINNING = 12  # bytes of a file that identify its format
_DURATION = re.compile(r"^(?:\[info\])? *Duration: (\d+):(\d\d):(\d\d(?:\.\d+)?)", re.MULTILINE)
# The log also has tags, which a file may fill with anything: only the beginning of a stream's own line is matched.
_STREAM = re.compile(
    r"^(?:\[info\])? *Stream #0:\d+[^\n]{0,80}?: Video: (?P<codec>\w+)(?P<rest>.{0,500})", re.MULTILINE
)
_FORMAT = re.compile(r", (\w+)(?:\([^)]*\))?, (\d+)x(\d+)")
_RATE = re.compile(r"([\d.]+k?) fps\b")


class VideoFacts(NamedTuple):
    """The facts of a video: pixels, seconds, frames per second, and ffmpeg's names ("h264", "yuv420p")."""

    width: int
    height: int
    duration_s: float
    fps: float
    codec: str
    pixel_format: str


def mock_video(
    png: bytes, size: Size, duration_s: float, fps: float, codec: str = "libx264", *, timeout_s: float = 300.0
) -> bytes:
    """Return an MP4 that zooms slowly into the picture `png`: round(duration_s × fps) frames, yuv420p, no sound.

    `size` is rounded down to even numbers, as yuv420p requires; `codec` names an encoder of ffmpeg. Raises MediaError
    for an invalid picture, for numbers that do not make a video, and if ffmpeg fails.
    """
    frames = round(duration_s * fps) if 0 < duration_s * fps <= MAX_FRAMES else 0
    even = Size(size.width // 2 * 2, size.height // 2 * 2)
    if frames < 1 or min(even) < 2:
        raise MediaError(f"{duration_s:g} s at {fps:g} frames a second, {size.width} × {size.height}: no video.")
    with ffmpeg.scratch() as folder:
        folder.joinpath("frame.png").write_bytes(picture.fit(png, even))
        ffmpeg.run(_zoom(frames, duration_s, fps, codec), timeout_s, folder, ENCODER_MEMORY)
        return folder.joinpath("video.mp4").read_bytes()


def check_video(video: bytes | Path) -> VideoFacts:
    """Return the facts of a video, given as bytes or as a file.

    Every packet is read, but only key frames are decoded: some 20 ms for ten seconds of 1280 × 720. Raises MediaError
    if it is not a video, is truncated or does not decode.
    """
    if missing := missing_bytes(video):
        raise MediaError(f"The video is cut short: {missing} of its bytes are missing. Fetch it again.")
    with ffmpeg.scratch() as folder:
        here = folder.joinpath("video")
        if isinstance(video, Path):
            here.symlink_to(video.absolute())
        else:
            here.write_bytes(video)
        try:
            log = ffmpeg.run(_LOOK, CHECK_S, folder)
        except MediaError as error:
            with here.open("rb") as file:
                begins, size = file.read(_BEGINNING), here.stat().st_size
            raise MediaError(
                f"This is not a video that can be read: {size} bytes that begin with {begins!r}. {error}"
            ) from error
    if errors := ffmpeg.errors_in(log):
        raise MediaError(f"The video is broken or cut short ({errors[0]}). Fetch it again.")
    return facts_in(log)


def is_video_file(video: bytes | Path) -> bool:
    """Return whether a video begins like an MP4 or a WebM, no matter how broken the rest is."""
    if isinstance(video, Path):
        with video.open("rb") as file:
            video = file.read(_BEGINNING)
    return video[4:8] == b"ftyp" or video[:4] == b"\x1aE\xdf\xa3"


def missing_bytes(mp4: bytes | Path) -> int:
    """Return how many bytes are missing at the end of `mp4`, since ffmpeg overlooks a cut between two frames.

    An MP4 is a sequence of boxes, each of which begins with its length [ISO/IEC 14496-12, 4.2]. Returns 0 for any other
    file, and for one with more than `MAX_PARTS` boxes.
    """
    if not isinstance(mp4, Path):
        return _missing(lambda start, end: mp4[start:end], len(mp4))
    with mp4.open("rb") as file:
        return _missing(lambda start, end: os.pread(file.fileno(), end - start, start), mp4.stat().st_size)


def _missing(part: Callable[[int, int], bytes], size: int) -> int:
    if part(4, 8) != b"ftyp":
        return 0
    start = 0
    for _ in range(MAX_PARTS):
        if start + 8 > size:
            break
        length = int.from_bytes(part(start, start + 4))
        if length == 1:  # the length follows the name, in 64 bits
            length = int.from_bytes(part(start + 8, start + 16))
        if length < 8:  # 0: this box extends to the end of the file
            return 0
        start += length
    return max(0, start - size)


def facts_in(log: str) -> VideoFacts:
    """Return what ffmpeg's `log` says about the first video stream of its first input. Raises MediaError."""
    duration, stream = _DURATION.search(log), _STREAM.search(log)
    if duration and stream and (shape := _FORMAT.search(stream["rest"])) and (rate := _RATE.search(stream["rest"])):
        hours, minutes, seconds = (float(part) for part in duration.groups())
        fps = float(rate[1].replace("k", "")) * (1000 if rate[1].endswith("k") else 1)
        length = hours * 3600 + minutes * 60 + seconds
        return VideoFacts(int(shape[2]), int(shape[3]), length, fps, stream["codec"], shape[1])
    raise MediaError("The file holds no moving pictures of a known length. Fetch it again, and look at what arrived.")


def _zoom(frames: int, duration_s: float, fps: float, codec: str) -> list[str]:
    # zoompan and crop move by whole pixels, which jitters; perspective samples between them. The picture is converted
    # once and repeated: some 7 s of CPU time for ten seconds of 1280 × 720 at 24 frames per second.
    end = min(MAX_ZOOM, ZOOM_PER_SECOND * duration_s)
    edge = f"{end / (1 + end) / 2}*in/{max(1, frames - 1)}"  # cut off at each edge, as a fraction of the side
    near, far = edge, f"(1-{edge})"
    corners = f"x0=W*{near}:y0=H*{near}:x1=W*{far}:y1=H*{near}:x2=W*{near}:y2=H*{far}:x3=W*{far}:y3=H*{far}"
    filters = (STILL.format("yuv420p"), f"perspective={corners}:interpolation=cubic:eval=frame", BT709)
    threads = str(min(os.cpu_count() or 1, ffmpeg.MAX_THREADS))
    rate = str(Fraction(fps).limit_denominator(1001))  # 29.97 is 30000/1001
    quality = ("-preset", "veryfast", "-crf", "20") if codec in ("libx264", "libx265") else ()
    return [
        *("-framerate", rate, "-i", "frame.png", "-vf", ",".join(filters), "-frames:v", str(frames)),
        *("-c:v", codec, *quality, "-threads", threads, "-pix_fmt", "yuv420p", "-an"),
        *OUTPUT,
    ]
