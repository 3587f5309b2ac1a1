"""The video of a track: its waveform moves over a still picture."""

import os
import re
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from retake.media import MediaError, ffmpeg, picture, video
from retake.media.audio import TRACK, audio_facts, track_in
from retake.media.picture import Size
from retake.media.video import BT709, OUTPUT, STILL, VideoFacts

SIZE = Size(1280, 720)
FPS = 15
"""Frames per second. Each frame shows the sound of its own time, so more of them cost time and show little more."""

WHITE = "#ffffff"
TOLERANCE_S = 0.5  # maximum difference in length between the video and its audio

_BARS = SIZE.width // 16
_BAND = 200  # height of the waveform in pixels
_TOP = 490  # its upper edge
_SHADE = 0.45  # how much darker the cover is behind the middle of the waveform, which would vanish on a white cover

_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
_AAC = re.compile(r"^(?:\[info\])? *Stream #0:\d+[^\n]{0,80}?: Audio: aac\b", re.MULTILINE)
_ENLARGED = "scale={}:{}:flags=neighbor:in_range=full:out_range=full"
_WAVE = (
    # showwaves counts modulo 256 how many samples cover a dot: at this rate at most 20, so no count wraps to 0.
    "aformat=channel_layouts=mono:sample_rates=24000",
    "apad=pad_dur=0.2",  # gives even the shortest track a frame
    f"showwaves=s={_BARS}x{_BAND // 4}:mode=cline:rate={FPS}:draw=full:scale=sqrt",
    "format=gray",
    "lut=c0=255*gt(val\\,0)",
    # Bars with gaps are drawn small and enlarged to the width of the encoder's blocks, which halves the file.
    _ENLARGED.format(_BARS * 4, _BAND // 4),
    f"drawgrid=x=-1:y=-1:w=4:h={_BAND}:t=1:c=black:replace=1",
    _ENLARGED.format(SIZE.width, _BAND),
)
_FILTERS = ";".join(
    (
        f"[0:v]{STILL.format('yuv420p')}[cover]",
        f"[1:v]{STILL.format('yuva420p')}[ink]",
        f"[2:a:0]{','.join(_WAVE)}[wave]",
        # The ink is converted once, and the waveform is its alpha channel: a coloured waveform would have to be
        # converted in each frame.
        "[ink][wave]alphamerge[waveform]",
        f"[cover][waveform]overlay=0:{_TOP}:format=yuv420:shortest=1,{BT709}[v]",
    )
)
# For a still picture and a band of one colour, the fastest preset with a fixed quality takes half the time of the next
# preset, at about the same file size.
ENCODER = ("-c:v", "libx264", "-preset", "ultrafast", "-qp", "25", "-pix_fmt", "yuv420p")
SOUND = ("-c:a", "aac", "-b:a", "192k", "-ac", "2")
_LOOK = ("-format_whitelist", video.CONTAINERS, "-i", "video.mp4", "-map", "0", "-c", "copy", "-f", "null", "-")


def waveform_video(
    cover: bytes,
    audio: Path,
    out: Path,
    *,
    colour: str = WHITE,
    stopping: Callable[[], bool],
    timeout_s: float,
) -> VideoFacts:
    """Write an MP4 (H.264, yuv420p, 1280 × 720, AAC) of the audio in `audio` to `out`, and return its facts.

    The waveform, in `colour` ("#rrggbb"), moves over the picture `cover`, scaled to cover the frame. `out` appears when
    it is complete and checked; it is never held in memory. ffmpeg may take `timeout_s` seconds. Raises MediaError for
    an unreadable picture or track and if ffmpeg fails, ValueError for an invalid colour, and Stopped within a second
    after `stopping()` returns True.
    """
    if not _COLOUR.fullmatch(colour):
        raise ValueError(f"{colour!r} is not a colour; one looks like #ff8800")
    sound = audio_facts(audio, timeout_s=timeout_s, stopping=stopping)
    with ffmpeg.scratch(out.parent) as folder, track_in(folder, audio):
        _shaded(picture.flat(picture.fit(cover, SIZE))).save(folder / "cover.png", compress_level=1)
        Image.new("RGB", (SIZE.width, _BAND), colour).save(folder / "ink.png")
        ffmpeg.run(_encode(sound.duration_s), timeout_s, folder, video.ENCODER_MEMORY, stopping)
        facts = _checked(ffmpeg.run(_LOOK, timeout_s, folder, stopping=stopping), sound.duration_s)
        os.replace(folder / "video.mp4", out)
    return facts


def _encode(duration_s: float) -> list[str]:
    threads = str(min(os.cpu_count() or 1, ffmpeg.MAX_THREADS))
    stills = (argument for name in ("cover.png", "ink.png") for argument in ("-framerate", str(FPS), "-i", name))
    return [
        *(*stills, *TRACK, "-filter_complex", _FILTERS, "-map", "[v]", "-map", "2:a:0", "-t", f"{duration_s:.3f}"),
        *(*ENCODER, "-threads", threads, *SOUND, "-map_chapters", "-1", *OUTPUT),
    ]


def _shaded(cover: Image.Image) -> Image.Image:
    """Return `cover`, darkened behind the waveform, most of all behind its middle."""
    column = Image.new("L", (1, cover.height))
    middle, half = _TOP + _BAND / 2, _BAND * 0.75
    rows = (max(0.0, 1 - (abs(y - middle) / half) ** 2) for y in range(cover.height))
    column.putdata([round(255 * _SHADE * row) for row in rows])
    return Image.composite(Image.new("RGB", cover.size), cover, column.resize(cover.size))


def _checked(log: str, duration_s: float) -> VideoFacts:
    """Return the facts of the finished video. Raises MediaError if it is not the video that was ordered."""
    facts = video.facts_in(log)
    if (facts.width, facts.height, facts.codec, facts.pixel_format) != (*SIZE, "h264", "yuv420p"):
        raise MediaError(f"ffmpeg made a different video from the one requested: {facts}. Is it an unusual build?")
    if not _AAC.search(log) or abs(facts.duration_s - duration_s) > TOLERANCE_S:
        raise MediaError(
            f"The video lasts {facts.duration_s:g} s, but its track has {duration_s:g} s of sound. Try again."
        )
    return facts
