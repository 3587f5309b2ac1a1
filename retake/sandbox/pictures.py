"""Pictures of the Midjourney stand-in: four variants of a wish, their grid, and the chosen one at twice the size."""

import re
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

from retake.sandbox.task import VendorTask

if TYPE_CHECKING:
    from PIL import Image

LONG_SIDE = 1024  # of a single picture, in pixels; an upscale has twice that
QUICK_LONG_SIDE = 32
_FLAG_RATIO = re.compile(r"--(?:ar|aspect)\s+([1-9]\d{0,2}:[1-9]\d{0,2})\b")  # Midjourney's own, in the prompt


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
        flag = _FLAG_RATIO.search(prompt)
        size = _fitting(ratio or (flag[1] if flag else "1:1"), QUICK_LONG_SIDE if quick else LONG_SIDE)
        return cls(prompt, task.seed, size, quick)


def single(wish: PictureSpec, index: int) -> bytes:
    """Variant `index` (1–4) as PNG."""
    return _png(_paint(wish, index, wish.size))


def upscale(wish: PictureSpec, index: int) -> bytes:
    """Variant `index` (1–4) as PNG, at twice the size: the same picture, with finer detail."""
    return _png(_paint(wish, index, _double(wish.size)))


def grid(wish: PictureSpec) -> bytes:
    """All four as PNG, two by two: 1 2 above 3 4."""
    from PIL import Image

    width, height = wish.size
    sheet = Image.new("RGB", _double(wish.size))
    for index in (1, 2, 3, 4):
        sheet.paste(_paint(wish, index, wish.size), ((index - 1) % 2 * width, (index - 1) // 2 * height))
    return _png(sheet)


def of_prompt(prompt: str, seed: int) -> bytes:
    """A PNG for a video that was ordered of an image which the sandbox cannot fetch."""
    return single(PictureSpec(prompt, seed, (1280, 720), quick=False), 1)


def is_picture(body: bytes) -> bool:
    """Whether `body` is a picture that can be read."""
    from PIL import Image

    try:
        with Image.open(BytesIO(body)) as opened:
            opened.verify()
    except (OSError, SyntaxError, ValueError):
        return False
    return True


def _paint(wish: PictureSpec, index: int, size: tuple[int, int]) -> "Image.Image":
    from retake.sandbox import landscape

    if wish.quick:
        return landscape.plain(wish.seed, index, size)
    return landscape.paint(wish.prompt, f"{wish.seed}/{index}", size)


def _double(size: tuple[int, int]) -> tuple[int, int]:
    return size[0] * 2, size[1] * 2


def _fitting(ratio: str, long_side: int) -> tuple[int, int]:
    across, down = (int(part) for part in ratio.split(":"))
    scale = long_side / max(across, down)
    return max(8, round(across * scale / 2) * 2), max(8, round(down * scale / 2) * 2)


def _png(image: "Image.Image") -> bytes:
    out = BytesIO()
    image.save(out, "PNG", compress_level=4)
    return out.getvalue()
