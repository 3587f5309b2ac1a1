"""Landscapes for the picture stand-ins: a sky, hazy ridges, water or a skyline, chosen by the prompt's words.

All measures are fractions of the picture's size: at twice the size, the picture is the same with finer edges.
"""

import json
import random
import re
from importlib.resources import files
from itertools import pairwise, product
from typing import NamedTuple

from PIL import Image, ImageChops, ImageColor, ImageDraw, ImageFilter

Colour = tuple[int, int, int]
_NOISE_WIDTH = 640  # pixels; clouds and rock are soft and can be enlarged

# Hours and places, with regular expressions for the words that name them, and the palettes of each hour: four colours
# of the sky from top to horizon, then those of the light, the farthest ridge and the nearest ridge.
_DATA = json.loads(files("retake.sandbox").joinpath("landscape.json").read_text("utf-8"))


class Scene(NamedTuple):
    """The scene that a prompt asks for, and positions in one variant of it, as fractions of the width and height."""

    name: str
    hour: str
    place: str
    colours: list[Colour]
    horizon: float
    sun: tuple[float, float]

    @classmethod
    def of(cls, prompt: str, seed: str) -> "Scene":
        """Return the scene for `prompt`. Its words determine hour and place, so all variants share them."""
        words, theme, rng = prompt.lower(), random.Random(prompt), random.Random(f"{prompt}/{seed}")
        hours = [hour for hour, item in _DATA["hours"].items() if re.search("|".join(item["words"]), words)]
        places = [place for place, patterns in _DATA["places"].items() if re.search("|".join(patterns), words)]
        hour = [*hours, theme.choice(tuple(_DATA["hours"]))][0]
        place = [*places, theme.choice(("mountains", "lake", "forest"))][0]
        colours = [ImageColor.getrgb(f"#{text}")[:3] for text in rng.choice(_DATA["hours"][hour]["palettes"]).split()]
        sun = (rng.choice((0.28, 0.72)) + rng.uniform(-0.1, 0.1), rng.uniform(0.18, 0.34 if hour == "day" else 0.42))
        return cls(f"{prompt}/{seed}", hour, place, colours, rng.uniform(0.58, 0.64), sun)

    def rng(self, part: object) -> random.Random:
        """Return a source of random numbers for one part of the picture, so that no part depends on another."""
        return random.Random(f"{self.name}/{part}")


class _Mask:
    """A silhouette, drawn at twice the size and reduced to smooth its edges. Its unit is 1/1000 of the long side."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.image = Image.new("L", (size[0] * 2, size[1] * 2))
        self.pen, (self.width, self.height) = ImageDraw.Draw(self.image), self.image.size
        self.unit = max(self.image.size) / 1000

    def ellipse(self, x: float, y: float, radius: float, light: int = 255, flat: float = 1) -> None:
        """Draw an ellipse around `x`, `y` (fractions of the size), `radius` units wide and `flat` times as high."""
        x, y, r = x * self.width, y * self.height, radius * self.unit
        self.pen.ellipse((x - r, y - r * flat, x + r, y + r * flat), fill=light)

    def fill(self, image: Image.Image, layer: Image.Image | Colour) -> Image.Image:
        """Return `image` with `layer` where the silhouette is."""
        return _blend(image, layer, self.image.reduce(2))


def plain(seed: int, index: int, size: tuple[int, int]) -> Image.Image:
    """Return a picture in one colour, determined by `seed` and `index`."""
    rng = random.Random(f"{seed}/{index}")
    return Image.new("RGB", size, tuple(rng.randrange(40, 216) for _ in range(3)))


def paint(prompt: str, seed: str, size: tuple[int, int]) -> Image.Image:
    """Return the landscape for `prompt` at `size` pixels; another `seed` gives another variant of the same scene."""
    scene = Scene.of(prompt, seed)
    image = _sky(scene, size)
    for depth in (0.0, 0.35, 0.7, 1.0):  # from the farthest to the nearest
        if scene.place in ("sea", "lake") and depth == 0.7:
            image = _water(scene, image)
        else:
            image = _skyline(scene, image, depth) if scene.place == "city" else _ridge(scene, image, depth)
    return _finish(scene, image)


def _sky(scene: Scene, size: tuple[int, int]) -> Image.Image:
    colours, (width, height), (x, y) = scene.colours, size, scene.sun
    image = Image.new("RGB", size, colours[3])
    image.paste(_gradient(colours[:4], (width, round(scene.horizon * height))))
    rng, stars, disc = scene.rng("stars"), _Mask(size), _Mask(size)
    for _ in range({"night": 500, "dusk": 160}.get(scene.hour, 0)):
        bright = rng.random() ** 3
        stars.ellipse(rng.random(), rng.random() ** 1.4 * scene.horizon, 0.4 + 0.8 * bright, int(80 + 175 * bright))
    cover, most = {"grey": (96, 200), "night": (138, 90)}.get(scene.hour, (138, 170))
    clouds = _noise(scene.rng("clouds"), size, 4, 4.5).point([min(most, max(0, i - cover) * 3) for i in range(256)])
    image = _blend(stars.fill(image, (235, 240, 255)), _mix(colours[2], colours[4], 0.45), clouds)
    for reach, strength in ((0.8, 0.35), (0.35, 0.35), (0.13, 0.5)):
        side = round(reach * 2 * max(size))
        ball = Image.radial_gradient("L").point([int(255 * max(0, 1 - i / 181) ** 2.2 * strength) for i in range(256)])
        glow = Image.new("L", size)
        glow.paste(ball.resize((side, side)), (round(x * width) - side // 2, round(y * height) - side // 2))
        image = _blend(image, colours[4], glow)
    disc.ellipse(x, y, 25 if scene.hour != "grey" else 0)
    return disc.fill(image, _mix(colours[4], (255, 255, 255), 0.5))


def _ridge(scene: Scene, image: Image.Image, depth: float) -> Image.Image:
    rng, mask, sea = scene.rng(depth), _Mask(image.size), scene.place == "sea"
    peaks = scene.place in ("mountains", "lake") and depth < 0.5
    tall = 0.2 if peaks else 0.04 if sea else 0.09
    top = scene.horizon + (0.33 if sea else 0.31) * depth**1.3 - tall / 2
    line = [(x * mask.width, (top - tall * y) * mask.height) for x, y in _heights(rng, 0.56 if peaks else 0.42)]
    mask.pen.polygon([(0, mask.height), *line, (mask.width, mask.height)], fill=255)
    if depth > 0.3 and not peaks and scene.place in ("mountains", "forest", "lake"):
        _pines(mask, line, 12 + 45 * depth**2, rng)
    colour = _mix(scene.colours[5], scene.colours[6], depth)
    layer = _gradient([colour, colour, _mix(colour, scene.colours[3], 0.5 * (1 - depth))], image.size)
    if peaks:  # rock and snow in slanting light
        ground = _noise(rng, (_NOISE_WIDTH, _NOISE_WIDTH * layer.height // layer.width), 6, 0.7)
        lit = ImageChops.subtract(ImageChops.offset(ground, 2, -2), ground, 0.6 - 0.3 * depth, 128)
        lit = lit.crop((2, 0, ground.width, ground.height - 2)).resize(layer.size, Image.Resampling.BICUBIC)
        layer = ImageChops.overlay(layer, Image.merge("RGB", (lit,) * 3))
    return mask.fill(image, layer)


def _pines(mask: _Mask, line: list[tuple[float, float]], tall: float, rng: random.Random) -> None:
    """Draw groups of pines along `line`, up to `tall` units high."""
    for centre in (rng.random() for _ in range(14)):
        for _ in range(rng.randint(2, 7)):
            x, y = line[round(min(1, max(0, rng.gauss(centre, 0.025))) * (len(line) - 1))]
            high = mask.unit * tall * rng.uniform(0.5, 1.1)
            for tier in range(6):
                half, low = high * 0.2 * (1 - tier / 6), y + high * (0.08 - 0.16 * tier)
                mask.pen.polygon([(x - half, low), (x + half, low), (x, low - high * 0.3)], fill=255)


def _skyline(scene: Scene, image: Image.Image, depth: float) -> Image.Image:
    rng, houses, windows = scene.rng(depth), _Mask(image.size), _Mask(image.size)
    unit, x, lit = houses.unit, 0.0, depth * (0.3 if scene.hour in ("night", "dusk") else 0.04)
    foot = (scene.horizon + 0.36 * depth) * houses.height
    while x < houses.width:
        wide, high = rng.uniform(22, 60), 30 + (190 - 60 * depth) * rng.random() ** 1.8
        houses.pen.rectangle((x, foot - high * unit, x + wide * unit, houses.height), fill=255)
        for row, column in product(range(int(high / 9)), range(int(wide / 7))):
            if rng.random() < lit:
                left, upper = x + unit * (3 + 7 * column), foot - unit * (high - 5 - 9 * row)
                windows.pen.rectangle((left, upper, left + unit * 2.4, upper + unit * 3.4), fill=230)
        x += unit * (wide + rng.choice((0, 4)))
    image = houses.fill(image, _mix(scene.colours[5], scene.colours[6], depth))
    return windows.fill(image, (255, 206, 130))


def _water(scene: Scene, image: Image.Image) -> Image.Image:
    """Add the reflection of what is above the horizon, darker towards the viewer, and the light's path on it."""
    rng, (width, height), path = scene.rng("water"), image.size, _Mask(image.size)
    level = round((scene.horizon + 0.03) * height)
    mirror = image.crop((0, 2 * level - height, width, level)).transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    mirror = mirror.filter(ImageFilter.BoxBlur((width / 300, height / 120)))
    depth = Image.linear_gradient("L").resize(mirror.size).point([40 + i * 5 // 8 for i in range(256)])
    mirror = _blend(mirror, _mix(scene.colours[1], scene.colours[6], 0.5), depth)
    ripples = _noise(rng, mirror.size, 14, 14).point([max(0, i - 128) for i in range(256)])
    image.paste(_blend(mirror, scene.colours[3], ripples), (0, level))
    for _ in range(420):
        near = rng.random() ** 1.6
        x, y = scene.sun[0] + rng.gauss(0, 0.015 + 0.07 * near), level / height + near * (1 - level / height)
        path.ellipse(x, y, 2 + 14 * near * rng.random(), rng.randint(60, 220), flat=0.12)
    return path.fill(image, scene.colours[4])


def _finish(scene: Scene, image: Image.Image) -> Image.Image:
    """Add bloom, a vignette, and enough grain to keep the gradients from banding."""
    soft = image.reduce(4).filter(ImageFilter.GaussianBlur(max(image.size) / 330)).resize(image.size)
    image = ImageChops.screen(image, soft.point([int(max(0, i - 110) * 0.4) for i in range(256)] * 3))
    edge = Image.radial_gradient("L").resize(image.size).point([int(255 - max(0, i - 96) * 0.5) for i in range(256)])
    image = ImageChops.multiply(image, Image.merge("RGB", (edge,) * 3))
    grain = Image.frombytes("L", image.size, scene.rng("grain").randbytes(image.width * image.height))
    grain = grain.point([128 + (i - 128) // 28 for i in range(256)])
    return ImageChops.add(image, Image.merge("RGB", (grain,) * 3), 1, -128)


def _heights(rng: random.Random, roughness: float) -> list[tuple[float, float]]:
    """Return a line of points from 0 to 1 with heights within -1 … 1; roughness 0.4 is a dune, 0.6 a range of peaks."""
    heights, reach = [rng.uniform(-0.6, 0.6), rng.uniform(-0.6, 0.6)], 0.7
    for _ in range(10):  # midpoint displacement
        middles = [(a + b) / 2 + rng.uniform(-reach, reach) for a, b in pairwise(heights)]
        heights = [height for pair in zip(heights, middles, strict=False) for height in pair] + heights[-1:]
        reach *= roughness
    most = max(map(abs, heights))
    return [(at / (len(heights) - 1), height / most) for at, height in enumerate(heights)]


def _noise(rng: random.Random, size: tuple[int, int], cells: int, stretch: float) -> Image.Image:
    """Return soft grey billows, `cells` of them from top to bottom, each `stretch` times as wide as high."""
    work = (_NOISE_WIDTH, max(2, round(_NOISE_WIDTH * size[1] / size[0])))
    sheet = Image.new("L", work, 128)
    for octave in range(5):
        down, share = cells * 2**octave, 0.7 * 0.55**octave
        across = max(2, round(down * size[0] / size[1] / stretch))
        grain = Image.frombytes("L", (across, down), rng.randbytes(across * down)).resize(work)
        sheet = ImageChops.add(sheet, grain.point([int((i - 128) * share + 128) for i in range(256)]), 1, -128)
    return sheet.resize(size, Image.Resampling.BICUBIC)


def _gradient(colours: list[Colour], size: tuple[int, int]) -> Image.Image:
    column = Image.new("RGB", (1, len(colours)))
    column.putdata(colours)
    return column.resize(size, Image.Resampling.BICUBIC, box=(0, 0.5, 1, len(colours) - 0.5))


def _blend(image: Image.Image, layer: Image.Image | Colour, mask: Image.Image) -> Image.Image:
    over = layer if isinstance(layer, Image.Image) else Image.new("RGB", image.size, layer)
    return Image.composite(over, image, mask)


def _mix(one: Colour, other: Colour, share: float) -> Colour:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue
