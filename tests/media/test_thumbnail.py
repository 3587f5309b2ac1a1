import os
from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops

from retake.media import MediaError
from retake.media import thumbnail as module
from retake.media.thumbnail import MAX_BYTES, SIZE, thumbnail


def a_cover(colour: str = "#284078", size: tuple[int, int] = (160, 90), kind: str = "PNG") -> bytes:
    data = BytesIO()
    Image.new("RGB", size, colour).save(data, kind)
    return data.getvalue()


def opened(jpeg: bytes) -> Image.Image:
    with Image.open(BytesIO(jpeg)) as picture:
        assert picture.format == "JPEG"
        assert picture.size == SIZE
        return picture.convert("L")


def bright(picture: Image.Image) -> tuple[int, int, int, int]:
    return picture.point(lambda value: 255 if value > 240 else 0).getbbox() or (0, 0, 0, 0)


@pytest.mark.parametrize(
    "words", ["Night Drive", "밤의 도시", "夜の街に降る雨", "مطر الليل", "Дождь 🎧", "word " * 100]
)
def test_the_words_are_on_the_lower_part_of_the_cover(words: str) -> None:
    left, top, right, bottom = bright(opened(thumbnail(a_cover(), words)))
    assert left >= 0.05 * 1280
    assert right <= 0.95 * 1280
    assert top >= 0.4 * 720
    assert bottom <= 0.95 * 720
    assert right - left > 300


@pytest.mark.parametrize("colour", ["white", "#ffee66", "black", "#777777"])
def test_the_letters_have_a_dark_edge_on_every_cover(colour: str) -> None:
    plain, written = (opened(thumbnail(a_cover(colour), words)) for words in ("", "HHHH"))
    difference = ImageChops.difference(plain, written).getbbox()
    assert difference
    row = written.crop((0, 580, 1280, 600))
    darkest, lightest = row.getextrema()
    assert lightest > 245
    assert darkest < 40


def test_without_words_it_is_the_cover() -> None:
    low, high = opened(thumbnail(a_cover(), " ")).getextrema()
    assert high - low <= 2


@pytest.mark.parametrize("size", [(1, 1), (3, 900), (900, 3), (1024, 1024), (1456, 816)])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_any_cover_will_do(size: tuple[int, int], kind: str) -> None:
    opened(thumbnail(a_cover(size=size, kind=kind), "Words"))


def test_a_cover_of_noise_stays_below_the_limit() -> None:
    data = BytesIO()
    Image.frombytes("RGB", (1280, 720), os.urandom(1280 * 720 * 3)).save(data, "PNG")
    assert len(thumbnail(data.getvalue(), "Noise")) < MAX_BYTES


def test_the_quality_is_lowered_until_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    data = BytesIO()
    Image.frombytes("RGB", (1280, 720), os.urandom(1280 * 720 * 3)).save(data, "PNG")
    monkeypatch.setattr(module, "MAX_BYTES", 600_000)
    assert len(thumbnail(data.getvalue(), "Noise")) < 600_000
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    with pytest.raises(MediaError, match="lowest quality"):
        thumbnail(data.getvalue(), "Noise")


def test_a_broken_cover_is_refused() -> None:
    with pytest.raises(MediaError, match="picture"):
        thumbnail(b"no", "Words")


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=200))
def test_any_words_give_a_thumbnail(words: str) -> None:
    jpeg = thumbnail(a_cover(), words)
    assert len(jpeg) < MAX_BYTES
    opened(jpeg)
