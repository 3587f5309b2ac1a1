"""The geometry of charts. `charts.html` draws them as SVG, without script, and each also describes in words what it
shows."""

from collections.abc import Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 720, 220
MAX_POINTS = 400
"""Maximum number of values in a chart. Of more values, the last are drawn."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 88, 8, 12, 28  # margins
_MAX_ROUNDED = 1e300  # larger values are not rounded up, because the result could overflow


class Axis(NamedTuple):
    """The vertical axis, from 0 to `high`, with a unit after each number."""

    high: float
    unit: str = ""
    digits: int = 2

    def text(self, value: float) -> str:
        return f"{value:.{self.digits}f}{self.unit}"

    def y(self, value: float) -> float:
        """Return the y coordinate of a value."""
        part = min(max(value, 0.0), self.high) / self.high
        return round(HEIGHT - _BOTTOM - part * (HEIGHT - _TOP - _BOTTOM), 1)


class Bar(NamedTuple):
    """A bar, with its description in words."""

    x: float
    y: float
    width: float
    height: float
    description: str


class Dot(NamedTuple):
    """A point of a line, with its description in words."""

    x: float
    y: float
    description: str


class Drawing(NamedTuple):
    """A chart. `description` says in words what it shows; `ticks` are the y coordinates and labels of the axis."""

    title: str
    description: str
    ticks: Sequence[tuple[float, str]]
    first: str  # the label at the left end
    last: str  # the label at the right end
    bars: Sequence[Bar] = ()
    dots: Sequence[Dot] = ()
    mark: float | None = None  # the y coordinate of a horizontal line: a cap, a target
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT

    @property
    def path(self) -> str:
        """The line through the points, in SVG's format."""
        return " ".join(f"{it.x},{it.y}" for it in self.dots)


def bar_chart(
    title: str, labels: Sequence[str], values: Sequence[float], axis: Axis, mark: float | None = None
) -> Drawing:
    """Return a chart with a bar for each label. `mark` is the value of a horizontal line."""
    labels, values = labels[-MAX_POINTS:], values[-MAX_POINTS:]
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(values))
    bars = []
    for number, (label, value) in enumerate(zip(labels, values, strict=True)):
        x, y = round(_LEFT + (number + 0.1) * step, 1), axis.y(value)
        bars.append(Bar(x, y, round(step * 0.8, 1), round(HEIGHT - _BOTTOM - y, 1), f"{label}: {axis.text(value)}"))
    text = "nothing is on record"
    if values:
        most = max(range(len(values)), key=values.__getitem__)
        text = f"{labels[0]} to {labels[-1]}: at most {bars[most].description}; the last is {axis.text(values[-1])}"
    return _drawing(title, text, labels, axis)._replace(bars=bars, mark=None if mark is None else axis.y(mark))


def line_chart(
    title: str, labels: Sequence[str], values: Sequence[float | None], axis: Axis, mark: float | None = None
) -> Drawing:
    """Return a chart with a line through the values that are not None. `mark` is the value of a horizontal line."""
    labels, values = labels[-MAX_POINTS:], values[-MAX_POINTS:]
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(labels) - 1)
    dots = [
        Dot(round(_LEFT + number * step, 1), axis.y(value), f"{label}: {axis.text(value)}")
        for number, (label, value) in enumerate(zip(labels, values, strict=True))
        if value is not None
    ]
    known = [value for value in values if value is not None]
    text = "no data"
    if known:
        text = f"from {axis.text(min(known))} to {axis.text(max(known))}; {dots[-1].description}"
    return _drawing(title, text, labels, axis)._replace(dots=dots, mark=None if mark is None else axis.y(mark))


def round_up(value: float) -> float:
    """Return a round number that is at least `value`, for the upper end of an axis."""
    if not value > 0:
        return 1.0
    if value > _MAX_ROUNDED:
        return value
    size = 10.0 ** (len(f"{int(value)}") if value >= 1 else 0)
    while size / 10 >= value:
        size /= 10
    return next(size * part for part in (0.1, 0.2, 0.25, 0.5, 1.0) if size * part >= value)


def _drawing(title: str, description: str, labels: Sequence[str], axis: Axis) -> Drawing:
    ticks = [(axis.y(value), axis.text(value)) for value in (0.0, axis.high / 2, axis.high)]
    return Drawing(title, description, ticks, labels[0] if labels else "", labels[-1] if len(labels) > 1 else "")
