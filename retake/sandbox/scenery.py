"""What stands in a landscape, as silhouettes: trees, houses, a lighthouse, a boat, birds.

Everything is drawn into a mask (`pen`, 255 where it stands) in pixels of that mask; `x`, `y` is the foot, `tall` the
height. Windows and lamps are returned as points, to be lit by whoever knows the light.
"""

import math
import random
from typing import NamedTuple

from PIL import ImageDraw

Pen = ImageDraw.ImageDraw


class Lamp(NamedTuple):
    """A light at `x`, `y` with radius `r`, in pixels of the mask."""

    x: float
    y: float
    r: float


def pine(pen: Pen, x: float, y: float, tall: float, luck: random.Random) -> None:
    """A fir: a trunk and tiers of branches that widen downwards."""
    tiers, lean = luck.randint(6, 9), luck.uniform(-0.03, 0.03) * tall
    pen.rectangle((x - tall * 0.012, y - tall * 0.2, x + tall * 0.012, y + tall * 0.06), fill=255)
    for tier in range(tiers):
        low = y - tall * (0.06 + 0.86 * tier / tiers)
        half = tall * 0.2 * (1 - tier / tiers) ** 0.9 * luck.uniform(0.75, 1.15) + tall * 0.012
        top = min(low - tall * 0.2, low - half * 0.9)
        shift = lean * tier / tiers
        droop = half * 0.22
        pen.polygon(
            [
                (x - half + shift, low + droop),
                (x + shift, low - droop),
                (x + half + shift, low + droop),
                (x + shift, top),
            ],
            fill=255,
        )


def oak(pen: Pen, x: float, y: float, tall: float, luck: random.Random) -> None:
    """A broad old tree: branches that fork, leaves in clumps."""
    _branch(pen, (x, y + tall * 0.04), -math.pi / 2, tall * 0.3, tall * 0.055, luck, 7)


def _branch(
    pen: Pen, foot: tuple[float, float], angle: float, long: float, thick: float, luck: random.Random, left: int
) -> None:
    end = (foot[0] + math.cos(angle) * long, foot[1] + math.sin(angle) * long)
    pen.line([foot, end], fill=255, width=max(1, round(thick)))
    if left <= 4:
        leaf = long * luck.uniform(0.35, 0.7)
        pen.ellipse((end[0] - leaf, end[1] - leaf * 0.7, end[0] + leaf, end[1] + leaf * 0.7), fill=255)
    if left == 0:
        return
    for turn in (-luck.uniform(0.25, 0.65), luck.uniform(0.25, 0.65)):
        _branch(pen, end, angle + turn + 0.05, long * luck.uniform(0.68, 0.82), thick * 0.66, luck, left - 1)


def lighthouse(pen: Pen, x: float, y: float, tall: float) -> list[Lamp]:
    base, top = tall * 0.085, tall * 0.055
    pen.polygon([(x - base, y), (x + base, y), (x + top, y - tall * 0.8), (x - top, y - tall * 0.8)], fill=255)
    pen.rectangle((x - top * 1.6, y - tall * 0.82, x + top * 1.6, y - tall * 0.795), fill=255)
    pen.rectangle((x - top * 0.75, y - tall * 0.92, x + top * 0.75, y - tall * 0.8), fill=255)
    pen.polygon([(x - top * 1.1, y - tall * 0.92), (x + top * 1.1, y - tall * 0.92), (x, y - tall)], fill=255)
    pen.rectangle((x + base, y - tall * 0.14, x + base + tall * 0.2, y), fill=255)
    pen.polygon(
        [
            (x + base * 0.6, y - tall * 0.13),
            (x + base + tall * 0.1, y - tall * 0.23),
            (x + base + tall * 0.24, y - tall * 0.13),
        ],
        fill=255,
    )
    return [Lamp(x, y - tall * 0.865, tall * 0.05), Lamp(x + base + tall * 0.11, y - tall * 0.07, tall * 0.016)]


def cabin(pen: Pen, x: float, y: float, tall: float) -> list[Lamp]:
    wide = tall * 0.85
    pen.rectangle((x - wide, y - tall * 0.5, x + wide, y + tall * 0.15), fill=255)
    pen.polygon([(x - wide * 1.2, y - tall * 0.47), (x, y - tall), (x + wide * 1.2, y - tall * 0.47)], fill=255)
    pen.rectangle((x + wide * 0.4, y - tall * 1.05, x + wide * 0.6, y - tall * 0.6), fill=255)
    return [Lamp(x - wide * 0.4, y - tall * 0.24, tall * 0.1), Lamp(x + wide * 0.42, y - tall * 0.24, tall * 0.1)]


def boat(pen: Pen, x: float, y: float, tall: float) -> list[Lamp]:
    hull = tall * 0.36
    pen.polygon(
        [
            (x - hull, y - tall * 0.08),
            (x + hull, y - tall * 0.1),
            (x + hull * 0.66, y + tall * 0.05),
            (x - hull * 0.7, y + tall * 0.05),
        ],
        fill=255,
    )
    pen.line([(x, y), (x, y - tall)], fill=255, width=max(1, round(tall * 0.018)))
    pen.polygon(
        [(x + tall * 0.03, y - tall * 0.95), (x + tall * 0.03, y - tall * 0.15), (x + hull, y - tall * 0.16)], fill=255
    )
    pen.polygon(
        [(x - tall * 0.03, y - tall * 0.85), (x - tall * 0.03, y - tall * 0.16), (x - hull * 0.8, y - tall * 0.15)],
        fill=255,
    )
    return [Lamp(x - hull * 0.2, y - tall * 0.09, tall * 0.018)]


def windmill(pen: Pen, x: float, y: float, tall: float, luck: random.Random) -> list[Lamp]:
    pen.polygon(
        [
            (x - tall * 0.15, y),
            (x + tall * 0.15, y),
            (x + tall * 0.08, y - tall * 0.62),
            (x - tall * 0.08, y - tall * 0.62),
        ],
        fill=255,
    )
    pen.ellipse((x - tall * 0.09, y - tall * 0.71, x + tall * 0.09, y - tall * 0.55), fill=255)
    hub, start = (x, y - tall * 0.62), luck.uniform(0.2, 1.2)
    for arm in range(4):
        angle = start + arm * math.pi / 2
        across, along = math.cos(angle), math.sin(angle)
        tip = (hub[0] + across * tall * 0.42, hub[1] + along * tall * 0.42)
        pen.line([hub, tip], fill=255, width=max(1, round(tall * 0.012)))
        inner = (hub[0] + across * tall * 0.1, hub[1] + along * tall * 0.1)
        side = (-along * tall * 0.06, across * tall * 0.06)
        pen.polygon(
            [inner, tip, (tip[0] + side[0], tip[1] + side[1]), (inner[0] + side[0], inner[1] + side[1])], fill=255
        )
    return [Lamp(x, y - tall * 0.25, tall * 0.02)]


def figure(pen: Pen, x: float, y: float, tall: float) -> list[Lamp]:
    """Somebody with a long coat, looking into the distance."""
    head = tall * 0.075
    pen.ellipse((x - head, y - tall, x + head, y - tall + head * 2.1), fill=255)
    pen.polygon(
        [
            (x - tall * 0.1, y - tall * 0.8),
            (x + tall * 0.1, y - tall * 0.8),
            (x + tall * 0.15, y - tall * 0.25),
            (x - tall * 0.15, y - tall * 0.25),
        ],
        fill=255,
    )
    for side in (-1, 1):
        pen.polygon(
            [
                (x + side * tall * 0.015, y - tall * 0.3),
                (x + side * tall * 0.1, y - tall * 0.3),
                (x + side * tall * 0.085, y + tall * 0.02),
                (x + side * tall * 0.03, y + tall * 0.02),
            ],
            fill=255,
        )
    return []


def balloon(pen: Pen, x: float, y: float, tall: float) -> list[Lamp]:
    round_ = tall * 0.36
    pen.ellipse((x - round_, y - tall, x + round_, y - tall + round_ * 2), fill=255)
    pen.polygon(
        [
            (x - round_ * 0.86, y - tall * 0.46),
            (x + round_ * 0.86, y - tall * 0.46),
            (x + tall * 0.07, y - tall * 0.14),
            (x - tall * 0.07, y - tall * 0.14),
        ],
        fill=255,
    )
    for side in (-1, 1):
        pen.line(
            [(x + side * tall * 0.06, y - tall * 0.15), (x + side * tall * 0.05, y - tall * 0.08)], fill=255, width=1
        )
    pen.rectangle((x - tall * 0.055, y - tall * 0.09, x + tall * 0.055, y), fill=255)
    return [Lamp(x, y - tall * 0.16, tall * 0.03)]


def stripes(pen: Pen, x: float, y: float, tall: float) -> None:
    """The gores of a balloon, to be laid over it."""
    half = tall * 0.36
    for inner, outer in ((0.0, 0.2), (0.5, 0.8)):
        for side in (-1, 1):
            edges = sorted((x + side * half * inner, x + side * half * outer))
            pen.polygon(
                [
                    (edges[0], y - tall),
                    (edges[1], y - tall),
                    (x + (edges[1] - x), y - tall * 0.5),
                    (x + (edges[1] - x) * 0.25, y - tall * 0.14),
                    (x + (edges[0] - x) * 0.25, y - tall * 0.14),
                    (x + (edges[0] - x), y - tall * 0.5),
                ],
                fill=255,
            )


def bird(pen: Pen, x: float, y: float, wide: float, luck: random.Random) -> None:
    lift, thick = wide * luck.uniform(0.15, 0.4), max(1, round(wide * 0.09))
    for side in (-1, 1):
        pen.line(
            [(x, y), (x + side * wide * 0.3, y - lift), (x + side * wide * 0.62, y - lift * 0.55)],
            fill=255,
            width=thick,
            joint="curve",
        )


def skyline(pen: Pen, width: int, y: float, tall: float, luck: random.Random) -> list[Lamp]:
    """A row of buildings over the whole width, the highest about `tall`; returns its lit windows."""
    lamps: list[Lamp] = []
    x = -luck.uniform(0, tall * 0.2)
    while x < width:
        wide = tall * luck.uniform(0.12, 0.34)
        high = tall * (0.25 + 0.75 * luck.random() ** 1.8)
        pen.rectangle((x, y - high, x + wide, y + tall), fill=255)
        _roof(pen, x, y - high, wide, luck)
        lamps += _windows(x, y - high, wide, high, tall * 0.016, luck)
        x += wide + (luck.uniform(0, tall * 0.05) if luck.random() < 0.4 else 0)
    return lamps


def _roof(pen: Pen, x: float, y: float, wide: float, luck: random.Random) -> None:
    style = luck.random()
    if style < 0.25:
        pen.rectangle((x + wide * 0.25, y - wide * 0.25, x + wide * 0.75, y), fill=255)
    elif style < 0.4:
        pen.line([(x + wide / 2, y), (x + wide / 2, y - wide * 0.8)], fill=255, width=max(1, round(wide * 0.04)))
    elif style < 0.5:
        pen.polygon([(x, y), (x + wide, y), (x + wide, y - wide * 0.35)], fill=255)


def _windows(x: float, y: float, wide: float, high: float, step: float, luck: random.Random) -> list[Lamp]:
    across, down = max(1, int(wide / (step * 2))), max(1, int(high / (step * 2.4)))
    lit = luck.uniform(0.08, 0.4)
    return [
        Lamp(x + wide * (column + 0.5) / across, y + high * (row + 0.7) / down, step * 0.42)
        for row in range(down)
        for column in range(across)
        if luck.random() < lit
    ]
