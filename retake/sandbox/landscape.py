"""Landscapes from words and a seed: a sky, ranges of hills in haze, water, and something to look at."""

import math
import random

from PIL import Image, ImageChops, ImageDraw, ImageFilter

from retake.sandbox import scenery
from retake.sandbox.brush import FINE, lit, tinted
from retake.sandbox.hills import hills
from retake.sandbox.noise import ridge
from retake.sandbox.palette import mix
from retake.sandbox.scene import Scene
from retake.sandbox.sky import sky
from retake.sandbox.water import water


def plain(seed: int, index: int, size: tuple[int, int]) -> Image.Image:
    """One colour, its own for each seed and index."""
    luck = random.Random(f"{seed}/{index}")  # noqa: S311 – art, not secrets
    return Image.new("RGB", size, tuple(luck.randrange(40, 216) for _ in range(3)))


def paint(prompt: str, seed: str, size: tuple[int, int]) -> Image.Image:
    """The landscape that `prompt` and `seed` stand for, at `size` pixels."""
    scene = Scene(prompt, seed, size)
    image = sky(scene)
    image = hills(scene, image, near=False)
    if scene.water:
        image = water(scene, image)
    image = hills(scene, image, near=True)
    if "balloon" in scene.mood.things:
        image = _balloons(scene, image)
    image = _weather(scene, _focus(scene, image))
    return _finish(scene, image)


def _focus(scene: Scene, image: Image.Image) -> Image.Image:
    """What the eye comes to rest on: the things that the words name, where they belong."""
    things, luck = scene.mood.things, scene.luck("focus")
    mask = Image.new("L", (scene.size[0] * FINE, scene.size[1] * FINE))
    lamps: list[scenery.Lamp] = []
    for name, place in _PLACES.items():
        if name in things:
            lamps += place(scene, ImageDraw.Draw(mask), mask.size, luck)
    if "birds" in things or (luck.random() < 0.35 and not scene.mood.palette.moon):
        _flock(ImageDraw.Draw(mask), mask.size, luck)
    ink = mix(scene.mood.palette.near, (0, 0, 0), 0.25)
    image = Image.composite(Image.new("RGB", scene.size, ink), image, mask.reduce(FINE))
    return lit(image, lamps, 1 / FINE, 2.6)


def _across(scene: Scene) -> float:
    """A third of the width, on the side across from the light."""
    return scene.sun[0] + (0.3 if scene.sun[0] < 0.5 else -0.3)


def _lighthouse(scene: Scene, pen: scenery.Pen, size: tuple[int, int], luck: random.Random) -> list[scenery.Lamp]:
    x, y, short = _across(scene) * size[0], (scene.horizon + 0.05) * size[1], min(size)
    _rock(pen, x, y, short * 0.2, luck)
    return scenery.lighthouse(pen, x, y - 0.035 * size[1], short * 0.34)


def _boat(scene: Scene, pen: scenery.Pen, size: tuple[int, int], luck: random.Random) -> list[scenery.Lamp]:
    x, y = scene.sun[0] + luck.uniform(-0.06, 0.1), scene.horizon + luck.uniform(0.1, 0.16)
    return scenery.boat(pen, x * size[0], y * size[1], min(size) * luck.uniform(0.13, 0.18)) if scene.water else []


def _cabin(scene: Scene, pen: scenery.Pen, size: tuple[int, int], luck: random.Random) -> list[scenery.Lamp]:
    y, tall = (scene.horizon + 0.012, 0.05) if scene.water else (0.93, 0.13)
    if not scene.water:
        _mound(scene, pen, size, 0.92)
    return scenery.cabin(pen, (_across(scene) + 0.04) * size[0], y * size[1], min(size) * tall)


def _windmill(scene: Scene, pen: scenery.Pen, size: tuple[int, int], luck: random.Random) -> list[scenery.Lamp]:
    y, tall = (scene.horizon + 0.01, 0.2) if scene.water else (0.92, 0.36)
    if not scene.water:
        _mound(scene, pen, size, 0.91)
    return scenery.windmill(pen, _across(scene) * size[0], y * size[1], min(size) * tall, luck)


def _tree(scene: Scene, pen: scenery.Pen, size: tuple[int, int], luck: random.Random) -> list[scenery.Lamp]:
    _mound(scene, pen, size, 0.95)
    scenery.oak(pen, _across(scene) * size[0], 0.97 * size[1], min(size) * 0.5, luck)
    return []


def _figure(scene: Scene, pen: scenery.Pen, size: tuple[int, int], luck: random.Random) -> list[scenery.Lamp]:
    return scenery.figure(pen, (1 - _across(scene)) * size[0], 0.965 * size[1], min(size) * 0.1)


_PLACES = {
    "lighthouse": _lighthouse,
    "boat": _boat,
    "windmill": _windmill,
    "cabin": _cabin,
    "tree": _tree,
    "figure": _figure,
}


def _mound(scene: Scene, pen: scenery.Pen, size: tuple[int, int], top: float) -> None:
    """Ground to stand on, wherever the hills happen to be."""
    x, wide = _across(scene) * size[0], size[0] * 0.42
    pen.ellipse((x - wide, top * size[1], x + wide, (2.3 - top) * size[1]), fill=255)


def _flock(pen: scenery.Pen, size: tuple[int, int], luck: random.Random) -> None:
    x, y = luck.uniform(0.25, 0.75), luck.uniform(0.14, 0.32)
    for _ in range(luck.randint(5, 11)):
        at = ((x + luck.gauss(0, 0.06)) * size[0], (y + luck.gauss(0, 0.035)) * size[1])
        scenery.bird(pen, *at, min(size) * luck.uniform(0.012, 0.026), luck)


def _balloons(scene: Scene, image: Image.Image) -> Image.Image:
    """Hot air balloons in their own colours, the far ones paler."""
    luck, (width, height) = scene.luck("balloons"), scene.size
    for reach in sorted(luck.uniform(0.06, 0.22) for _ in range(luck.randint(3, 5))):
        mask, stripes = (Image.new("L", (width * FINE, height * FINE)) for _ in range(2))
        x, y, tall = (
            luck.uniform(0.1, 0.9) * width * FINE,
            luck.uniform(0.2, 0.52) * height * FINE,
            reach * min(scene.size) * FINE,
        )
        lamps = scenery.balloon(ImageDraw.Draw(mask), x, y, tall)
        scenery.stripes(ImageDraw.Draw(stripes), x, y, tall)
        silk = luck.choice(((214, 72, 58), (232, 150, 52), (58, 120, 168), (196, 84, 120), (240, 206, 110)))
        haze = 0.55 - 2.2 * reach + (0.3 if scene.mood.palette.moon else 0.0)
        silk = mix(silk, scene.mood.palette.far, max(0.1, haze))
        mask, stripes = mask.reduce(FINE), stripes.reduce(FINE)
        image = Image.composite(Image.new("RGB", scene.size, silk), image, mask)
        pale = mix(silk, (255, 246, 226), 0.55)
        image = Image.composite(Image.new("RGB", scene.size, pale), image, ImageChops.multiply(mask, stripes))
        image = lit(image, lamps, 1 / FINE, 2)
    return image


def _rock(pen: scenery.Pen, x: float, y: float, wide: float, luck: random.Random) -> None:
    heights = ridge(luck, 0.55, 6)
    points = [
        (x + wide * (2 * at / 64 - 1), y - wide * 0.2 * math.cos((at / 64 - 0.5) * math.pi) ** 0.6 * (1 + 0.25 * value))
        for at, value in enumerate(heights)
    ]
    pen.polygon([*points, (x + wide, y + wide * 0.03), (x - wide, y + wide * 0.03)], fill=255)


def _weather(scene: Scene, image: Image.Image) -> Image.Image:
    things, luck, (width, height) = scene.mood.things, scene.luck("weather"), scene.size
    flakes = Image.new("L", (width * FINE, height * FINE))
    pen, unit = ImageDraw.Draw(flakes), scene.unit * FINE
    if "rain" in things:
        for _ in range(900):
            x, y, long = luck.random() * width * FINE, luck.random() * height * FINE, unit * luck.uniform(10, 26)
            pen.line([(x, y), (x - long * 0.16, y + long)], fill=luck.randint(20, 70), width=max(1, round(unit * 0.6)))
    elif "snow" in things:
        for _ in range(520):
            x, y, r = (
                luck.random() * width * FINE,
                luck.random() * height * FINE,
                unit * (0.5 + 2.2 * luck.random() ** 3),
            )
            pen.ellipse((x - r, y - r, x + r, y + r), fill=luck.randint(90, 220))
    image = ImageChops.screen(
        image, tinted(flakes.reduce(FINE).filter(ImageFilter.GaussianBlur(scene.unit * 0.5)), (235, 240, 250))
    )
    if "fireflies" in things:
        sparks = [
            scenery.Lamp(luck.random() * width, luck.uniform(0.5, 0.97) * height, scene.unit * luck.uniform(0.7, 2.2))
            for _ in range(60)
        ]
        image = lit(image, sparks, 1.0, 5)
    return image


def _finish(scene: Scene, image: Image.Image) -> Image.Image:
    """Bloom, vignette, and grain enough to keep the gradients from banding."""
    soft = image.filter(ImageFilter.GaussianBlur(scene.unit * 12)).point(lambda value: int(max(0, value - 110) * 0.42))
    image = ImageChops.screen(image, soft)
    edge = Image.radial_gradient("L").resize(scene.size).point(lambda value: int(255 - max(0, value - 96) * 0.52))
    image = ImageChops.multiply(image, Image.merge("RGB", (edge,) * 3))
    grain = Image.frombytes("L", scene.size, scene.luck("grain").randbytes(scene.size[0] * scene.size[1]))
    grain = grain.point(lambda value: 128 + (value - 128) // 28)
    return ImageChops.add(image, Image.merge("RGB", (grain,) * 3), 1, -128)
