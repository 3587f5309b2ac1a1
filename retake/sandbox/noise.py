"""Chance in the shape of nature: ridges by midpoint displacement, clouds from octaves of noise.

Both depend on luck alone, never on the size in pixels: the same scene can be painted small and large.
"""

import random
from itertools import pairwise

from PIL import Image, ImageChops, ImageOps

WORKING_SIDE = 512  # clouds are soft: they are made small and enlarged
RELIEF_SIDE = 1024


def ridge(luck: random.Random, roughness: float, detail: int = 10) -> list[float]:
    """2**detail + 1 heights from left to right, within -1 … 1. Roughness 0.4 is a dune, 0.6 a range of peaks."""
    heights = [luck.uniform(-0.6, 0.6), luck.uniform(-0.6, 0.6)]
    reach = 0.7
    for _ in range(detail):
        middles = [(a + b) / 2 + luck.uniform(-reach, reach) for a, b in pairwise(heights)]
        heights = [value for pair in zip(heights, middles, strict=False) for value in pair] + heights[-1:]
        reach *= roughness
    largest = max(1e-6, *map(abs, heights))
    return [height / largest for height in heights]


def relief(luck: random.Random, size: tuple[int, int], light_from_left: bool, *, cells: int = 7) -> Image.Image:
    """An L image of rock in slanting light: 128 is level ground, lighter faces the light."""
    scale = RELIEF_SIDE / max(size)
    work = (max(2, round(size[0] * scale)), max(2, round(size[1] * scale)))
    ground = clouds(luck, work, cells=cells, stretch=0.7, side=RELIEF_SIDE)
    beyond = ImageChops.offset(ground, -3 if light_from_left else 3, -3)
    slope = ImageChops.subtract(beyond, ground, 0.2, 128)
    # An offset comes in again at the other side: those edges are left out.
    return slope.crop((3, 3, max(4, work[0] - 3), work[1])).resize(size, Image.Resampling.BICUBIC)


def clouds(
    luck: random.Random, size: tuple[int, int], *, cells: int = 3, stretch: float = 2.0, side: int = WORKING_SIDE
) -> Image.Image:
    """An L image of soft billows, 0 … 255. `cells`: billows from top to bottom; `stretch`: their width to height."""
    scale = side / max(size)
    work = (max(2, round(size[0] * scale)), max(2, round(size[1] * scale)))
    sheet = Image.new("L", work, 128)
    share = 0.5
    for octave in range(6):
        down = cells * 2**octave
        across = max(2, round(down * work[0] / work[1] / stretch))
        grain = Image.frombytes("L", (across, down), luck.randbytes(across * down))
        layer = grain.resize(work, Image.Resampling.BICUBIC)
        sheet = ImageChops.add(sheet, layer.point(lambda value, k=share: int((value - 128) * k + 128)), 1, -128)
        share *= 0.55
    return ImageOps.autocontrast(sheet, cutoff=1).resize(size, Image.Resampling.BICUBIC)
