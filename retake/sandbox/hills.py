"""The ground of a landscape: ranges of hills in haze, with rock, snow, trees, or a town upon them."""

import random

from PIL import Image, ImageChops, ImageDraw, ImageFilter

from retake.sandbox import scenery
from retake.sandbox.brush import FINE, between, glow, gradient, lit
from retake.sandbox.noise import clouds, relief, ridge
from retake.sandbox.palette import Colour, mix
from retake.sandbox.scene import Scene


def hills(scene: Scene, image: Image.Image, *, near: bool) -> Image.Image:
    """The hills from far to near; with water, the near ones stand before it and only the far ones behind."""
    count = {"sea": 3, "lake": 4, "desert": 5}.get(scene.mood.place, 6)
    split = count - 1 if scene.water else count
    for layer in range(split, count) if near else range(split):
        depth = layer / (count - 1)  # 0 far … 1 near
        image = _range(scene, image, layer, depth)
    return image


def _range(scene: Scene, image: Image.Image, layer: int, depth: float) -> Image.Image:
    luck, (width, height) = scene.luck(f"range {layer}"), scene.size
    base, reach = _stand(scene, depth, luck)
    rough = {"desert": 0.36, "sea": 0.5}.get(scene.mood.place, 0.56 - 0.1 * depth)
    heights = ridge(luck, rough)
    heights = [height_ * _bank(scene, depth, at / len(heights)) for at, height_ in enumerate(heights)]
    mask = Image.new("L", (width * FINE, height * FINE))
    pen = ImageDraw.Draw(mask)
    line = [
        (at / (len(heights) - 1) * width * FINE, (base - value * reach) * height * FINE)
        for at, value in enumerate(heights)
    ]
    pen.polygon([(0, height * FINE), *line, (width * FINE, height * FINE)], fill=255)
    trees = Image.new("L", mask.size)
    lamps = _growth(scene, ImageDraw.Draw(trees), line, depth, luck)
    shape = mask.reduce(FINE)
    body = _body(scene, depth, base - reach, base + (0.2 if not scene.water else 0.03), luck)
    if depth < 0.5 and (scene.mood.place not in ("city", "sea", "desert") or "snow" in scene.mood.things):
        body = _snow(scene, body, shape, depth, luck)
    image = Image.composite(body, image, shape)
    wood = Image.new("RGB", scene.size, mix(_tone(scene, depth), scene.mood.palette.near, 0.4))
    return lit(Image.composite(wood, image, trees.reduce(FINE)), lamps, 1 / FINE)


def _tone(scene: Scene, depth: float) -> Colour:
    """The colour of a range: haze takes the far ones."""
    palette = scene.mood.palette
    return mix(mix(palette.far, palette.sky[3], 0.25), palette.near, depth**0.8)


def _stand(scene: Scene, depth: float, luck: random.Random) -> tuple[float, float]:
    """The base line and the height of a range, as shares of the height."""
    place = scene.mood.place
    if scene.water and depth == 1:
        return 0.97, 0.10
    if place == "sea":
        return scene.horizon - 0.005, 0.045 + 0.05 * (1 - depth)
    if scene.water:
        return scene.horizon - 0.03 + 0.03 * depth, 0.24 - 0.17 * depth
    if place == "desert":
        return scene.horizon + 0.02 + 0.36 * depth**1.3, 0.05 + 0.07 * depth
    if place == "city":
        return scene.horizon + 0.02 + 0.34 * depth**1.2, 0.16 * (1 - depth) + 0.02
    return scene.horizon - 0.10 + 0.5 * depth**1.25 + luck.uniform(-0.015, 0.015), 0.2 - 0.1 * depth


def _bank(scene: Scene, depth: float, at: float) -> float:
    """How much of its height a range has at `at`, a share of the width: a shore in front keeps to one side."""
    if not scene.water or depth < 1:
        return 1.0
    side = at if scene.sun[0] < 0.5 else 1 - at
    return 0.25 + 1.4 * max(0.0, side - 0.45)


def _growth(
    scene: Scene, pen: scenery.Pen, line: list[tuple[float, float]], depth: float, luck: random.Random
) -> list[scenery.Lamp]:
    height = scene.size[1] * FINE
    if scene.mood.place == "city" and depth > 0.15:
        tall = height * (0.16 + 0.2 * depth)
        base = sum(y for _, y in line) / len(line) + tall * 0.25
        windows = scenery.skyline(pen, scene.size[0] * FINE, base, tall, luck) if depth < 0.95 else []
        return windows if scene.mood.hour not in ("day", "golden") else []
    wooded = "pines" in scene.mood.things or scene.mood.place in ("forest", "lake", "mountains")
    if not wooded or depth < 0.5 or scene.mood.place == "city":
        return []
    dense = scene.mood.place == "forest" or "pines" in scene.mood.things
    tall = height * (0.018 + (0.34 if dense else 0.17) * max(0.0, depth - 0.45) ** 1.5)
    thick = 0.8 if dense else 0.45
    groves = ridge(luck, 0.6, 8)
    for _ in range(int(scene.size[0] * FINE / tall * 6 * thick)):
        at = luck.random()
        if groves[int(at * (len(groves) - 1))] > 0.5 - thick:
            x, y = line[int(at * (len(line) - 1))]
            scenery.pine(pen, x, y + tall * 0.06, tall * luck.uniform(0.5, 1.15), luck)
    return []


def _body(scene: Scene, depth: float, top: float, foot: float, luck: random.Random) -> Image.Image:
    """The colours of a range: rock at the crest, mist at the foot, and light from the sun's side."""
    palette, (width, height) = scene.mood.palette, scene.size
    colour = _tone(scene, depth)
    if "snow" in scene.mood.things:
        colour = mix(colour, mix((238, 244, 255), palette.far, 0.45), 0.5 if depth >= 0.5 else 0.15)
    mist = mix(colour, mix(palette.far, palette.sky[3], 0.6), 0.85 * (1 - depth) + 0.1)
    body = gradient(scene.size, [(top, colour), (max(top + 0.01, foot), mist), (1.0, mist)])
    body = _textured(scene, body, depth, (top, foot), luck)
    x, y, _ = scene.sun
    strength = 0.42 * (1 - depth) + (0.16 if scene.mood.place == "desert" else 0.05)
    return glow(body, (x * width, y * height), 0.5 * max(scene.size), palette.light, strength)


def _textured(
    scene: Scene, body: Image.Image, depth: float, span: tuple[float, float], luck: random.Random
) -> Image.Image:
    """Ripples on sand, and on far mountains rock, from the crest downwards; near hills are dark, and plain."""
    if scene.mood.place == "desert":
        grain = clouds(luck, scene.size, cells=40, stretch=9).point(lambda value: int(128 + (value - 128) * 0.16))
    elif scene.mood.place != "city" and depth < 0.6:
        rough, (top, foot) = 0.61 - 0.8 * depth, span
        rock = relief(luck, scene.size, scene.sun[0] < 0.5)
        rock = rock.point(lambda value: int(128 + (value - 128) * rough))
        grain = Image.composite(
            rock, Image.new("L", scene.size, 128), between(scene.size, top + (foot - top) * 0.75, top)
        )
    else:
        return body
    return ImageChops.overlay(body, Image.merge("RGB", (grain,) * 3))


def _snow(scene: Scene, body: Image.Image, shape: Image.Image, depth: float, luck: random.Random) -> Image.Image:
    """Snow where a range is highest, on what faces the light; with snow in the words, it comes down to the foot."""
    deep = "snow" in scene.mood.things
    drop = int(scene.size[1] * (0.16 if deep else 0.07))
    inside = ImageChops.offset(shape, 0, drop)
    inside.paste(0, (0, 0, scene.size[0], drop))
    crest = ImageChops.subtract(shape, inside.filter(ImageFilter.GaussianBlur(drop / 2)))
    rock = relief(luck, scene.size, scene.sun[0] < 0.5, cells=9)
    edge = 104 if deep else 124
    patches = rock.point(lambda value: int(min(1.0, max(0, value - edge) / 24) * 255))
    white = mix(mix((240, 246, 255), scene.mood.palette.light, 0.3), scene.mood.palette.far, 0.3 + 0.4 * depth)
    strength = (0.9 if deep else 0.75) * (1 - 0.6 * depth)
    mask = ImageChops.multiply(crest, patches).point(lambda value: int(value * strength))
    return Image.composite(Image.new("RGB", scene.size, white), body, mask)
