import base64
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from retake.media import MediaError
from retake.media.picture import Size, check_picture, data_uri, fit, flat, quarters

RED, GREEN, BLUE, WHITE = (250, 0, 0), (0, 250, 0), (0, 0, 250), (255, 255, 255)


def saved(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    target = BytesIO()
    image.save(target, kind, **options)
    return target.getvalue()


def opened(data: bytes) -> Image.Image:
    return Image.open(BytesIO(data))


def halves(size: tuple[int, int], left: tuple[int, ...], right: tuple[int, ...]) -> Image.Image:
    image = Image.new("RGB", size, left)
    image.paste(right, (size[0] // 2, 0, *size))
    return image


def noise(side: int) -> bytes:
    return saved(Image.effect_noise((side, side), 90).convert("RGB"))


def turned(image: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(image, "JPEG", quality=95, exif=exif)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_what_vendors_send_is_a_picture(kind: str) -> None:
    assert check_picture(saved(Image.new("RGB", (40, 30), RED), kind)) == Size(40, 30)


@pytest.mark.parametrize("data", [b"", b"<html>busy</html>", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF-3.0\n"])
def test_what_is_not_a_picture_is_refused(data: bytes) -> None:
    with pytest.raises(MediaError):
        check_picture(data)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_picture_cut_short_is_refused_wherever_it_was_cut(kind: str) -> None:
    whole = saved(opened(noise(24)), kind)
    for end in range(0, len(whole) - 12, 7):  # 12: a PNG's last chunk and a JPEG's end mark contain no pixels
        with pytest.raises(MediaError):
            check_picture(whole[:end])


def test_a_png_without_the_palette_that_it_needs_is_refused() -> None:
    whole = saved(Image.new("P", (40, 30)))
    start = whole.index(b"PLTE") - 4
    without = whole[:start] + whole[start + 12 + int.from_bytes(whole[start : start + 4]) :]
    for use in (check_picture, quarters):
        with pytest.raises(MediaError, match="it has no palette"):
            use(without)


def test_a_flipped_bit_in_a_png_is_noticed() -> None:
    data = bytearray(noise(24))
    data[len(data) // 2] ^= 1
    with pytest.raises(MediaError, match="broken"):
        check_picture(bytes(data))


@pytest.mark.parametrize("side", [8_001, 14_000])
def test_a_decompression_bomb_is_not_decoded(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = saved(Image.new("1", (side, side)))
    monkeypatch.setattr(Image.Image, "load", lambda _: pytest.fail("it was decoded"))
    with pytest.raises(MediaError, match="pixels"):
        check_picture(bomb)


def test_fit_covers_and_cuts_evenly() -> None:
    picture = Image.new("RGB", (300, 100), GREEN)
    picture.paste(RED, (0, 0, 100, 100))
    picture.paste(BLUE, (200, 0, 300, 100))
    fitted = opened(fit(saved(picture), Size(50, 50)))
    assert (fitted.format, fitted.size, fitted.mode) == ("PNG", (50, 50), "RGB")
    assert fitted.getpixel((3, 25)) == fitted.getpixel((46, 25)) == GREEN


@given(st.tuples(st.integers(1, 60), st.integers(1, 60)), st.tuples(st.integers(1, 60), st.integers(1, 60)))
def test_fit_gives_exactly_the_size(before: tuple[int, int], after: tuple[int, int]) -> None:
    assert check_picture(fit(saved(Image.new("RGB", before, RED)), Size(*after))) == after


def test_fit_turns_a_photo_upright() -> None:
    data = turned(halves((40, 20), RED, BLUE), orientation=6)  # 6: to be rotated 90° clockwise
    assert check_picture(data) == Size(20, 40)
    upright = opened(fit(data, Size(20, 40)))
    assert upright.getpixel((10, 5))[0] > 200
    assert upright.getpixel((10, 35))[2] > 200


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_what_is_transparent_turns_white(mode: str) -> None:
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0)).convert("RGBA" if mode == "PA" else mode)
    data = saved(clear.quantize() if mode == "PA" else clear)
    assert opened(fit(data, Size(4, 4))).getpixel((1, 1)) == WHITE


def test_sixteen_bit_grey_keeps_its_shades() -> None:
    grey = Image.new("I;16", (4, 4), 0x8080)
    assert opened(fit(saved(grey), Size(4, 4))).getpixel((1, 1)) == (128, 128, 128)


def test_only_the_transparent_shade_of_sixteen_bit_grey_turns_white() -> None:
    grey = Image.new("I;16", (2, 1), 0x1234)
    grey.putpixel((1, 0), 0x1235)
    flattened = flat(saved(grey, transparency=0x1234))
    assert [flattened.getpixel((x, 0)) for x in (0, 1)] == [WHITE, (18, 18, 18)]


@pytest.mark.parametrize("mode", ["CMYK", "L"])
def test_every_kind_of_colour_becomes_rgb(mode: str) -> None:
    assert opened(fit(saved(Image.new(mode, (9, 9)), "JPEG"), Size(8, 8))).mode == "RGB"


def test_quarters_come_in_midjourneys_order() -> None:
    grid = Image.new("RGB", (64, 40))
    for colour, corner in zip((RED, GREEN, BLUE, WHITE), ((0, 0), (32, 0), (0, 20), (32, 20)), strict=True):
        grid.paste(colour, (*corner, corner[0] + 32, corner[1] + 20))
    cut = [opened(each) for each in quarters(saved(grid))]
    assert [each.size for each in cut] == [(32, 20)] * 4
    assert [each.getcolors() for each in cut] == [[(640, colour)] for colour in (RED, GREEN, BLUE, WHITE)]


def test_the_line_between_odd_quarters_is_left_out() -> None:
    assert [check_picture(each) for each in quarters(saved(Image.new("RGB", (9, 7))))] == [Size(4, 3)] * 4


def test_a_grid_of_one_pixel_cannot_be_cut() -> None:
    with pytest.raises(MediaError, match="1 × 9"):
        quarters(saved(Image.new("RGB", (1, 9))))


def decoded(uri: str) -> tuple[str, bytes]:
    head, _, body = uri.partition(",")
    return head, base64.b64decode(body, validate=True)


def test_a_png_that_fits_is_sent_as_it_is() -> None:
    data = saved(Image.new("RGB", (20, 20), RED))
    uri = data_uri(data, 1000)
    assert decoded(uri) == ("data:image/png;base64", data)
    assert data_uri(data, len(uri)) == uri


def test_a_png_one_character_too_long_is_sent_as_jpeg() -> None:
    data = noise(64)
    whole = len(data_uri(data, 10**9))
    head, jpeg = decoded(data_uri(data, whole - 1))
    assert head == "data:image/jpeg;base64"
    assert check_picture(jpeg) == Size(64, 64)


@pytest.mark.parametrize("limit", [30_000, 12_000, 5_000, 1_500])
def test_a_data_uri_keeps_to_its_limit_and_makes_use_of_it(limit: int) -> None:
    uri = data_uri(noise(160), limit)
    assert limit / 2 < len(uri) <= limit
    assert check_picture(decoded(uri)[1]).width <= 160


def test_what_cannot_be_made_small_enough_is_an_error() -> None:
    with pytest.raises(MediaError, match="400 characters"):
        data_uri(noise(64), 400)


def test_a_broken_png_is_not_sent() -> None:
    with pytest.raises(MediaError):
        data_uri(noise(24)[:-40], 10**6)


def test_other_kinds_are_sent_as_jpeg() -> None:
    uri = data_uri(saved(Image.new("RGB", (20, 20), RED), "WEBP"), 10**6)
    assert uri.startswith("data:image/jpeg;base64,")
