"""What a prompt's words mean to a painter: the hour, the weather, the place, and what stands in it."""

import colorsys
import random
import re
from collections.abc import Mapping
from typing import NamedTuple

Colour = tuple[int, int, int]


class Palette(NamedTuple):
    """The colours of one hour: the sky from its top to the horizon, the light, hills far and near, and the stars."""

    sky: tuple[Colour, Colour, Colour, Colour]
    light: Colour
    far: Colour
    near: Colour
    stars: float = 0.0  # 0 none … 1 a clear night
    moon: bool = False


class Mood(NamedTuple):
    """What to paint. `place` is one of mountains, sea, lake, desert, city, forest; `things` are keys of THINGS."""

    hour: str
    palette: Palette
    place: str
    things: frozenset[str]


def _palette(colours: str, stars: float = 0.0, *, moon: bool = False) -> Palette:
    """Seven colours in hexadecimal: the sky from top to horizon, the light, far, near."""
    top, high, low, horizon, light, far, near = (_colour(int(colour, 16)) for colour in colours.split())
    return Palette((top, high, low, horizon), light, far, near, stars, moon)


def _colour(number: int) -> Colour:
    return number >> 16, number >> 8 & 255, number & 255


_HOURS: Mapping[str, tuple[Palette, ...]] = {
    "dawn": (
        _palette("3a4a78 8c80aa f2b2a0 ffdeb2 ffe4be c8a4ac 24263e"),
        _palette("466e96 96aabe f6ceb0 ffe8c8 ffecce bcb2b4 202e3c"),
    ),
    "sunset": (
        _palette("282254 863e70 e86c56 ffbe68 ffd68c c46464 1a1228"),
        _palette("182c4e 5c547c e28460 ffce78 ffdc96 b4746c 141628"),
        _palette("0a2e46 1e6274 96ac96 ffd08c ffe2aa 788e8c 081e2a"),
    ),
    "golden": (_palette("5c7ea2 bab4a2 f6d08c ffe6a8 ffeebe d6ae80 302822"),),
    "day": (
        _palette("2c68b2 68a2d8 b2d2ea e6eef0 fffae8 96b8d0 163638"),
        _palette("4288be 86bcd8 cce0e2 f4f0e2 fffaec a6c0c4 1e3e32"),
    ),
    "dusk": (
        _palette("0e1436 263268 685a8e de9286 ffceaa 625a8a 0a0e22", stars=0.35),
        _palette("0c1a32 1a3a5c 547088 e6b28c ffdeb4 4e627c 081220", stars=0.3),
    ),
    "night": (
        _palette("05081a 0b1638 1c305c 466086 e2ecff 364e76 050916", stars=1.0, moon=True),
        _palette("08061c 1a103e 3c2864 785286 f0e4ff 503c70 080616", stars=1.0, moon=True),
        _palette("030e1a 082234 164254 48747c e2f6f6 2a5462 030c14", stars=1.0, moon=True),
    ),
    "grey": (
        _palette("323a46 5a6470 9098a0 c4c8c8 e8ecec a0a8ae 1a2026"),
        _palette("424a4e 767e7e acb0aa d6d4c8 f0eee2 aeb2ac 242a28"),
    ),
}

_HOUR_WORDS = (
    ("night", r"night|moon|star|galax|aurora|northern light|milky|midnight|firefl|ноч|лун|звезд|звёзд|сияни|галакти"),
    ("dawn", r"dawn|sunrise|morning|spring|pastel|рассвет|утр|весн"),
    ("dusk", r"dusk|twilight|blue hour|evening|lantern|сумер|вечер|фонар"),
    ("sunset", r"sunset|sundown|red sky|warm glow|закат"),
    ("golden", r"golden|autumn|fall colou?rs|harvest|amber|wheat|осен|золот"),
    ("grey", r"\bfog|storm|\brain|overcast|grey|gray|gloom|cloudy|туман|дожд|шторм|гроз|пасмурн|сер(ый|ое|ая)"),
    ("day", r"\bday\b|noon|sunny|bright|blue sky|summer|clear sky|день|днём|полдень|солнечн|лет[ноа]"),
)
_PLACE_WORDS = (
    ("city", r"\bcity|cities|\btown|skyline|street|office|rooftop|metropol|urban|город|улиц|крыш|офис"),
    ("desert", r"desert|dune|\bsand|sahara|пустын|дюн|песк|песч"),
    ("sea", r"\bsea\b|ocean|coast|harbou?r|lighthouse|beach|\bboat|\bship|sailing|wave|island"),
    ("sea", r"мор[еяю]|океан|маяк|берег|лодк|парус|остров"),
    ("lake", r"lake\b|озер|fjord|фьорд|reflect|отраж"),
    ("mountains", r"mountain|\balp|valley|peak|\bhill|ridge|canyon|гор[аыун]|горн|долин|вершин|холм"),
    ("lake", r"lake|river|reflect|pond|water|fjord|озер|рек[аеиу]|отраж|фьорд|пруд"),
    ("forest", r"forest|woods?\b|pine|tree line|cabin|\bfir|лес|сосн|ел[ьи]|изб|хижин"),
)
THINGS: Mapping[str, str] = {
    "lighthouse": r"lighthouse|маяк",
    "boat": r"\bboat|\bship|sailing|лодк|кораб|парус",
    "cabin": r"cabin|\bhut\b|house|cottage|farm|изб|хижин|дом(ик)?\b",
    "tree": r"lone tree|lonely tree|old tree|single tree|\boak|одинок\w+ (дерев|дуб)|\bдуб",
    "balloon": r"balloon|воздушн\w+ шар|аэростат",
    "birds": r"bird|gull|geese|crane|swallow|птиц|чайк|журавл|гус[ие]",
    "figure": r"figure|person|travell?er|hiker|wanderer|\bman\b|woman|silhouette of a|путник|человек|фигур|странник",
    "windmill": r"windmill|мельниц",
    "snow": r"snow|winter|frost|blizzard|ice\b|снег|снеж|зим|мороз",
    "rain": r"\brain|дожд|ливен",
    "fireflies": r"firefl|lantern|sparks?\b|светляч|фонарик|искр",
    "aurora": r"aurora|northern light|полярн|северн\w+ сияни",
    "pines": r"pine|forest|woods?\b|\bfir|cabin|лес|сосн|хижин",
}


def mood_of(prompt: str, theme: random.Random, luck: random.Random) -> Mood:
    """What `prompt` asks for. What it leaves open `theme` decides, and `luck` decides which colours of the hour."""
    words = prompt.lower()
    hour = _first(words, _HOUR_WORDS) or theme.choice(("dawn", "sunset", "golden", "dusk", "night", "day"))
    place = _first(words, _PLACE_WORDS) or theme.choice(("mountains", "mountains", "lake", "forest"))
    things = frozenset(name for name, pattern in THINGS.items() if re.search(pattern, words))
    palette = luck.choice(_HOURS[hour])
    return Mood(hour, _turned(palette, luck.uniform(-0.018, 0.018)), place, things)


def mix(one: Colour, other: Colour, share: float) -> Colour:
    """`one` with `share` (0 … 1) of `other`."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue


def _first(words: str, patterns: tuple[tuple[str, str], ...]) -> str:
    return next((name for name, pattern in patterns if re.search(pattern, words)), "")


def _turned(palette: Palette, angle: float) -> Palette:
    """The same colours, their hue turned a little, so that no two pictures of an hour have the same sky."""
    top, high, low, horizon = (_turn(colour, angle) for colour in palette.sky)
    return palette._replace(
        sky=(top, high, low, horizon), far=_turn(palette.far, angle), near=_turn(palette.near, angle)
    )


def _turn(colour: Colour, angle: float) -> Colour:
    hue, light, strength = colorsys.rgb_to_hls(*(part / 255 for part in colour))
    red, green, blue = (round(part * 255) for part in colorsys.hls_to_rgb((hue + angle) % 1, light, strength))
    return red, green, blue
