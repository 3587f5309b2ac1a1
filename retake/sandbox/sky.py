"""The sky of a landscape: its colours, stars, northern lights, sun or moon, and clouds."""

from PIL import Image, ImageChops, ImageDraw, ImageFilter

from retake.sandbox.brush import FINE, between, glow, gradient, tinted
from retake.sandbox.noise import clouds, ridge
from retake.sandbox.palette import mix
from retake.sandbox.scene import Scene


def sky(scene: Scene) -> Image.Image:
    palette, (width, height) = scene.mood.palette, scene.size
    image = gradient(
        scene.size,
        [(share * scene.horizon, colour) for share, colour in zip((0, 0.42, 0.78, 1), palette.sky, strict=True)],
    )
    if palette.stars:
        image = _stars(scene, image)
    if "aurora" in scene.mood.things:
        image = _aurora(scene, image)
    x, y, r = scene.sun
    bright = 0.55 if scene.mood.hour in ("day", "grey") else 0.8
    for reach, strength in ((0.75, bright * 0.45), (0.36, bright * 0.45), (0.15, bright * 0.6)):
        image = glow(image, (x * width, y * height), reach * max(scene.size), palette.light, strength)
    if scene.mood.hour != "grey":
        image = _disc(scene, image, (x * width, y * height), r * min(scene.size))
    return _clouds(scene, image)


def _stars(scene: Scene, image: Image.Image) -> Image.Image:
    luck, palette = scene.luck("stars"), scene.mood.palette
    band = clouds(scene.luck("milky way"), scene.size, cells=3, stretch=1.2).point(lambda value: max(0, value - 150))
    slant = Image.linear_gradient("L").resize((512, 512)).rotate(luck.choice((-32, 28)), Image.Resampling.BICUBIC)
    slant = slant.crop((128, 128, 384, 384)).resize(scene.size)
    slant = slant.point(lambda value: int(max(0.0, 1 - abs(value - 125) / 34) * 255))
    milky = ImageChops.multiply(band, slant).point(lambda value: int(value * palette.stars))
    image = ImageChops.screen(image, tinted(milky, mix(palette.light, palette.sky[2], 0.45)))
    points = Image.new("L", (scene.size[0] * FINE, scene.size[1] * FINE))
    pen, unit = ImageDraw.Draw(points), scene.unit * FINE
    for _ in range(int(520 * palette.stars)):
        x, y = luck.random() * points.width, luck.random() ** 1.4 * scene.horizon * points.height
        bright = luck.random() ** 3
        r = unit * (0.35 + 0.75 * bright)
        pen.ellipse((x - r, y - r, x + r, y + r), fill=int(80 + 175 * bright))
    return ImageChops.screen(image, tinted(points.reduce(FINE), palette.light))


def _aurora(scene: Scene, image: Image.Image) -> Image.Image:
    luck, (width, height) = scene.luck("aurora"), scene.size
    for colour in ((70, 255, 170), (60, 220, 210), (170, 110, 255))[: luck.randint(2, 3)]:
        curtain = Image.new("L", scene.size)
        pen = ImageDraw.Draw(curtain)
        line, top, tall = ridge(luck, 0.42, 9), luck.uniform(0.24, 0.38), luck.uniform(0.16, 0.28)
        shimmer = ridge(luck, 0.75, 9)
        for column, (sway, strength) in enumerate(zip(line, shimmer, strict=True)):
            x = column / (len(line) - 1) * width
            foot = (top + sway * 0.09) * height
            pen.rectangle(
                (x, foot - tall * height, x + width / len(line) + 1, foot), fill=int(max(0, 110 + 140 * strength))
            )
        fade = ImageChops.multiply(between(scene.size, top - tall, top), between(scene.size, top + 0.12, top - 0.02))
        curtain = ImageChops.multiply(curtain.filter(ImageFilter.GaussianBlur(scene.unit * 5)), fade)
        image = ImageChops.screen(image, tinted(curtain, colour))
    return image


def _disc(scene: Scene, image: Image.Image, at: tuple[float, float], r: float) -> Image.Image:
    mask = Image.new("L", (scene.size[0] * FINE, scene.size[1] * FINE))
    pen, (x, y) = ImageDraw.Draw(mask), (at[0] * FINE, at[1] * FINE)
    r *= FINE * (0.8 if scene.mood.palette.moon else 1.0)
    pen.ellipse((x - r, y - r, x + r, y + r), fill=255)
    if scene.mood.palette.moon and scene.luck("crescent").random() < 0.4:
        pen.ellipse((x - r * 1.45, y - r * 1.12, x + r * 0.55, y + r * 0.88), fill=0)
    light = mix(scene.mood.palette.light, (255, 255, 255), 0.5)
    return Image.composite(Image.new("RGB", scene.size, light), image, mask.reduce(FINE))


def _clouds(scene: Scene, image: Image.Image) -> Image.Image:
    palette, luck = scene.mood.palette, scene.luck("clouds")
    heavy = scene.mood.hour == "grey"
    cover = 70 if heavy else luck.randint(120, 165)
    billows = clouds(luck, scene.size, cells=4, stretch=luck.uniform(3.2, 5.5))
    mask = billows.point(lambda value: int(min(1.0, max(0, value - cover) / 110) * (190 if heavy else 150)))
    mask = ImageChops.multiply(mask, between(scene.size, -0.1, scene.horizon))
    if palette.stars > 0.5:
        mask = mask.point(lambda value: value // 3)
    x, y, _ = scene.sun
    shade = Image.new("RGB", scene.size, mix(palette.sky[1], palette.sky[2], 0.65 if not heavy else 0.3))
    lit = mix(palette.light, palette.sky[3], 0.35)
    shade = glow(shade, (x * scene.size[0], y * scene.size[1]), 0.75 * max(scene.size), lit, 1.0)
    return Image.composite(shade, image, mask)
