"""A placeholder for a picture that could not be made: the topic, typeset on a calm background."""

from hashlib import sha256
from logging import getLogger
from math import cos, radians, sin

from PIL import Image, ImageDraw, ImageFilter

from retake.media import MediaError, picture, typeset
from retake.media.picture import Size

MARGIN = 0.11  # left and right, as a fraction of the width; more than the zoom of a video cuts off
HEADROOM = 0.16  # above and below, as a fraction of the height
FIRST_HUE, HUES = 150, 220  # degrees: from green through blue to red, without dark yellow, which looks like mud
GRAIN = 48  # points per side on which the gradient is computed before it is scaled
SHADOW = 0.5  # darkness, 0 … 1

_log = getLogger(__name__)

Colour = tuple[float, float, float]  # red, green, blue


def placeholder(topic: str, size: Size) -> bytes:
    """Return a PNG of `size` with `topic` in the largest letters that fit. The same topic gives the same picture.

    The topic may have any length and script; characters without a font appear as "□". Raises MediaError for an
    impossible size.
    """
    if min(size) < 1 or size.width * size.height > picture.MAX_PIXELS:
        raise MediaError(f"A picture cannot have {size.width} × {size.height} pixels.")
    seed = int.from_bytes(sha256(topic.encode("utf-8", "surrogatepass")).digest()[:2])
    if missing := typeset.scripts_without_letters(topic):
        _log.warning("no available font has the letters of %s: the placeholder shows boxes", ", ".join(missing))
    hue = FIRST_HUE + seed % HUES
    ground = background(hue, size)
    setting = typeset.typeset(topic, size.width * (1 - 2 * MARGIN), size.height * (1 - 2 * HEADROOM))
    letters = Image.new("L", size)
    typeset.draw(ImageDraw.Draw(letters), setting, (size.width / 2, size.height / 2), 255)
    shadow = letters.filter(ImageFilter.GaussianBlur(setting.size / 7)).point(lambda value: int(value * SHADOW))
    ground.paste(_whole(colour(0.16, 0.04, hue)), mask=shadow)
    ground.paste(_whole(colour(0.98, 0.012, hue)), mask=letters)
    return picture.png(ground)


def background(hue: float, size: Size) -> Image.Image:
    """Return a soft gradient around `hue` (degrees), dark enough for white letters everywhere."""
    grid = [n / (GRAIN - 1) for n in range(GRAIN)]
    red, green, blue = zip(*(_ground(hue, x, y) for y in grid for x in grid), strict=True)
    return Image.merge("RGB", [_scaled(red, size), _scaled(green, size), _scaled(blue, size)])


def _scaled(values: tuple[float, ...], size: Size) -> Image.Image:
    # Rounded after scaling: otherwise the steps of the small grid would show.
    small = Image.new("F", (GRAIN, GRAIN))
    small.putdata([value + 0.5 for value in values])
    return small.resize(size, Image.Resampling.BICUBIC).convert("L")


def _ground(hue: float, x: float, y: float) -> Colour:
    """Return the background colour at `x`, `y` (0 … 1): light at the upper left, dark at the lower right."""
    depth = 0.4 * x + 0.6 * y
    depth *= depth * (3 - 2 * depth)
    return colour(0.47 - 0.23 * depth, 0.105 - 0.04 * depth, hue - 25 + 50 * depth)


def colour(lightness: float, chroma: float, hue: float) -> Colour:
    """Return the sRGB colour (0 … 255) of an OKLCH colour, in which equal lightness looks equally light in every hue.

    The numbers are from bottosson.github.io/posts/oklab.
    """
    a, b = chroma * cos(radians(hue)), chroma * sin(radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        _srgb(4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short),
        _srgb(-1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short),
        _srgb(-0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short),
    )


def _srgb(linear: float) -> float:
    linear = min(1.0, max(0.0, linear))
    return 255 * (12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055)


def _whole(colour: Colour) -> tuple[int, ...]:
    return tuple(round(part) for part in colour)
