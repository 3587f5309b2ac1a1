"""Videos of the Runway stand-in: the picture that was sent, brought to life by ffmpeg with a slow camera move."""

import random
import subprocess
import tempfile
from functools import lru_cache
from io import BytesIO
from pathlib import Path

import imageio_ffmpeg
from PIL import Image, ImageOps

FPS = 24
PUSH = 0.10  # how far the camera comes closer, as a share of the picture
DRIFT = 0.03  # how far it may drift to a side meanwhile
# zoompan moves by whole pixels of its input: the picture is enlarged first, so that one of them is a quarter of ours.
ENLARGED = 4


def make_video(image: bytes, ratio: str, seconds: int, seed: int) -> bytes:
    """An MP4 (H.264, yuv420p) of `seconds` at `ratio` («1280:720», pixels), from the PNG or JPEG `image`."""
    width, height = _size(ratio)
    with Image.open(BytesIO(image)) as opened:
        still = ImageOps.fit(opened.convert("RGB"), (width, height), Image.Resampling.LANCZOS)
    return _encode(still, f"scale={width * ENLARGED}:-2:flags=bicubic,{_move(ratio, seconds, seed)}", seconds)


def make_quick_video(image: bytes, ratio: str, seconds: int, seed: int) -> bytes:
    """A tiny plain MP4 of the right shape and length, whatever the picture; made once per shape and length."""
    return _plain(ratio, seconds)


def _move(ratio: str, seconds: int, seed: int) -> str:
    """A push in that starts and ends softly, with a drift to a side that the seed chooses."""
    luck = random.Random(seed)  # noqa: S311 – art, not secrets
    frames = seconds * FPS
    gone = f"(0.5-0.5*cos(PI*on/{frames}))"
    across, down = (luck.choice((-1, 1)) * luck.uniform(DRIFT / 3, DRIFT) for _ in range(2))
    return (
        f"zoompan=z='1.04+{PUSH}*{gone}':d={frames}:s={ratio.replace(':', 'x')}:fps={FPS}"
        f":x='(iw-iw/zoom)/2+iw*{across:.4f}*({gone}-0.5)':y='(ih-ih/zoom)/2+ih*{down / 2:.4f}*({gone}-0.5)'"
    )


@lru_cache
def _plain(ratio: str, seconds: int) -> bytes:
    width, height = (side // 20 * 2 for side in _size(ratio))
    return _encode(Image.new("RGB", (width, height), (52, 73, 94)), f"loop=loop={seconds * FPS}:size=1", seconds)


def _size(ratio: str) -> tuple[int, int]:
    width, height = (int(part) for part in ratio.split(":"))
    return width, height


def _encode(still: Image.Image, filters: str, seconds: int) -> bytes:
    png = BytesIO()
    still.save(png, "PNG", compress_level=1)
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory, "video.mp4")
        command = [
            *(imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-loglevel", "error"),
            *("-f", "image2pipe", "-framerate", f"{FPS}", "-i", "pipe:0", "-vf", filters, "-t", f"{seconds}"),
            *("-r", f"{FPS}", "-c:v", "libx264", "-preset", "veryfast", "-crf", "20", "-pix_fmt", "yuv420p"),
            *("-movflags", "+faststart", "-y", str(made)),
        ]
        subprocess.run(command, input=png.getvalue(), check=True, capture_output=True)
        return made.read_bytes()
