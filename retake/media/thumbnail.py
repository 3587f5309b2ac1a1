"""The thumbnail of a video: its cover, with words that are legible at a small size."""

from io import BytesIO
from logging import getLogger

from PIL import Image, ImageDraw, ImageFilter

from retake.media import MediaError, picture, typeset
from retake.media.picture import Size

SIZE = Size(1280, 720)
MAX_BYTES = 2_000_000
"""Less than the 2 MB that YouTube accepts [developers.google.com/youtube/v3/docs/thumbnails/set]."""

_QUALITIES = (92, 85, 75, 65, 50, 35, 20)  # JPEG qualities, from the best down
_SIDE, _HEIGHT, _BOTTOM = 0.06, 0.5, 0.08  # fractions of the picture: side margins, text box, space below it
_STROKE = 0.07  # width of the dark edge around the letters, as a fraction of their size
_SHADE = 0.72  # how much darker the cover is at its lower edge
_LETTERS, _EDGE = (255, 255, 255), (12, 12, 16)

_log = getLogger(__name__)


def thumbnail(cover: bytes, words: str) -> bytes:
    """Return a JPEG of 1280 × 720 pixels and less than 2 MB: the picture `cover`, with `words` over its lower half.

    The words may have any length and script, or be empty. The letters are as large as fits, excess words are cut, and
    characters without a font appear as "□". Raises MediaError like `picture.check_picture`.
    """
    ground = picture.flat(picture.fit(cover, SIZE))
    if missing := typeset.scripts_without_letters(words):
        _log.warning("no available font has the letters of %s: the thumbnail shows boxes", ", ".join(missing))
    setting = typeset.typeset(words, SIZE.width * (1 - 2 * _SIDE), SIZE.height * _HEIGHT)
    if setting.lines:
        _write(ground, setting)
    for quality in _QUALITIES:
        jpeg = BytesIO()
        ground.save(jpeg, "JPEG", quality=quality, optimize=True)
        if jpeg.tell() < MAX_BYTES:
            return jpeg.getvalue()
    raise MediaError(f"The thumbnail has {jpeg.tell()} bytes at the lowest quality. Use another cover.")


def _write(ground: Image.Image, setting: typeset.Setting) -> None:
    """Shade the lower part of `ground` and put the words on it."""
    top = SIZE.height * (1 - _BOTTOM) - setting.height
    _darken(ground, top - setting.height * 0.6)
    letters = Image.new("L", SIZE)
    typeset.draw(ImageDraw.Draw(letters), setting, (SIZE.width / 2, top + setting.height / 2), 255)
    stroke = max(2, round(setting.size * _STROKE))
    edge = letters.filter(ImageFilter.GaussianBlur(stroke / 2)).point(lambda value: min(255, value * 6))
    ground.paste(_EDGE, mask=edge)
    ground.paste(_LETTERS, mask=letters)


def _darken(ground: Image.Image, top: float) -> None:
    """Darken `ground` gradually from `top` down."""
    start = max(0.0, top)
    column = Image.new("L", (1, SIZE.height))
    depth = (min(1.0, max(0.0, (y - start) / (SIZE.height - start) * 1.5)) for y in range(SIZE.height))
    column.putdata([round(255 * _SHADE * part) for part in depth])
    ground.paste(_EDGE, mask=column.resize(SIZE))
