"""The pictures of an imagine task: four variants, a grid of them, and any one of them at twice the size."""

import re
from dataclasses import dataclass
from io import BytesIO

from PIL import Image

from retake.sandbox import landscape
from retake.sandbox.task import VendorTask

LONG_SIDE = 1024  # of a single picture, in pixels; twice that for an upscale
QUICK_LONG_SIDE = 32
_ASPECT_FLAG = re.compile(r"--(?:ar|aspect)\s+([1-9]\d{0,2}:[1-9]\d{0,2})\b")  # a flag of Midjourney's prompts


@dataclass(frozen=True)
class PictureSpec:
    """What an imagine task asks for. `size` is that of a single picture, in pixels."""

    prompt: str
    seed: int
    size: tuple[int, int]
    quick: bool

    @classmethod
    def of(cls, task: VendorTask, *, quick: bool) -> "PictureSpec":
        prompt, ratio = task.request["input"]["prompt"], task.request["input"].get("aspect_ratio")
        flag = _ASPECT_FLAG.search(prompt)
        size = _size(ratio or (flag[1] if flag else "1:1"), QUICK_LONG_SIDE if quick else LONG_SIDE)
        return cls(prompt, task.seed, size, quick)


def single(spec: PictureSpec, index: int) -> bytes:
    """Return variant `index` (1-4) as PNG."""
    return _png(_paint(spec, index))


def upscale(spec: PictureSpec, index: int) -> bytes:
    """Return variant `index` (1-4) as PNG at twice the size: the same picture in finer detail."""
    return _png(_paint(spec, index, scale=2))


def grid(spec: PictureSpec) -> bytes:
    """Return all four variants in one PNG, 1 2 above 3 4."""
    width, height = spec.size
    sheet = Image.new("RGB", (width * 2, height * 2))
    for index in range(4):
        sheet.paste(_paint(spec, index + 1), (index % 2 * width, index // 2 * height))
    return _png(sheet)


def from_prompt(prompt: str, seed: int) -> bytes:
    """Return a PNG that stands in for an image the sandbox cannot download."""
    return single(PictureSpec(prompt, seed, (1280, 720), quick=False), 1)


def is_picture(body: bytes) -> bool:
    """Return whether `body` is a readable picture."""
    try:
        with Image.open(BytesIO(body)) as opened:
            opened.verify()
    except (OSError, SyntaxError, ValueError):
        return False
    return True


def _paint(spec: PictureSpec, index: int, scale: int = 1) -> Image.Image:
    size = (spec.size[0] * scale, spec.size[1] * scale)
    if spec.quick:
        return landscape.plain(spec.seed, index, size)
    return landscape.paint(spec.prompt, f"{spec.seed}/{index}", size)


def _size(ratio: str, long_side: int) -> tuple[int, int]:
    across, down = (int(part) for part in ratio.split(":"))
    scale = long_side / max(across, down)
    return max(8, round(across * scale / 2) * 2), max(8, round(down * scale / 2) * 2)


def _png(image: Image.Image) -> bytes:
    out = BytesIO()
    image.save(out, "PNG", compress_level=4)
    return out.getvalue()
