"""Videos of the Runway stand-in: the picture that was sent, brought to life by ffmpeg with a slow camera move."""

import subprocess
import tempfile
from functools import lru_cache
from io import BytesIO
from pathlib import Path

import imageio_ffmpeg
from PIL import Image, ImageOps

FPS = 24


def film(image: bytes, ratio: str, seconds: int, seed: int) -> bytes:
    """An MP4 (H.264, yuv420p) of `seconds` at `ratio` («1280:720», pixels), from the PNG or JPEG `image`."""
    width, height = (int(part) for part in ratio.split(":"))
    with Image.open(BytesIO(image)) as opened:
        still = ImageOps.fit(opened.convert("RGB"), (width, height), Image.Resampling.LANCZOS)
    frames = seconds * FPS
    zoom = (
        f"zoompan=z='1+0.1*on/{frames}':x='iw/2-iw/zoom/2':y='ih/2-ih/zoom/2':d={frames}:s={width}x{height}:fps={FPS}"
    )
    return _encode(still, f"scale={width * 4}:-2:flags=bicubic,{zoom}", seconds)


def quick_film(image: bytes, ratio: str, seconds: int, seed: int) -> bytes:
    """A tiny plain MP4 of the right shape and length, whatever the picture; made once per shape and length."""
    return _plain(ratio, seconds)


@lru_cache
def _plain(ratio: str, seconds: int) -> bytes:
    width, height = (int(part) // 20 * 2 for part in ratio.split(":"))
    return _encode(Image.new("RGB", (width, height), (52, 73, 94)), f"loop=loop={seconds * FPS}:size=1", seconds)


def _encode(still: Image.Image, filters: str, seconds: int) -> bytes:
    png = BytesIO()
    still.save(png, "PNG", compress_level=1)
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory, "video.mp4")
        command = [
            *(
                imageio_ffmpeg.get_ffmpeg_exe(),
                "-loglevel",
                "error",
                "-f",
                "image2pipe",
                "-framerate",
                f"{FPS}",
                "-i",
                "-",
            ),
            *("-vf", filters, "-t", f"{seconds}", "-r", f"{FPS}", "-c:v", "libx264", "-preset", "veryfast"),
            *("-pix_fmt", "yuv420p", "-movflags", "+faststart", "-y", str(made)),
        ]
        subprocess.run(command, input=png.getvalue(), check=True, capture_output=True)
        return made.read_bytes()
