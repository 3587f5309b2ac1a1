"""The facts of an audio file, and a short demo track."""

import math
import os
import re
import sys
import wave
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

from retake.media import MediaError, ffmpeg

CONTAINERS = "wav,mp3,flac,ogg,aac,mov,mp4,m4a,3gp,3g2,mj2"
"""The only containers that ffmpeg opens: a playlist disguised as a track could make it read other files."""

TRACK = ("-format_whitelist", CONTAINERS, "-i", "track")
"""ffmpeg's arguments for the track that `track_in` puts in a folder."""

DEMO_RATE = 22_050  # samples per second of the demo track
_BEAT_S = 0.3
_CHORDS = ((57, 60, 64, 69), (53, 57, 60, 65), (48, 52, 55, 64), (55, 59, 62, 67))  # MIDI notes: Am, F, C, G
_LOUDNESS = 0.2  # of one note; at most three sound at once
_FADE_S = 0.02  # at both ends of a note, to avoid clicks

_DECODE = ("-map", "0:a:0", "-map_metadata", "-1", "-map_chapters", "-1", "-f", "null", "-")
# The log also has tags, which a file may fill with anything, but they precede these lines: the last match is ffmpeg's.
_CODEC = re.compile(r"^(?:\[info\])? *Stream #0:\d+ -> #0:0 \((\w+)", re.MULTILINE)
_SHAPE = re.compile(r"^(?:\[info\])? *Stream #0:0[^\n]{0,40}?: Audio: \w+, (\d+) Hz, ([^,\n]{1,60})", re.MULTILINE)
_DECODED = re.compile(r"^(?:\[info\])? *(?:size|frame)=[^\n]{0,80}? time=(\d+):(\d\d):(\d\d(?:\.\d+)?)", re.MULTILINE)
_CHANNELS = {"mono": 1, "stereo": 2, "downmix": 2, "binaural": 2, "quad": 4, "hexagonal": 6, "octagonal": 8, "cube": 8}


class NotAudio(MediaError):
    """The file is missing or has no readable audio: a retry does not help."""


class AudioFacts(NamedTuple):
    """The facts of a file's audio: seconds, ffmpeg's name of the codec ("mp3"), samples per second, channels.

    `channels` is 0 for an unknown channel layout.
    """

    duration_s: float
    codec: str
    sample_rate: int
    channels: int


def audio_facts(path: Path, *, timeout_s: float, stopping: Callable[[], bool] | None = None) -> AudioFacts:
    """Return the facts of the audio in the file `path`: WAV, MP3, FLAC, Ogg (Vorbis, Opus), M4A or AAC.

    All of it is decoded (some 0.3 s for three minutes), since the duration in the header may be wrong. Raises NotAudio
    for a file that is missing, cannot be read or has no audio, and like `ffmpeg.run` MediaError and Stopped.
    """
    with ffmpeg.scratch() as folder, track_in(folder, path):
        try:
            log = ffmpeg.run([*TRACK, *_DECODE], timeout_s, folder, stopping=stopping)
        except ffmpeg.FfmpegFailed as error:
            raise NotAudio(f"{path.name} is not an audio file that can be read, or has no sound. {error}") from error
    codecs, shapes, times = (pattern.findall(log) for pattern in (_CODEC, _SHAPE, _DECODED))
    hours, minutes, seconds = (float(part) for part in times[-1]) if times else (0.0, 0.0, 0.0)
    length = hours * 3600 + minutes * 60 + seconds
    if not (codecs and shapes and length):
        raise NotAudio(f"{path.name} has no sound of any length. Is it the right file?")
    rate, layout = shapes[-1]
    return AudioFacts(length, codecs[-1], int(rate), _channels(layout))


@contextmanager
def track_in(folder: Path, path: Path) -> Iterator[None]:
    """Link `path` as "track" in `folder`, so that ffmpeg's log contains no path of this machine. Raises NotAudio."""
    if not path.is_file():
        raise NotAudio(f"There is no audio file {path.name} in its folder.")
    link = folder / "track"
    link.symlink_to(path.resolve())
    try:
        yield
    finally:
        link.unlink()


def demo_track(path: Path, seconds: float = 12.0) -> None:
    """Write a short track of plucked chords to `path`: WAV, 16 bit, mono. The notes are the same each time.

    The file appears under its name only when it is complete. Raises OSError.
    """
    samples = _melody(round(seconds * DEMO_RATE))
    if sys.byteorder == "big":
        samples.byteswap()  # WAV is little-endian
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as unfinished:
        try:
            with wave.open(unfinished, "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(DEMO_RATE)
                file.writeframes(samples.tobytes())
            unfinished.flush()
            os.chmod(unfinished.name, 0o644)
            os.replace(unfinished.name, path)
        except BaseException:
            os.unlink(unfinished.name)
            raise


def _melody(length: int) -> "array[int]":
    """Return `length` samples: a chord every eight beats, its notes one after another over its lowest one."""
    samples = array("h", bytes(2 * length))
    sounds: dict[tuple[int, int], array[int]] = {}  # the first use of a note is its longest
    for beat, start in enumerate(range(0, length, round(_BEAT_S * DEMO_RATE))):
        chord = _CHORDS[beat // 8 % len(_CHORDS)]
        played = [(chord[(0, 1, 2, 3, 2, 1, 2, 3)[beat % 8]], 3), *([(chord[0] - 12, 8)] if beat % 8 == 0 else [])]
        for note, beats in played:
            if (note, beats) not in sounds:
                sounds[note, beats] = _pluck(note, beats * _BEAT_S, length - start)
            for n, value in enumerate(sounds[note, beats][: length - start], start):
                samples[n] += value
    return samples


def _pluck(note: int, seconds: float, most: int) -> "array[int]":
    """Return the first `most` samples of a decaying note: the fundamental and two overtones."""
    step, length, fade = math.tau * 440 * 2 ** ((note - 69) / 12) / DEMO_RATE, round(seconds * DEMO_RATE), _FADE_S
    values: array[int] = array("h")
    for n in range(min(length, most)):
        wave_form = math.sin(step * n) + 0.4 * math.sin(2 * step * n) + 0.15 * math.sin(3 * step * n)
        ends = min(1.0, n / DEMO_RATE / fade, (length - n) / DEMO_RATE / fade)
        values.append(round(32767 * _LOUDNESS / 1.55 * wave_form * ends * math.exp(-3 * n / length)))
    return values


def _channels(layout: str) -> int:
    """Return the number of channels in an ffmpeg channel layout: "stereo", "5.1(side)", "12 channels"."""
    name = layout.strip().partition("(")[0].split(" ")[0]
    return _CHANNELS.get(name) or sum(int(part) for part in name.split(".") if part.isdigit())
