"""Landscapes for the picture stand-ins: a sky, hazy ridges, water or a skyline, chosen by the prompt's words.

Every measure is a share of the picture's size, so a picture painted twice as large is the same picture with finer
edges.
"""

import random
import re
from itertools import pairwise
from typing import NamedTuple

from PIL import Image, ImageChops, ImageColor, ImageDraw, ImageFilter

Colour = tuple[int, int, int]
_OVERSAMPLING = 2  # silhouettes are drawn this much larger and reduced, for smooth edges
_NOISE_WIDTH = 640  # pixels; clouds and rock are soft and can be enlarged
_DARK = ("night", "dusk")

# Seven colours each: the sky from top to horizon (4), the light, the farthest ridge, the nearest ridge.
_PALETTES = {
    "night": ("05081a 0b1638 1c305c 466086 e2ecff 364e76 050916", "08061c 1a103e 3c2864 785286 f0e4ff 503c70 080616"),
    "dawn": ("3a4a78 8c80aa f2b2a0 ffdeb2 ffe4be c8a4ac 24263e", "466e96 96aabe f6ceb0 ffe8c8 ffecce bcb2b4 202e3c"),
    "dusk": ("0e1436 263268 685a8e de9286 ffceaa 625a8a 0a0e22", "0c1a32 1a3a5c 547088 e6b28c ffdeb4 4e627c 081220"),
    "sunset": ("282254 863e70 e86c56 ffbe68 ffd68c c46464 1a1228", "182c4e 5c547c e28460 ffce78 ffdc96 b4746c 141628"),
    "golden": ("5c7ea2 bab4a2 f6d08c ffe6a8 ffeebe d6ae80 302822", "4a6a94 a8a8a4 f0c484 ffdc98 fff0c8 c89a70 2a221e"),
    "grey": ("323a46 5a6470 9098a0 c4c8c8 e8ecec a0a8ae 1a2026", "424a4e 767e7e acb0aa d6d4c8 f0eee2 aeb2ac 242a28"),
    "day": ("2c68b2 68a2d8 b2d2ea e6eef0 fffae8 96b8d0 163638", "4288be 86bcd8 cce0e2 f4f0e2 fffaec a6c0c4 1e3e32"),
}
_HOURS = {
    "night": r"night|moon|star|galax|aurora|northern light|milky|firefl|ноч|лун|звезд|звёзд|сияни|галакти",
    "dawn": r"dawn|sunrise|morning|spring|pastel|рассвет|утр|весн",
    "dusk": r"dusk|twilight|blue hour|evening|lantern|сумер|вечер|фонар",
    "sunset": r"sunset|sundown|red sky|warm glow|закат",
    "golden": r"golden|autumn|fall colou?rs|harvest|amber|wheat|осен|золот",
    "grey": r"\bfog|storm|\brain|overcast|grey|gray|gloom|cloudy|туман|дожд|шторм|гроз|пасмурн|сер(ый|ое|ая)",
    "day": r"\bday\b|noon|sunny|bright|blue sky|summer|clear sky|день|днём|полдень|солнечн|лет[ноа]",
}
_PLACES = {
    "city": r"\bcity|cities|\btown|skyline|street|office|rooftop|metropol|urban|город|улиц|крыш|офис",
    "desert": r"desert|dune|\bsand|sahara|пустын|дюн|песк|песч",
    "sea": r"\bsea\b|ocean|coast|harbou?r|lighthouse|beach|\bboat|\bship|sail(ing|boat)|wave|island"
    r"|мор[еяю]|океан|маяк|берег|лодк|парус|остров",
    "lake": r"lake\b|fjord|reflect|озер|отраж|фьорд",
    "mountains": r"mountain|\balp|valley|peak|\bhill|ridge|canyon|гор[аыун]|горн|долин|вершин|холм",
    "forest": r"forest|woods?\b|pine|tree line|cabin|\bfir|river|pond|water|лес|сосн|ел[ьи]|изб|хижин|рек[аеиу]|пруд",
}


class Scene(NamedTuple):
    """What a prompt asks for, and where things are in one variant of it; positions are shares of width and height."""

    prompt: str
    seed: str
    hour: str
    place: str
    colours: list[Colour]
    horizon: float
    sun: tuple[float, float]

    @classmethod
    def of(cls, prompt: str, seed: str) -> "Scene":
        """Return the scene of `prompt`. Its words decide hour and place, so all variants share them."""
        words, theme, rng = prompt.lower(), _rng(prompt), _rng(prompt, seed)
        hours = [hour for hour, pattern in _HOURS.items() if re.search(pattern, words)]
        places = [place for place, pattern in _PLACES.items() if re.search(pattern, words)]
        hour = [*hours, theme.choice(tuple(_PALETTES))][0]
        place = [*places, theme.choice(("mountains", "lake", "forest"))][0]
        colours = [ImageColor.getrgb(f"#{text}")[:3] for text in rng.choice(_PALETTES[hour]).split()]
        sun = (rng.choice((0.28, 0.72)) + rng.uniform(-0.1, 0.1), rng.uniform(0.18, 0.34 if hour == "day" else 0.42))
        return cls(prompt, seed, hour, place, colours, rng.uniform(0.58, 0.64), sun)

    def rng(self, part: object) -> random.Random:
        """Return the random numbers of one part of the picture, so that no part depends on another."""
        return _rng(self.prompt, self.seed, part)


def plain(seed: int, index: int, size: tuple[int, int]) -> Image.Image:
    """Return a picture of one colour, which follows from `seed` and `index`."""
    rng = _rng(seed, index)
    return Image.new("RGB", size, tuple(rng.randrange(40, 216) for _ in range(3)))


def paint(prompt: str, seed: str, size: tuple[int, int]) -> Image.Image:
    """Return the landscape of `prompt` at `size` pixels; another `seed` gives another variant of the same scene."""
    scene = Scene.of(prompt, seed)
    image = _sky(scene, size)
    for depth in (0.0, 0.35, 0.7, 1.0):
        if scene.place in ("sea", "lake") and depth == 0.7:
            image = _water(scene, image)
        elif scene.place == "city":
            image = _skyline(scene, image, depth)
        else:
            image = _ridge(scene, image, depth)
    return _finish(scene, image)


def _sky(scene: Scene, size: tuple[int, int]) -> Image.Image:
    colours, (width, height), (x, y) = scene.colours, size, scene.sun
    image = Image.new("RGB", size, colours[3])
    image.paste(_gradient(colours[:4], (width, round(scene.horizon * height))))
    rng, (stars, pen) = scene.rng("stars"), _canvas(size)
    for _ in range({"night": 500, "dusk": 160}.get(scene.hour, 0)):
        bright, at = rng.random() ** 3, (rng.random(), rng.random() ** 1.4 * scene.horizon)
        _dot(pen, stars, at, 0.0004 + 0.0008 * bright, int(80 + 175 * bright))
    image = _fill(image, (235, 240, 255), stars.reduce(_OVERSAMPLING))
    cover, most = {"grey": (96, 200), "night": (138, 90)}.get(scene.hour, (138, 170))
    clouds = _noise(scene.rng("clouds"), size, 4, 4.5).point([min(most, max(0, i - cover) * 3) for i in range(256)])
    image = _fill(image, _mix(colours[2], colours[4], 0.45), clouds)
    for reach, strength in ((0.8, 0.35), (0.35, 0.35), (0.13, 0.5)):
        side = round(reach * 2 * max(size))
        ball = Image.radial_gradient("L").point([int(255 * max(0, 1 - i / 181) ** 2.2 * strength) for i in range(256)])
        glow = Image.new("L", size)
        glow.paste(ball.resize((side, side)), (round(x * width) - side // 2, round(y * height) - side // 2))
        image = _fill(image, colours[4], glow)
    disc, pen = _canvas(size)
    _dot(pen, disc, scene.sun, 0.025 if scene.hour != "grey" else 0, 255)
    return _fill(image, _mix(colours[4], (255, 255, 255), 0.5), disc.reduce(_OVERSAMPLING))


def _dot(pen: ImageDraw.ImageDraw, mask: Image.Image, at: tuple[float, float], radius: float, light: int) -> None:
    """Draw a disc on `mask`; `at` in shares of its width and height, `radius` of its long side."""
    x, y, r = at[0] * mask.width, at[1] * mask.height, radius * max(mask.size)
    pen.ellipse((x - r, y - r, x + r, y + r), fill=light)


def _ridge(scene: Scene, image: Image.Image, depth: float) -> Image.Image:
    """Add the ridge at `depth`: 0 the farthest, 1 the nearest."""
    rng, (mask, pen) = scene.rng(depth), _canvas(image.size)
    peaks = scene.place in ("mountains", "lake") and depth < 0.5
    tall = 0.2 if peaks else 0.04 if scene.place == "sea" else 0.09
    line = _heights(rng, 0.56 if peaks else 0.42)
    top = scene.horizon + (0.31 + (0.02 if scene.place == "sea" else 0)) * depth**1.3 - tall / 2
    points = [(at / (len(line) - 1) * mask.width, (top - tall * y) * mask.height) for at, y in enumerate(line)]
    pen.polygon([(0, mask.height), *points, (mask.width, mask.height)], fill=255)
    if depth > 0.3 and not peaks and scene.place in ("mountains", "forest", "lake"):
        _pines(pen, points, max(mask.size) * (0.012 + 0.045 * depth**2), rng)
    colour = _mix(scene.colours[5], scene.colours[6], depth)
    layer = _gradient([colour, colour, _mix(colour, scene.colours[3], 0.5 * (1 - depth))], image.size)
    if peaks:
        layer = _rock(scene, layer, depth)
    return Image.composite(layer, image, mask.reduce(_OVERSAMPLING))


def _rock(scene: Scene, layer: Image.Image, depth: float) -> Image.Image:
    """Shade `layer` like rock and snow in slanting light."""
    ground = _noise(scene.rng(f"rock {depth}"), (_NOISE_WIDTH, _NOISE_WIDTH * layer.height // layer.width), 6, 0.7)
    beyond = ImageChops.offset(ground, 2 if scene.sun[0] > 0.5 else -2, -2)
    relief = ImageChops.subtract(beyond, ground, 0.3 + 0.3 * (1 - depth), 128)
    inner = relief.crop((2, 2, ground.width - 2, ground.height - 2))  # an offset comes in again at the other side
    return ImageChops.overlay(layer, Image.merge("RGB", (inner.resize(layer.size, Image.Resampling.BICUBIC),) * 3))


def _pines(pen: ImageDraw.ImageDraw, points: list[tuple[float, float]], tall: float, rng: random.Random) -> None:
    for _ in range(14):
        centre = rng.random()
        for _ in range(rng.randint(2, 7)):
            x, y = points[round(min(1, max(0, rng.gauss(centre, 0.025))) * (len(points) - 1))]
            high = tall * rng.uniform(0.5, 1.1)
            for tier in range(6):
                half, low = high * 0.2 * (1 - tier / 6), y + high * (0.08 - 0.16 * tier)
                pen.polygon([(x - half, low), (x + half, low), (x, low - high * 0.3)], fill=255)


def _skyline(scene: Scene, image: Image.Image, depth: float) -> Image.Image:
    rng, (mask, pen), (lights, lamp) = scene.rng(depth), _canvas(image.size), _canvas(image.size)
    unit, x, lit = max(mask.size) / 1000, 0.0, 0.3 if scene.hour in _DARK else 0.04
    foot = (scene.horizon + 0.36 * depth) * mask.height
    while x < mask.width:
        wide, high = unit * rng.uniform(22, 60), unit * (30 + (190 - 60 * depth) * rng.random() ** 1.8)
        pen.rectangle((x, foot - high, x + wide, mask.height), fill=255)
        for row in range(int(high / unit / 9)):
            for column in range(int(wide / unit / 7)):
                if rng.random() < lit * depth:
                    left, upper = x + unit * (3 + 7 * column), foot - high + unit * (5 + 9 * row)
                    lamp.rectangle((left, upper, left + unit * 2.4, upper + unit * 3.4), fill=230)
        x += wide + rng.choice((0, unit * 4))
    colour = _mix(scene.colours[5], scene.colours[6], depth)
    image = _fill(image, colour, mask.reduce(_OVERSAMPLING))
    return _fill(image, (255, 206, 130), lights.reduce(_OVERSAMPLING))


def _water(scene: Scene, image: Image.Image) -> Image.Image:
    """Add the reflection of what is above the horizon, darker towards the viewer, and the light's path on it."""
    rng, (width, height), (mask, pen) = scene.rng("water"), image.size, _canvas(image.size)
    level = round((scene.horizon + 0.03) * height)
    mirror = image.crop((0, 2 * level - height, width, level)).transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    mirror = mirror.filter(ImageFilter.BoxBlur((width / 300, height / 120)))
    depth = Image.linear_gradient("L").resize(mirror.size).point([40 + i * 5 // 8 for i in range(256)])
    mirror = _fill(mirror, _mix(scene.colours[1], scene.colours[6], 0.5), depth)
    ripples = _noise(rng, mirror.size, 14, 14).point([max(0, i - 128) for i in range(256)])
    image.paste(_fill(mirror, scene.colours[3], ripples), (0, level))
    for _ in range(420):
        y = rng.random() ** 1.6
        x, half = scene.sun[0] + rng.gauss(0, 0.015 + 0.07 * y), 0.002 + 0.014 * y * rng.random()
        row = level / height + y * (1 - level / height)
        box = (x - half, row, x + half, row + 0.0016 + 0.003 * y)
        pen.ellipse([side * mask.size[at % 2] for at, side in enumerate(box)], fill=rng.randint(60, 220))
    return _fill(image, scene.colours[4], mask.reduce(_OVERSAMPLING))


def _finish(scene: Scene, image: Image.Image) -> Image.Image:
    """Add bloom, a vignette, and enough grain to keep the gradients from banding."""
    soft = image.reduce(4).filter(ImageFilter.GaussianBlur(max(image.size) / 330)).resize(image.size)
    image = ImageChops.screen(image, soft.point([int(max(0, i - 110) * 0.4) for i in range(256)] * 3))
    edge = Image.radial_gradient("L").resize(image.size).point([int(255 - max(0, i - 96) * 0.5) for i in range(256)])
    image = ImageChops.multiply(image, Image.merge("RGB", (edge,) * 3))
    grain = Image.frombytes("L", image.size, scene.rng("grain").randbytes(image.width * image.height))
    grain = grain.point([128 + (i - 128) // 28 for i in range(256)])
    return ImageChops.add(image, Image.merge("RGB", (grain,) * 3), 1, -128)


def _heights(rng: random.Random, roughness: float) -> list[float]:
    """Return 1025 heights within -1 … 1 by midpoint displacement: roughness 0.4 is a dune, 0.6 a range of peaks."""
    heights, reach = [rng.uniform(-0.6, 0.6), rng.uniform(-0.6, 0.6)], 0.7
    for _ in range(10):
        middles = [(a + b) / 2 + rng.uniform(-reach, reach) for a, b in pairwise(heights)]
        heights = [height for pair in zip(heights, middles, strict=False) for height in pair] + heights[-1:]
        reach *= roughness
    return [height / max(map(abs, heights)) for height in heights]


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


def _canvas(size: tuple[int, int]) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    mask = Image.new("L", (size[0] * _OVERSAMPLING, size[1] * _OVERSAMPLING))
    return mask, ImageDraw.Draw(mask)


def _gradient(colours: list[Colour], size: tuple[int, int]) -> Image.Image:
    column = Image.new("RGB", (1, len(colours)))
    column.putdata(colours)
    return column.resize(size, Image.Resampling.BICUBIC, box=(0, 0.5, 1, len(colours) - 0.5))


def _fill(image: Image.Image, colour: Colour, mask: Image.Image) -> Image.Image:
    return Image.composite(Image.new("RGB", image.size, colour), image, mask)


def _mix(one: Colour, other: Colour, share: float) -> Colour:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue


def _rng(*parts: object) -> random.Random:
    return random.Random("/".join(map(str, parts)))  # noqa: S311 – art, not secrets
