from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops, ImageStat

from retake.media import MediaError
from retake.media.picture import Size, check_picture
from retake.media.placeholder import background, colour, placeholder

SIZES = [Size(320, 180), Size(180, 320), Size(256, 256)]


def grey(topic: str, size: Size) -> Image.Image:
    return Image.open(BytesIO(placeholder(topic, size))).convert("L")


def luminance(colour: tuple[float, ...]) -> float:
    """Return the relative luminance [WCAG 2.2]."""
    red, green, blue = (
        part / 255 / 12.92 if part / 255 <= 0.04045 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in colour
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(light: tuple[float, ...], dark: tuple[float, ...]) -> float:
    return (luminance(light) + 0.05) / (luminance(dark) + 0.05)


@pytest.mark.parametrize("size", SIZES)
def test_the_topic_is_in_the_middle_and_the_margins_are_free(size: Size) -> None:
    picture = grey("Защо котките винаги падат на краката си?", size)
    bright = picture.point(lambda value: 255 if value > 200 else 0)
    left, top, right, bottom = bright.getbbox() or (0, 0, 0, 0)
    assert left >= 0.08 * size.width
    assert right <= 0.92 * size.width
    assert top >= 0.1 * size.height
    assert bottom <= 0.9 * size.height
    text_area = ImageStat.Stat(bright.crop((left, top, right, bottom)))
    assert 0.1 < text_area.mean[0] / 255 < 0.5
    assert ImageStat.Stat(picture.crop((left, top, right, bottom))).stddev[0] > 50


@pytest.mark.parametrize("hue", range(0, 360, 15))
def test_letters_stand_out_from_every_background(hue: int) -> None:
    ground = background(hue, Size(40, 40))
    lightest = max((ground.getpixel((x, y)) for x in range(40) for y in range(40)), key=luminance)
    assert contrast(colour(0.98, 0.012, hue), lightest) > 5.5


def test_the_background_is_calm() -> None:
    ground = background(200, Size(200, 100))
    for channel in ground.split():
        step = ImageChops.difference(channel.crop((0, 0, 199, 100)), channel.crop((1, 0, 200, 100)))
        assert step.getextrema()[1] <= 3


def test_the_same_topic_gives_the_same_picture_and_another_gives_another() -> None:
    assert placeholder("Кафе", SIZES[0]) == placeholder("Кафе", SIZES[0])
    assert ImageChops.difference(grey("Кафе", SIZES[0]), grey("Чай", SIZES[0])).getbbox()


@pytest.mark.parametrize("topic", ["", " ", "\u200d", "🏳️‍🌈", "\ud83d", "سلام", "a" * 5000, "\n".join("строки")])
def test_odd_topics_give_a_picture_too(topic: str) -> None:
    assert check_picture(placeholder(topic, SIZES[0])) == SIZES[0]


def test_nothing_but_the_ground_is_seen_of_an_empty_topic() -> None:
    assert grey("", SIZES[0]).getextrema()[1] < 130


def test_what_cannot_be_written_is_still_seen() -> None:
    assert grey("سلام", SIZES[0]).getextrema()[1] > 230


@settings(max_examples=60)
@given(st.text(max_size=120), st.integers(1, 120), st.integers(1, 120))
def test_any_topic_gives_a_picture_of_any_size(topic: str, width: int, height: int) -> None:
    assert check_picture(placeholder(topic, Size(width, height))) == (width, height)


@pytest.mark.parametrize("size", [Size(0, 10), Size(10, -1), Size(100_000, 100_000)])
def test_a_size_that_no_picture_can_have_is_refused(size: Size) -> None:
    with pytest.raises(MediaError, match="cannot have"):
        placeholder("Кафе", size)


@pytest.mark.parametrize(
    ("oklch", "srgb"),
    [((1, 0, 0), (255, 255, 255)), ((0, 0, 0), (0, 0, 0)), ((0.62796, 0.25768, 29.234), (255, 0, 0))],
)
def test_colours_are_those_of_oklch(oklch: tuple[float, ...], srgb: tuple[int, ...]) -> None:
    assert colour(*oklch) == pytest.approx(srgb, abs=1)
