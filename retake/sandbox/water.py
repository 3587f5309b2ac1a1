"""The water of a landscape: what stands above it, upside down, and the path of light."""

import random

from PIL import Image, ImageChops, ImageDraw, ImageFilter

from retake.sandbox.brush import FINE, glow, gradient, tinted
from retake.sandbox.noise import clouds
from retake.sandbox.palette import mix
from retake.sandbox.scene import Scene

ROWS = 260  # of waves, from the horizon to the front


def water(scene: Scene, image: Image.Image) -> Image.Image:
    """Everything above the horizon, upside down, darker and broken by waves; the light makes a path on it."""
    (width, height), palette, luck = scene.size, scene.mood.palette, scene.luck("water")
    line = round(scene.horizon * height)
    deep = height - line
    mirror = image.crop((0, max(0, line - round(deep * 1.35)), width, line)).transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    mirror = mirror.resize((width, deep)).filter(ImageFilter.GaussianBlur(scene.unit * 1.6))
    calm = 0.4 if scene.mood.place == "lake" else 1.0
    mirror = _rippled(mirror, calm, luck)
    dark = gradient(
        (width, deep), [(0, mix(palette.sky[3], palette.sky[1], 0.3)), (1, mix(palette.near, palette.sky[1], 0.45))]
    )
    mirror = Image.blend(mirror, dark, 0.3 if scene.mood.place == "lake" else 0.46)
    swell = clouds(luck, (width, deep), cells=26, stretch=10).point(
        lambda value: int(128 + (value - 128) * 0.26 * calm)
    )
    mirror = ImageChops.overlay(mirror, Image.merge("RGB", (swell,) * 3))
    image.paste(_glitter(scene, mirror, luck), (0, line))
    return glow(image, (scene.sun[0] * width, line), 0.34 * max(scene.size), palette.light, 0.22)


def _rippled(mirror: Image.Image, rough: float, luck: random.Random) -> Image.Image:
    """Rows pushed to and fro, the more the nearer they are."""
    width, deep = mirror.size
    out, sway = mirror.copy(), 0.0
    for row in range(ROWS):
        near = row / ROWS
        sway = 0.55 * sway + luck.uniform(-1, 1) * rough * (0.0015 + 0.011 * near) * width
        top, foot = round(row * deep / ROWS), round((row + 1) * deep / ROWS)
        if foot > top:
            strip = mirror.crop((0, top, width, foot))
            out.paste(ImageChops.offset(strip, round(sway), 0), (0, top))
    return out.filter(ImageFilter.GaussianBlur(max(0.4, width / 1600)))


def _glitter(scene: Scene, mirror: Image.Image, luck: random.Random) -> Image.Image:
    width, deep = mirror.size
    sparks = Image.new("L", (width * FINE, deep * FINE))
    pen = ImageDraw.Draw(sparks)
    for _ in range(900 if scene.mood.hour != "grey" else 250):
        near = luck.random() ** 1.25
        spread = (0.018 + 0.085 * near) * luck.gauss(0, 1)
        x, y = (scene.sun[0] + spread) * width * FINE, near * deep * FINE
        long, thick = (1.5 + 13 * near) * scene.unit * FINE * luck.random(), (0.35 + 1.3 * near) * scene.unit * FINE
        pen.ellipse(
            (x - long, y - thick / 2, x + long, y + thick / 2), fill=int(luck.uniform(70, 235) * (1 - 0.45 * near))
        )
    sparks = sparks.reduce(FINE).filter(ImageFilter.GaussianBlur(scene.unit * 0.35))
    return ImageChops.screen(mirror, tinted(sparks, scene.mood.palette.light))
