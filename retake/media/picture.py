"""Checking, resizing, cutting and encoding pictures."""

import struct
from base64 import b64encode
from collections.abc import Iterator
from io import BytesIO
from typing import NamedTuple

from PIL import Image, ImageMath, ImageOps, UnidentifiedImageError

from retake.media import MediaError

MAX_PIXELS = 64_000_000  # Midjourney's largest upscale has 4096 × 4096; more is a mistake or a decompression bomb
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")  # what vendors send; Pillow's others (EPS runs Ghostscript) stay disabled
URI_TYPES = {"PNG": "image/png", "JPEG": "image/jpeg"}  # formats that may go into a data URI unchanged
QUALITIES = (92, 85, 75, 65)  # JPEG qualities, tried from the best down
SHRINK = 0.8  # factor for each side when no quality is low enough
MIN_SIDE = 16  # pixels

ORIENTATION = 0x0112  # the EXIF tag
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


def check_picture(data: bytes) -> Size:
    """Return the size of the picture in `data`, with its EXIF orientation applied.

    Raises MediaError if it is not a complete, decodable picture, or has more than `MAX_PIXELS`.
    """
    return Size(*_upright(data).size)


def fit(data: bytes, size: Size) -> bytes:
    """Return the picture in `data` as a PNG of exactly `size`, scaled to cover it and cropped evenly.

    Transparent parts become white. Raises MediaError like `check_picture`.
    """
    return png(ImageOps.fit(flat(data), size, Image.Resampling.LANCZOS))


def quarters(grid: bytes) -> list[bytes]:
    """Return the four pictures of a 2 × 2 grid as PNGs: top left, top right, bottom left, bottom right.

    This is Midjourney's order. Raises MediaError like `check_picture`, and for a grid that is too small.
    """
    picture = flat(grid)
    width, height = picture.width // 2, picture.height // 2
    if not width or not height:
        raise MediaError(f"A grid of {picture.width} × {picture.height} pixels cannot be cut in four.")
    right, bottom = picture.width - width, picture.height - height
    corners = ((0, 0), (right, 0), (0, bottom), (right, bottom))
    return [png(picture.crop((x, y, x + width, y + height))) for x, y in corners]


def data_uri(picture: bytes, max_chars: int) -> str:
    """Return `picture` (a PNG or JPEG) as a data URI of at most `max_chars` characters.

    It is unchanged if it fits; otherwise it becomes the best and largest JPEG that does. Runway accepts 5 MB of encoded
    text [docs.dev.runwayml.com/assets/inputs]. Raises MediaError like `check_picture`, and if nothing fits.
    """
    mime = URI_TYPES.get(_open(picture).format or "")
    if mime and len(uri := _uri(mime, picture)) <= max_chars:
        check_picture(picture)
        return uri
    for jpeg in _ever_smaller(flat(picture)):
        if len(uri := _uri("image/jpeg", jpeg)) <= max_chars:
            return uri
    raise MediaError(f"The picture cannot be made small enough for a data URI of {max_chars} characters.")


def png(picture: Image.Image) -> bytes:
    """Return `picture` as a PNG without metadata."""
    return _saved(picture, "PNG", exif=b"")


def flat(data: bytes) -> Image.Image:
    """Return the picture in `data` upright, in RGB, on white. Raises MediaError like `check_picture`."""
    picture = _upright(data)
    if picture.mode.startswith("I;16"):
        picture = picture.convert("I")
    if picture.mode in ("I", "F"):  # 16-bit greyscale: Pillow would clip it to white
        clear, shades = picture.info.pop("transparency", None), picture
        picture = shades.point(lambda value: value / 257).convert("L")
        if clear is not None:  # the one 16-bit shade that is transparent
            picture.putalpha(ImageMath.lambda_eval(lambda it: it["convert"]((it["at"] != clear) * 255, "L"), at=shades))
    if not picture.mode.startswith("RGB"):
        picture.info.pop("icc_profile", None)  # it describes the original colours
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    layer = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")


def _open(data: bytes) -> Image.Image:
    """Open the picture in `data` without decoding it. Raises MediaError."""
    try:
        picture = Image.open(BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise MediaError(
            f"Not a picture: {len(data)} bytes that begin with {data[:12]!r}. Fetch it again, and look at what arrived."
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise MediaError(f"The picture has more than {MAX_PIXELS} pixels: not safe to open.") from None
    except (OSError, ValueError, SyntaxError, struct.error, MemoryError) as error:
        raise _broken(error) from error
    if picture.width * picture.height > MAX_PIXELS:
        raise MediaError(
            f"The picture has {picture.width} × {picture.height} pixels; more than {MAX_PIXELS} are not safe to open."
        )
    return picture


def _upright(data: bytes) -> Image.Image:
    """Return the picture in `data`, completely decoded and with its EXIF orientation applied. Raises MediaError."""
    try:
        _open(data).verify()  # checks the checksums; the picture is unusable afterwards
        picture = _open(data)
        picture.load()
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, struct.error, MemoryError) as error:
        raise _broken(error) from error
    if picture.mode in ("P", "PA") and picture.palette is None:
        raise _broken(ValueError("it has no palette"))
    turn = _TURNS.get(_orientation(picture) or 1)
    return picture if turn is None else picture.transpose(turn)


def _orientation(picture: Image.Image) -> int | None:
    """Return the EXIF orientation, or None. ImageOps.exif_transpose would rewrite all EXIF data."""
    try:
        found = picture.getexif().get(ORIENTATION)
    except Exception:  # noqa: BLE001 (untrusted metadata may fail in any way, and does not matter)
        return None
    return found if isinstance(found, int) else None


def _broken(error: Exception) -> MediaError:
    return MediaError(f"The picture is broken or cut short ({error}). Fetch it again.")


def _uri(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{b64encode(data).decode('ascii')}"


def _ever_smaller(picture: Image.Image) -> Iterator[bytes]:
    """Yield `picture` as JPEGs of decreasing quality and size."""
    while True:
        for quality in QUALITIES:
            yield _saved(picture, "JPEG", quality=quality, optimize=True)
        size = Size(round(picture.width * SHRINK), round(picture.height * SHRINK))
        if min(size) < MIN_SIDE:
            return
        picture = picture.resize(size, Image.Resampling.LANCZOS)


def _saved(picture: Image.Image, kind: str, **options: object) -> bytes:
    target = BytesIO()
    picture.save(target, kind, **options)
    return target.getvalue()
