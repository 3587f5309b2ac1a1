"""Videos of the Runway stand-in: ffmpeg slowly moves a camera over the picture of the order."""

import random
import subprocess
import tempfile
from functools import lru_cache
from io import BytesIO
from pathlib import Path

import imageio_ffmpeg
from PIL import Image, ImageOps

FPS = 24
ZOOM = 0.10  # how far the camera zooms in, as a fraction of the picture
DRIFT = 0.03  # how far it may drift to one side, as a fraction of the picture
# zoompan moves by whole pixels of its input; enlarging the picture makes the steps a quarter of a pixel.
ENLARGEMENT = 4


def make_video(image: bytes, ratio: str, seconds: int, seed: int) -> bytes:
    """Return an MP4 (H.264, yuv420p) of `image`, a PNG or JPEG; `ratio` is its size in pixels, as in "1280:720"."""
    width, height = (int(side) for side in ratio.split(":"))
    with Image.open(BytesIO(image)) as opened:
        still = ImageOps.fit(opened.convert("RGB"), (width, height), Image.Resampling.LANCZOS)
    return _encode(still, f"scale={width * ENLARGEMENT}:-2:flags=bicubic,{_camera(ratio, seconds, seed)}", seconds)


def make_quick_video(_image: bytes, ratio: str, seconds: int, _seed: int) -> bytes:
    """Return a tiny plain MP4 of the right shape and length, whatever the picture."""
    return _plain(ratio, seconds)


def _camera(ratio: str, seconds: int, seed: int) -> str:
    """Return the filter for a zoom that starts and ends softly, with a drift in a direction determined by `seed`."""
    rng, frames = random.Random(seed), seconds * FPS
    moved = f"(0.5-0.5*cos(PI*on/{frames}))"
    across, down = (rng.choice((-1, 1)) * rng.uniform(DRIFT / 3, DRIFT) for _ in range(2))
    return (
        f"zoompan=z='1.04+{ZOOM}*{moved}':d={frames}:s={ratio.replace(':', 'x')}:fps={FPS}"
        f":x='(iw-iw/zoom)/2+iw*{across:.4f}*({moved}-0.5)':y='(ih-ih/zoom)/2+ih*{down / 2:.4f}*({moved}-0.5)'"
    )


@lru_cache
def _plain(ratio: str, seconds: int) -> bytes:
    width, height = (int(side) // 20 * 2 for side in ratio.split(":"))
    return _encode(Image.new("RGB", (width, height), (52, 73, 94)), f"loop=loop={seconds * FPS}:size=1", seconds)


def _encode(still: Image.Image, filters: str, seconds: int) -> bytes:
    png = BytesIO()
    still.save(png, "PNG", compress_level=1)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "video.mp4")
        command = [
            *(imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-loglevel", "error"),
            *("-f", "image2pipe", "-framerate", f"{FPS}", "-i", "pipe:0", "-vf", filters, "-t", f"{seconds}"),
            *("-r", f"{FPS}", "-c:v", "libx264", "-preset", "veryfast", "-crf", "20", "-pix_fmt", "yuv420p"),
            *("-movflags", "+faststart", "-y", str(path)),
        ]
        subprocess.run(command, input=png.getvalue(), check=True, capture_output=True)
        return path.read_bytes()
