"""The cost of the video of a three-minute track: by `waveform_video`, and by bare ffmpeg in one command line."""

import sys
from pathlib import Path

from bench.pipelines import ROOT, environment
from bench.processes import cost
from bench.table import markdown
from retake.media import ffmpeg, picture, waveform
from retake.media.audio import demo_track
from retake.media.picture import Size
from retake.media.placeholder import placeholder

MINUTES = 3
REPEATS = 3

_OURS = (
    "import sys; from pathlib import Path; from retake.media.waveform import waveform_video;"
    "cover, track, out = map(Path, sys.argv[1:]);"
    "waveform_video(cover.read_bytes(), track, out, stopping=lambda: False, timeout_s=3600)"
)
_USUAL = (
    "[0:v]loop=loop=-1:size=1[cover];[1:a]showwaves=s=1280x200:mode=cline:rate={fps}:colors=white[wave];"
    "[cover][wave]overlay=0:490:shortest=1,format=yuv420p[v]"
)


def waveform_table(folder: Path) -> str:
    cover, track = folder / "cover.png", folder / "track.wav"
    cover.write_bytes(picture.fit(placeholder("Three minutes", Size(1280, 720)), waveform.SIZE))
    demo_track(track, MINUTES * 60.0)
    environ = {**environment(folder), "PYTHONPATH": str(ROOT)}
    commands = {
        "waveform_video": [sys.executable, "-c", _OURS, str(cover), str(track), str(folder / "ours.mp4")],
        "bare ffmpeg": _bare(cover, track, folder / "bare.mp4"),
    }
    spent = {name: cost(command, environ, REPEATS) for name, command in commands.items()}
    sizes = [path.stat().st_size / 1e6 for path in (folder / f"{name}.mp4" for name in ("ours", "bare"))]
    bare_s = spent["bare ffmpeg"].wall_s
    rows = [
        (name, f"{it.wall_s:.1f}", f"{it.wall_s / bare_s:.2f}", f"{it.cpu_s:.1f}", f"{it.peak_mb:.0f}", f"{mb:.0f}")
        for (name, it), mb in zip(spent.items(), sizes, strict=True)
    ]
    title = (
        f"The video of a track of {MINUTES} minutes, whole processes, medians of {REPEATS}; and bare ffmpeg in one "
        f"command line, with the same encoder settings: showwaves over the cover, {waveform.FPS} frames a second. "
        "`waveform_video` also reads the track before and the video after, and checks their lengths."
    )
    return markdown(title, ("video", "wall s", "÷ bare", "CPU s", "peak MB", "file MB"), rows)


def _bare(cover: Path, track: Path, out: Path) -> list[str]:
    fps = str(waveform.FPS)
    return [
        *(ffmpeg.find(), "-nostdin", "-y", "-framerate", fps, "-i", str(cover), "-i", str(track)),
        *("-filter_complex", _USUAL.format(fps=fps), "-map", "[v]", "-map", "1:a", *waveform.ENCODER, *waveform.SOUND),
        *("-t", str(MINUTES * 60), "-movflags", "+faststart", str(out)),
    ]
