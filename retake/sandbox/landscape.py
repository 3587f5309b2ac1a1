"""Landscapes from words and a seed."""

import random

from PIL import Image


def plain(seed: int, index: int, size: tuple[int, int]) -> Image.Image:
    """One colour, its own for each seed and index."""
    luck = random.Random(f"{seed}/{index}")  # noqa: S311 – art, not secrets
    return Image.new("RGB", size, tuple(luck.randrange(40, 216) for _ in range(3)))


def paint(prompt: str, seed: str, size: tuple[int, int]) -> Image.Image:
    """The landscape that `prompt` and `seed` stand for, at `size` pixels."""
    luck = random.Random(f"{prompt}/{seed}")  # noqa: S311 – art, not secrets
    top, bottom = (tuple(luck.randrange(40, 216) for _ in range(3)) for _ in range(2))
    mask = Image.linear_gradient("L").resize(size)
    return Image.composite(Image.new("RGB", size, bottom), Image.new("RGB", size, top), mask)
