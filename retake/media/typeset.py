"""Typesetting a text of any length and script into a box: its fonts, its line breaks and its size.

The fonts are in fonts/, with their licence and a description of how they were made.
"""

import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from struct import iter_unpack, unpack_from
from typing import NamedTuple

from PIL import ImageDraw, ImageFont

from retake.media.right_to_left import in_drawing_order, joined

FROM_RIGHT = ("NotoSansHebrew-Bold.subset.ttf", "NotoSansArabic-Bold.subset.ttf")
FONTS = (
    "NotoSans-Bold.subset.ttf",
    "NotoSansCJKsc-Bold.subset.otf",
    "NotoEmoji-Regular.subset.otf",
    *FROM_RIGHT,
)
MISSING = "□"  # replaces a letter that no font has, so that readers see that one is missing
MAX_LENGTH = 600  # characters of a text; the rest is cut

LEADING = 1.32  # from one baseline to the next, in font sizes
RISE, FALL = 0.74, 0.12  # height of a line above and below its baseline: between Latin capitals and Chinese

MIN_LINES = 3.0  # the largest letters are those of which this many lines would fill the box …
MIN_LETTERS = 4.5  # … and this many letters a line
WHOLE_WORDS = 4.0  # words are split only if they do not fit unsplit at 1/4 of the largest size
SPLIT_WORDS = 2.0  # a text with a split word has letters of at most 1/2 of the largest size
SMALLEST = 6.0  # letters are never smaller than 1/6 of the largest size: the text is cut instead
STEP = 0.95  # ratio of one size to the size tried before it
MEASURE = 100  # the font size, in pixels, at which text is measured


class Setting(NamedTuple):
    """A text in lines, and the size of its letters in pixels."""

    lines: tuple[str, ...]
    size: int

    @property
    def height(self) -> float:
        """The height of all lines in pixels."""
        return _height(len(self.lines), self.size)


class Piece(NamedTuple):
    """A part of a text after which a line may break. Widths are multiples of the font size."""

    text: str
    width: float
    gap: float  # the width of the space after it, which does not count at the end of a line


def typeset(text: str, width: float, height: float) -> Setting:
    """Return `text` in the largest letters with which all of it fits a box of `width` × `height` pixels.

    The lines are about equally long. A text that would need illegibly small letters is cut and ends in "…".
    """
    words = [_piece(text) for text in pieces(settable(text))]
    if not words:
        return Setting((), 1)
    largest = max(1.0, min(height / MIN_LINES, width / MIN_LETTERS))
    for size in _sizes(largest, largest / WHOLE_WORDS):
        lines = len(filled(words, width / size))
        if max(word.width for word in words) * size <= width and _height(lines, size) <= height:
            return Setting(balanced(words, lines, width / size), size)
    for size in _sizes(largest / SPLIT_WORDS, largest / SMALLEST):
        parts = list(_split(words, width / size))
        lines = len(filled(parts, width / size))
        if _height(lines, size) <= height:
            return Setting(balanced(parts, lines, width / size), size)
    size = max(1, int(largest / SMALLEST))
    lines = max(1, int((height / size - RISE - FALL) / LEADING + 1))
    return Setting(_cut(filled(list(_split(words, width / size)), width / size), lines), size)


def filled(parts: list[Piece], width: float) -> list[str]:
    """Return `parts` in as few lines of at most `width` as possible, each as full as possible."""
    lines = [""]
    room = width
    for part in parts:
        if part.width > room and lines[-1]:
            lines.append("")
            room = width
        lines[-1] += part.text
        room -= part.width + part.gap
    return [line.rstrip() for line in lines]


def balanced(parts: list[Piece], lines: int, width: float) -> tuple[str, ...]:
    """Return `parts` in exactly `lines` lines of at most `width`, as equal in length as possible, to avoid one-word
    lines."""
    ends = [0.0, *accumulate(part.width + part.gap for part in parts)]
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, (0,))}  # by line end: cost and line ends so far
    for _ in range(lines):
        further: dict[int, tuple[float, tuple[int, ...]]] = {}
        for start, (cost, path) in best.items():
            for end in range(start + 1, len(parts) + 1):
                length = ends[end] - ends[start] - parts[end - 1].gap
                if length > width and end > start + 1:
                    break
                if end not in further or cost + length**2 < further[end][0]:
                    further[end] = (cost + length**2, (*path, end))
        best = further
    path = best[len(parts)][1]
    return tuple("".join(part.text for part in parts[start:end]).rstrip() for start, end in pairwise(path))


def draw(target: ImageDraw.ImageDraw, setting: Setting, centre: tuple[float, float], fill: int) -> None:
    """Draw `setting` around `centre` in `fill`, each line centred."""
    baseline = centre[1] - setting.height / 2 + RISE * setting.size
    for line in in_drawing_order(setting.lines):
        runs = [(font(name, setting.size), run) for name, run in _runs(line)]
        x = centre[0] - sum(face.getlength(run) for face, run in runs) / 2
        for face, run in runs:
            target.text((x, baseline), run, fill=fill, font=face, anchor="ls")
            x += face.getlength(run)
        baseline += LEADING * setting.size


def line_width(text: str, size: int) -> float:
    """Return the width of `text` on one line, in pixels."""
    return _width(settable(text)) * size


def shortened(text: str, size: int, room: float) -> str:
    """Return `text`, cut so that it is at most `room` pixels wide on one line."""
    if line_width(text, size) <= room:
        return text
    low, high = 0, min(len(text), MAX_LENGTH)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if line_width(f"{text[:middle]}…", size) <= room else (low, middle - 1)
    return f"{text[:low].rstrip()}…"


def draw_line(
    target: ImageDraw.ImageDraw, text: str, place: tuple[float, float], size: int, fill: tuple[int, int, int]
) -> None:
    """Draw `text` on one line, with its left end and baseline at `place`."""
    x, baseline = place
    for line in in_drawing_order([settable(text)]):
        for name, run in _runs(line):
            face = font(name, size)
            target.text((x, baseline), run, fill=fill, font=face, anchor="ls")
            x += face.getlength(run)


@lru_cache(maxsize=32)
def font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """Return the font `name` at `size` pixels."""
    # right_to_left.py has already joined and reordered Hebrew and Arabic, identically on every machine. Where Raqm is
    # installed, Pillow would do so again, and undo it.
    engine = ImageFont.Layout.BASIC if name in FROM_RIGHT else None
    return ImageFont.truetype(Path(__file__).parent / "fonts" / name, size, layout_engine=engine)


@lru_cache
def letters(name: str) -> frozenset[int]:
    """Return the code points that the font `name` has.

    Pillow cannot tell, but the font's "cmap" table can. Ours are all in format 12 [OpenType specification, cmap].
    """
    data = (Path(__file__).parent / "fonts" / name).read_bytes()
    tables = {data[n : n + 4]: unpack_from(">I", data, n + 8)[0] for n in range(12, 12 + 16 * data[5], 16)}
    start = tables[b"cmap"] + unpack_from(">I", data, tables[b"cmap"] + 8)[0]
    version, length = unpack_from(">H2xI", data, start)
    if version != 12:
        raise ValueError(f"{name}: its character map is of format {version}, not 12; see fonts/README.md")
    groups = iter_unpack(">III", data[start + 16 : start + length])
    return frozenset(n for first, last, _ in groups for n in range(first, last + 1))


def settable(text: str) -> str:
    """Return `text` on one line, with at most `MAX_LENGTH` characters, all of which have a glyph.

    Arabic letters have their contextual shapes.
    """
    text = _readable(text)
    return " ".join("".join(map(_letter, joined(text))).split())


def scripts_without_letters(text: str) -> list[str]:
    """Return the scripts, by their Unicode names ("DEVANAGARI"), for which no font here has the letters."""
    missing = [character for character in _readable(text) if _letter(character) == MISSING != character]
    return sorted({unicodedata.name(character, "UNKNOWN").partition(" ")[0] for character in missing})


def _readable(text: str) -> str:
    text = unicodedata.normalize("NFC", " ".join(text[: MAX_LENGTH * 4].split()))
    return text if len(text) <= MAX_LENGTH else text[:MAX_LENGTH].rstrip() + "…"


def _letter(character: str) -> str:
    if any(ord(character) in letters(name) for name in FONTS):
        # Skin tones, joiners and variation selectors change how a colour emoji looks; ours have no colour.
        return "" if 0x1F3FB <= ord(character) <= 0x1F3FF or _is_invisible(character) else character
    return "" if _is_invisible(character) or unicodedata.combining(character) else MISSING


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Me") or 0xFE00 <= ord(character) <= 0xFE0F


def _font_of(character: str) -> str:
    return next((name for name in FONTS if ord(character) in letters(name)), FONTS[0])


def _runs(line: str) -> list[tuple[str, str]]:
    """Return `line` in runs of one font each, with the font's name."""
    return [(name, "".join(part)) for name, part in groupby(line, key=_font_of)]


@lru_cache(maxsize=4096)
def _width(text: str) -> float:
    """Return the width of `text` in multiples of the font size."""
    return sum(font(name, MEASURE).getlength(run) for name, run in _runs(text)) / MEASURE


def _piece(text: str) -> Piece:
    width = _width(text.rstrip())
    return Piece(text, width, _width(text) - width)


def pieces(text: str) -> Iterator[str]:
    """Yield `text` in pieces, cut wherever a line may break."""
    start = 0
    for n, (before, after) in enumerate(pairwise(text), 1):
        if _may_break(before, after):
            yield text[start:n]
            start = n
    if text:
        yield text[start:]


def _may_break(before: str, after: str) -> bool:
    """Return whether a line may break here: between words, after a hyphen, and next to Chinese, Japanese and emoji.

    It may not break before closing punctuation. Korean breaks only between words, as Koreans prefer in headlines.
    """
    if after == " " or unicodedata.combining(after):
        return False
    if before == " ":
        return True
    if before in "-–—/":
        return after.isalpha()
    if unicodedata.category(after) in ("Pe", "Pf", "Po") or after in "ーっゃゅょッャュョ々…":
        return False
    return unicodedata.category(before) not in ("Ps", "Pi") and (_wide(before) or _wide(after))


def _wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in ("W", "F") and not "가" <= character <= "힣"


def _split(words: list[Piece], width: float) -> Iterator[Piece]:
    """Yield `words`; those wider than `width` letter by letter, each letter with its combining accents."""
    for word in words:
        if word.width <= width:
            yield word
            continue
        starts = [n for n, letter in enumerate(word.text) if n == 0 or not unicodedata.combining(letter)]
        if word.gap:
            starts.pop()  # the space stays with the last letter
        for start, end in pairwise([*starts, len(word.text)]):
            yield _piece(word.text[start:end])


def _sizes(largest: float, smallest: float) -> Iterator[int]:
    """Yield whole sizes in pixels, from the largest down."""
    while largest >= max(1.0, smallest):
        yield int(largest)
        largest *= STEP


def _height(lines: int, size: int) -> float:
    return size * (RISE + LEADING * (lines - 1) + FALL) if lines else 0.0


def _cut(lines: list[str], most: int) -> tuple[str, ...]:
    if len(lines) <= most:
        return tuple(lines)
    return (*lines[: most - 1], lines[most - 1][:-1].rstrip(" ,.;:-–—…") + "…")
