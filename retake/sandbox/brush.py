"""Strokes that every painter needs: gradients, glows, tints, lights. Sizes in pixels, heights in shares of it all."""

from itertools import pairwise

from PIL import Image, ImageChops, ImageDraw, ImageFilter

from retake.sandbox.palette import Colour, mix
from retake.sandbox.scenery import Lamp

FINE = 2  # silhouettes are drawn this much larger and reduced, for smooth edges


def gradient(size: tuple[int, int], stops: list[tuple[float, Colour]]) -> Image.Image:
    """Colours from top to bottom; a stop is a share of the height and the colour there."""
    column = Image.new("RGB", (1, 512))
    for row in range(512):
        column.putpixel((0, row), _colour_at(row / 511, stops))
    return column.resize(size, Image.Resampling.BICUBIC)


def _colour_at(share: float, stops: list[tuple[float, Colour]]) -> Colour:
    if share <= stops[0][0]:
        return stops[0][1]
    for (low, one), (high, other) in pairwise(stops):
        if share <= high:
            return mix(one, other, (share - low) / max(1e-6, high - low))
    return stops[-1][1]


def between(size: tuple[int, int], none: float, full: float) -> Image.Image:
    """A mask that goes from 0 at the height `none` to 255 at `full` (shares of the height), and on as it ends."""
    column = Image.new("L", (1, 512))
    for row in range(512):
        column.putpixel((0, row), int(255 * min(1.0, max(0.0, (row / 511 - none) / (full - none)))))
    return column.resize(size, Image.Resampling.BICUBIC)


def glow(image: Image.Image, at: tuple[float, float], reach: float, colour: Colour, strength: float) -> Image.Image:
    """`image` with light of `colour` around `at`, fading out at `reach` pixels."""
    side = max(2, round(reach * 2))
    ball = Image.radial_gradient("L").point(lambda value: int(255 * max(0.0, 1 - value / 181) ** 2.2 * strength))
    mask = Image.new("L", image.size)
    mask.paste(ball.resize((side, side), Image.Resampling.BICUBIC), (round(at[0] - reach), round(at[1] - reach)))
    return Image.composite(Image.new("RGB", image.size, colour), image, mask)


def tinted(mask: Image.Image, colour: Colour) -> Image.Image:
    """`colour` where `mask` is 255, black where it is 0."""
    return Image.merge("RGB", [mask.point(lambda value, part=part: value * part // 255) for part in colour])


def lit(image: Image.Image, lamps: list[Lamp], scale: float, halo: float = 0.0) -> Image.Image:
    """`image` with warm lights; `halo` is how far each shines, in radii."""
    if not lamps:
        return image
    warm: Colour = (255, 206, 130)
    shine, points = Image.new("L", image.size), ImageDraw.Draw(image)
    pen = ImageDraw.Draw(shine)
    for lamp in lamps:
        x, y, r = lamp.x * scale, lamp.y * scale, lamp.r * scale
        points.rectangle((x - r * 0.8, y - r, x + r * 0.8, y + r), fill=warm)
        pen.ellipse((x - r * halo, y - r * halo, x + r * halo, y + r * halo), fill=200)
    if not halo:
        return image
    blur = max(lamp.r for lamp in lamps) * scale * halo * 0.8
    return ImageChops.screen(image, tinted(shine.filter(ImageFilter.GaussianBlur(blur)), warm))
