import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from retake.media import typeset
from retake.media.typeset import FONTS, MAX_LENGTH, MISSING, Piece, Setting, balanced, filled, letters, pieces, settable

LATIN, CHINESE, EMOJI, *_ = FONTS


@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox, 100 % “sure” – €5?! Ärger, façade, żółw, İğdır, Tiếng Việt",
        "Съешь же ещё этих мягких французских булок; № 5 — «да» ₽",
        "Жълтата дюля беше щастлива, че пухът, който цъфна, замръзна като гьон. „Ѝ“, ѝ",
        "Їжак, ґанок, Љубав, Ѓ, Ќ, ў",
        "다람쥐 헌 쳇바퀴에 타고파 — 힘!",
        "我能吞下玻璃而不伤身体。「繁體字」，《書名》：語言、開車！",
        "いろはにほへと、チリヌルヲ。漢字ー々",
        "→ ★ ① 🔥 🚀 😀 ❤ ✨ 🤖",
        "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    ],
)
def test_every_letter_is_there(text: str) -> None:
    assert settable(text) == text


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("  two\n\twords ", "two words"),
        ("и\u0306", "й"),
        ("a\0b\u200b\u202ec\ufeff", "abc"),
        ("lone \ud83d surrogate", "lone surrogate"),
        ("❤️ 👍🏽 👨‍👩‍👧", "❤ 👍 👨👩👧"),
        ("1️⃣", "1"),
        ("سلام 5", "\ufeb3\ufefc\ufee1 5"),  # sin, the ligature of lam and alif, mim, joined
        ("שָׁלוֹם", "שלום"),  # vowel points are dropped
        ("नि", f"{MISSING}{MISSING}"),
        ("", ""),
        ("\u200d", ""),
    ],
)
def test_what_cannot_be_drawn_is_left_out_or_boxed(text: str, seen: str) -> None:
    assert settable(text) == seen


def test_very_long_texts_are_cut_visibly() -> None:
    cut = settable("word " * 10_000)
    assert len(cut) <= MAX_LENGTH + 1
    assert cut.endswith("…")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("ein Wort", ["ein ", "Wort"]),
        ("mother-in-law", ["mother-", "in-", "law"]),
        ("2020-24, -5", ["2020-24, ", "-5"]),
        ("你好，世界。", ["你", "好，", "世", "界。"]),
        ("「引」用", ["「引」", "用"]),
        ("한국어 문장", ["한국어 ", "문장"]),
        ("チャット", ["チャッ", "ト"]),
        ("go🚀now", ["go", "🚀", "now"]),
        ("", []),
    ],
)
def test_lines_may_end_where_a_reader_expects_it(text: str, parts: list[str]) -> None:
    assert list(pieces(text)) == parts


@given(st.text())
def test_cutting_in_pieces_loses_nothing(text: str) -> None:
    assert "".join(pieces(text)) == text


def words(*widths: float) -> list[Piece]:
    return [Piece(f"{width:g} ", width, 1.0) for width in widths]


def test_lines_are_filled_one_after_the_other() -> None:
    assert filled(words(4, 4, 4, 4, 2), 9) == ["4 4", "4 4", "2"]
    assert filled(words(12, 3, 12), 9) == ["12", "3", "12"]


def test_no_word_is_left_alone_on_the_last_line() -> None:
    assert filled(words(4, 4, 4, 2), 15) == ["4 4 4", "2"]
    assert balanced(words(4, 4, 4, 2), 2, 15) == ("4 4", "4 2")


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(9, 30))
def test_evened_lines_are_as_many_as_filled_ones_and_never_longer_than_the_room(widths: list[int], room: int) -> None:
    parts = words(*widths)
    greedy = filled(parts, room)
    even = balanced(parts, len(greedy), room)
    assert len(even) == len(greedy)
    assert " ".join(even) == " ".join(greedy)

    def square(lines: tuple[str, ...] | list[str]) -> int:
        return sum((sum(map(int, line.split())) + line.count(" ")) ** 2 for line in lines)

    assert square(even) <= square(greedy)
    assert all(sum(map(int, line.split())) + line.count(" ") <= room for line in even)


def drawn(setting: Setting, width: int, height: int) -> tuple[int, int, int, int]:
    """Return the bounding box of what is drawn on a canvas three times as large."""
    canvas = Image.new("L", (3 * width, 3 * height))
    typeset.draw(ImageDraw.Draw(canvas), setting, (1.5 * width, 1.5 * height), 255)
    return canvas.getbbox() or (0, 0, 0, 0)


@pytest.mark.parametrize(
    "text",
    [
        "Ok",
        "Why your smart fridge is quietly judging you 🔥🚀",
        "Защо котките винаги падат на краката си? " * 5,
        "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen",
        "为什么人工智能总是把手指画错？我们请教了三位专家，他们的回答令人意外。",
        "고양이는 왜 상자를 좋아할까요? 과학자들이 마침내 답을 찾았습니다",
        "x" * 300,
        "字" * 300,
    ],
)
@pytest.mark.parametrize(("width", "height"), [(400, 200), (200, 400), (300, 300)])
def test_every_text_stays_in_its_box_and_makes_use_of_it(text: str, width: int, height: int) -> None:
    setting = typeset.typeset(text, width, height)
    left, top, right, bottom = drawn(setting, width, height)
    assert right - left <= width * 1.03
    assert bottom - top <= height * 1.05
    assert (right - left) / width > 0.2
    assert abs((left + right) / 2 - 1.5 * width) < 0.06 * width
    assert abs((top + bottom) / 2 - 1.5 * height) < 0.06 * height
    assert "".join("".join(setting.lines).split()) == "".join(settable(text).split())


def test_words_stay_whole_while_letters_can_be_read() -> None:
    assert typeset.typeset("Внимание: экспериментальность", 300, 300).lines == ("Внимание:", "экспериментальность")


def test_a_text_too_long_for_its_box_ends_in_dots() -> None:
    setting = typeset.typeset("字" * MAX_LENGTH, 150, 100)
    assert setting.lines[-1].endswith("…")
    assert setting.height <= 100


def test_a_letter_keeps_its_accents_when_a_word_is_split() -> None:
    text = "x\u0331" * 60  # no such letter is precomposed: the accent stays a character of its own
    assert not any(unicodedata.combining(line[0]) for line in typeset.typeset(text, 100, 100).lines)


@given(st.text(max_size=80), st.integers(1, 300), st.integers(1, 300))
def test_any_text_can_be_set_into_any_box(text: str, width: int, height: int) -> None:
    setting = typeset.typeset(text, width, height)
    assert setting.size >= 1
    assert bool(setting.lines) == bool(settable(text))
    assert all(line == line.strip() and line for line in setting.lines)


def test_each_font_has_its_scripts_and_none_is_empty() -> None:
    assert ord("Щ") in letters(LATIN)
    assert ord("語") in letters(CHINESE)
    assert ord("🚀") in letters(EMOJI)
    assert ord("あ") not in letters(LATIN) | letters(EMOJI)


def test_a_letter_that_a_font_says_it_has_is_drawn() -> None:
    for name, letter in ((LATIN, "Щ"), (CHINESE, "語"), (EMOJI, "🚀")):
        face = typeset.font(name, 20)
        assert face.getmask(letter).getbbox()
        assert bytes(face.getmask(letter)) != bytes(face.getmask("\U0010fffe"))
