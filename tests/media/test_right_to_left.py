"""Hebrew and Arabic, which are written from right to left; Arabic letters also join."""

import logging
import subprocess
import sys

import pytest

from retake.media.picture import Size
from retake.media.placeholder import placeholder
from retake.media.right_to_left import in_drawing_order, is_from_right, joined
from retake.media.typeset import MISSING, scripts_without_letters, settable

PEACE = "\u0633\u0644\u0627\u0645"  # seen, lam, alef, meem
JOINED = "\ufeb3\ufefc\ufee1"  # initial seen, the ligature of lam and alef, final meem


@pytest.mark.parametrize(
    ("lines", "drawn"),
    [
        (["abc"], ["abc"]),
        (["\u05d0\u05d1\u05d2"], ["\u05d2\u05d1\u05d0"]),
        (["\u05d0 (12) b"], ["b (12) \u05d0"]),
        (["a \u05d0\u05d1 b"], ["a \u05d1\u05d0 b"]),
        (["\u05d0", "b!"], ["\u05d0", "!b"]),  # the second line belongs to a right-to-left text
        ([JOINED + " 5"], ["5 " + JOINED[::-1]]),
    ],
)
def test_a_line_is_put_in_the_order_in_which_it_is_drawn(lines: list[str], drawn: list[str]) -> None:
    assert in_drawing_order(lines) == drawn


def test_arabic_letters_join() -> None:
    assert joined(PEACE) == JOINED
    assert joined("plain") == "plain"
    assert is_from_right(PEACE)
    assert not is_from_right("plain 5")


@pytest.mark.parametrize("text", [PEACE, "المنارة التي لم يشعلها أحد", "המגדלור שאיש לא הדליק", "چرا برج روشن نشد؟"])
def test_no_letter_becomes_a_box(text: str) -> None:
    assert MISSING not in settable(text)
    assert scripts_without_letters(text) == []


def test_a_script_without_a_font_is_named_in_the_log() -> None:
    logger, heard = logging.getLogger("retake"), []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        placeholder("नि and ไทย", Size(64, 64))
        placeholder("fine", Size(64, 64))
    finally:
        logger.removeHandler(handler)
    [told] = heard
    assert "DEVANAGARI, THAI" in told


def test_the_picture_is_the_same_where_raqm_is_missing() -> None:
    """With FriBiDi, which not every machine has, Pillow reorders and joins letters by itself."""
    text = f"{PEACE} \u05d0\u05d1\u05d2 12"
    code = (
        "import sys\n"
        "from PIL import ImageFont\n"
        "if sys.argv[1] == 'without':\n"
        "    ImageFont.core.HAVE_RAQM = False\n"
        "from hashlib import sha256\n"
        "from retake.media.picture import Size\n"
        "from retake.media.placeholder import placeholder\n"
        f"print(sha256(placeholder({text!r}, Size(320, 180))).hexdigest())\n"
    )
    runs = [[sys.executable, "-c", code, how] for how in ("with", "without")]
    one, other = (subprocess.run(run, capture_output=True, text=True, check=True).stdout for run in runs)
    assert one == other != ""
