"""The figures of a window as a picture: success and retry rates of each pipeline over time, and how runs ended."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import NamedTuple

from PIL import Image, ImageDraw

from retake.kpi.facts import Fact, micros
from retake.kpi.figures import POLLS, RETRY_TARGET, SUCCESS_TARGET, Figures, KpiLevel, PipelineFigures, ratio
from retake.media.typeset import draw_line, line_width, shortened
from retake.percent import percent
from retake.runs.states import RunStatus

WIDTH, HEIGHT = 1200, 860
SUPERSAMPLING = 2  # the factor by which the picture is drawn larger, for smooth lines

Colour = tuple[int, int, int]

PAPER, INK, FAINT, GRID = (252, 252, 250), (33, 37, 41), (108, 117, 125), (225, 228, 232)
LINES: Sequence[Colour] = ((31, 119, 180), (214, 109, 0), (127, 86, 196), (0, 140, 149), (190, 60, 120), (120, 94, 50))
"""The colours of the pipelines with the most runs. They also differ in lightness."""
REST = (150, 155, 160)  # all other pipelines together
TARGET = (90, 98, 104)
STATUSES: dict[str, Colour] = {"succeeded": (86, 170, 106), "failed": (205, 68, 62), "cancelled": (173, 181, 189)}
LEVELS = {
    KpiLevel.OK: (47, 133, 71),
    KpiLevel.WARNING: (184, 120, 0),
    KpiLevel.ERROR: (205, 68, 62),
    KpiLevel.CRITICAL: (160, 20, 40),
}

_LEFT, _RIGHT = 84, 872  # of the charts; the legend is to their right
_WIDTHS_S = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400, 604_800, 2_592_000, 7_776_000)
_MAX_BINS = 48


class Bins(NamedTuple):
    """Intervals that divide the window, all of the same length except the first."""

    since: datetime
    until: datetime
    width_s: int

    @property
    def first(self) -> int:
        return micros(self.since) // (self.width_s * 10**6)

    @property
    def number(self) -> int:
        return (micros(self.until) // (self.width_s * 10**6)) - self.first + 1

    def of(self, at: int) -> int:
        return at // (self.width_s * 10**6) - self.first


class Series(NamedTuple):
    """The counts of one pipeline, or of several together, in each bin."""

    name: str
    colour: Colour
    counts: tuple[Counter[str], ...]

    def success(self, number: int) -> float | None:
        it = self.counts[number]
        return ratio(it["succeeded"], it["succeeded"] + it["failed"])

    def retries(self, number: int) -> float | None:
        it = self.counts[number]
        return ratio(max(0, it["failed tries"] - it["given up"]), it["tries"])


class Chart(NamedTuple):
    """The position of one chart, and the range of its values."""

    top: int
    bottom: int
    low: float
    high: float

    def y(self, value: float) -> float:
        return self.bottom - (min(max(value, self.low), self.high) - self.low) / (self.high - self.low) * (
            self.bottom - self.top
        )


def draw(figures: Figures, since: datetime, facts: Iterable[Fact]) -> bytes:
    """Return a PNG of the window from `since` to `figures.at`. `facts` are all facts in the window."""
    bins = _bins(since, figures.at)
    series = _series(figures, bins, facts)
    sheet = _Canvas(bins)
    sheet.text(f"Retake, {since:%Y-%m-%d %H:%M} to {figures.at:%Y-%m-%d %H:%M} UTC", (_LEFT - 44, 46), 24, INK)
    level = figures.level
    sheet.text(f"overall: {level}", (_RIGHT + 40, 46), 20, LEVELS[level])
    success, retries = _chart(110, 300, series, Series.success), _chart(372, 542, series, Series.retries)
    sheet.rates("Success rate of the runs that ended", success, SUCCESS_TARGET, series, Series.success)
    sheet.rates("Retry rate: tries that failed and were retried", retries, RETRY_TARGET, series, Series.retries)
    sheet.runs(Chart(614, 784, 0, 1), series)
    sheet.legend(figures, series)
    return sheet.png()


def _bins(since: datetime, until: datetime) -> Bins:
    length_s = (until - since) / timedelta(seconds=1)
    width = next((it for it in _WIDTHS_S if length_s / it <= _MAX_BINS), _WIDTHS_S[-1])
    return Bins(since, until, width)


def _series(figures: Figures, bins: Bins, facts: Iterable[Fact]) -> list[Series]:
    """Return a series for each of the pipelines with the most runs, and one for all others together."""
    busiest = sorted(figures.pipelines, key=lambda it: (-it.ended, it.pipeline))[: len(LINES)]
    shown = [it.pipeline for it in sorted(busiest, key=lambda it: it.pipeline)]
    series = [Series(name, LINES[n], tuple(Counter() for _ in range(bins.number))) for n, name in enumerate(shown)]
    if len(figures.pipelines) > len(shown):
        name = f"{len(figures.pipelines) - len(shown)} others"
        series.append(Series(name, REST, tuple(Counter() for _ in range(bins.number))))
    places = {it.name: it for it in series[: len(shown)]}
    for fact in facts:
        kind, pipeline, *rest = fact.cell
        counts = (places.get(pipeline) or series[-1]).counts[bins.of(fact.at)]
        if kind == "ended":
            counts[rest[0]] += fact.amount
        if kind in ("done", "failed", "given_up") and rest[0] not in POLLS:
            counts["tries"] += fact.amount if kind != "given_up" else 0
            counts["failed tries"] += fact.amount if kind == "failed" else 0
            counts["given up"] += fact.amount if kind == "given_up" else 0
    return series


def _chart(top: int, bottom: int, series: Sequence[Series], value: Callable[[Series, int], float | None]) -> Chart:
    """Return a chart with a range that fits the values: success from the worst up to 100 %, retries from 0 to the
    worst."""
    found = [it for one in series for n in range(len(one.counts)) if (it := value(one, n)) is not None]
    if value is Series.success:
        low = min(found, default=1.0)
        return Chart(top, bottom, next(it for it in (0.95, 0.9, 0.8, 0.5, 0.0) if low >= it), 1.0)
    high = max(found, default=0.0)
    return Chart(top, bottom, 0.0, next(it for it in (0.1, 0.2, 0.5, 1.0) if high <= it))


class _Canvas:
    """Draws the picture. All positions and sizes are in pixels of the finished picture."""

    def __init__(self, bins: Bins) -> None:
        self._bins = bins
        self._image = Image.new("RGB", (WIDTH * SUPERSAMPLING, HEIGHT * SUPERSAMPLING), PAPER)
        self._target = ImageDraw.Draw(self._image)

    def png(self) -> bytes:
        stream = BytesIO()
        self._image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).save(stream, "PNG", optimize=True)
        return stream.getvalue()

    # --- what is shown ---

    def rates(
        self,
        title: str,
        chart: Chart,
        target: float,
        series: Sequence[Series],
        value: Callable[[Series, int], float | None],
    ) -> None:
        """Draw a line for each series, with a dot for each bin that has a value, and the target as a dashed line."""
        length = chart.high - chart.low
        parts = 4 if 0.15 < length < 0.25 else 5
        steps = [chart.low + length * part / parts for part in range(parts + 1)]
        self._frame(title, chart, [(it, f"{100 * it:.4g} %") for it in steps])
        self._dashed(chart.y(target))
        label = f"target: {'above' if value is Series.success else 'at most'} {100 * target:g} %"
        left = _RIGHT - line_width(label, 14)
        self.text(label, (left, chart.top - 18), 14, TARGET)
        self._dashed(chart.top - 23, int(left) - 38, int(left) - 8)
        for one in series:
            places = [
                (self._middle(number), chart.y(found))
                for number in range(self._bins.number)
                if (found := value(one, number)) is not None
            ]
            self._path(places, one.colour)

    def runs(self, chart: Chart, series: Sequence[Series]) -> None:
        """Draw the runs that ended in each bin, as bars stacked by status."""
        ended = [Counter[str]() for _ in range(self._bins.number)]
        for one in series:
            for number, counts in enumerate(one.counts):
                ended[number].update({status: counts[status] for status in STATUSES})
        most = _round_up(max((sum(it.values()) for it in ended), default=0))
        chart = chart._replace(high=most)
        marks = [round(most * part / 4, 2) for part in range(5)] if most >= 4 else [*range(most + 1)]
        self._frame("Runs that ended", chart, [(it, f"{it:g}") for it in marks], times=True)
        if not any(it.total() for it in ended):
            self.text("no run ended in this time", (_LEFT + 300, (chart.top + chart.bottom) / 2), 16, FAINT)
        for number, counts in enumerate(ended):
            below = 0
            left, right = self._edges(number)
            for status, colour in STATUSES.items():
                if counts[status]:
                    self._box(left, chart.y(below + counts[status]), right, chart.y(below), colour)
                    below += counts[status]

    def legend(self, figures: Figures, series: Sequence[Series]) -> None:
        """Draw the pipelines with their figures, and the colours of the statuses."""
        by_name = {it.pipeline: it for it in figures.pipelines}
        x, y = _RIGHT + 40, 112.0
        for one in series:
            it = by_name.get(one.name)
            self._box(x, y - 10, x + 14, y + 2, one.colour)
            self.text(shortened(one.name or "no pipeline", 17, WIDTH - x - 40), (x + 24, y + 2), 17, INK)
            for line, colour in _legend_lines(it) if it else []:
                y += 22
                self.text(line, (x + 24, y + 2), 14, colour)
            y += 38
        if not series:
            self.text("no pipeline", (x, y), 17, FAINT)
        for number, (status, colour) in enumerate(STATUSES.items()):
            total = sum(it.runs[RunStatus(status)] for it in figures.pipelines)
            self._box(x, 650 + 32 * number - 10, x + 14, 650 + 32 * number + 2, colour)
            self.text(f"{status}: {total:,}", (x + 24, 650 + 32 * number + 3), 16, INK)

    def text(self, text: str, place: tuple[float, float], size: int, colour: Colour) -> None:
        draw_line(
            self._target, text, (place[0] * SUPERSAMPLING, place[1] * SUPERSAMPLING), size * SUPERSAMPLING, colour
        )

    # --- parts of a chart ---

    def _frame(self, title: str, chart: Chart, marks: Sequence[tuple[float, str]], *, times: bool = False) -> None:
        self.text(title, (_LEFT - 44, chart.top - 18), 17, INK)
        for value, label in marks:
            y = chart.y(value)
            self._line([(_LEFT, y), (_RIGHT, y)], GRID, 1)
            self.text(label, (_LEFT - 10 - line_width(label, 13), y + 5), 13, FAINT)
        for moment, label in _ticks(self._bins):
            x = self._x(moment)
            self._line([(x, chart.top), (x, chart.bottom + 4)], GRID, 1)
            if times:
                self.text(label, (x - line_width(label, 13) / 2, chart.bottom + 24), 13, FAINT)
        if times:
            self.text("UTC", (_RIGHT + 14, chart.bottom + 24), 13, FAINT)

    def _x(self, moment: datetime) -> float:
        part = (moment - self._bins.since) / (self._bins.until - self._bins.since)
        return _LEFT + min(max(part, 0.0), 1.0) * (_RIGHT - _LEFT)

    def _edges(self, number: int) -> tuple[float, float]:
        begin = datetime.fromtimestamp((self._bins.first + number) * self._bins.width_s, UTC)
        left, right = self._x(begin), self._x(begin + timedelta(seconds=self._bins.width_s))
        gap = min(1.5, (right - left) / 6)
        return left + gap, max(right - gap, left + gap + 1)

    def _middle(self, number: int) -> float:
        left, right = self._edges(number)
        return (left + right) / 2

    def _path(self, places: Sequence[tuple[float, float]], colour: Colour) -> None:
        self._line(places, colour, 2)
        for x, y in places:
            box = ((x - 3) * SUPERSAMPLING, (y - 3) * SUPERSAMPLING, (x + 3) * SUPERSAMPLING, (y + 3) * SUPERSAMPLING)
            self._target.ellipse(box, fill=colour)

    def _line(self, places: Sequence[tuple[float, float]], colour: Colour, width: int) -> None:
        if len(places) > 1:
            scaled = [(x * SUPERSAMPLING, y * SUPERSAMPLING) for x, y in places]
            self._target.line(scaled, fill=colour, width=width * SUPERSAMPLING, joint="curve")

    def _dashed(self, y: float, left: int = _LEFT, right: int = _RIGHT) -> None:
        for x in range(left, right, 12):
            self._line([(x, y), (min(x + 7, right), y)], TARGET, 1)

    def _box(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        self._target.rectangle(
            (left * SUPERSAMPLING, top * SUPERSAMPLING, right * SUPERSAMPLING, bottom * SUPERSAMPLING), fill=colour
        )


def _legend_lines(it: PipelineFigures) -> list[tuple[str, Colour]]:
    mean = "" if it.mean_seconds is None else f", mean {it.mean_seconds:,.0f} s"
    return [
        (f"{it.level}, {it.ended:,} runs{mean}", LEVELS[it.level]),
        (f"success {percent(it.success_rate)}, retries {percent(it.retry_rate)}", FAINT),
    ]


def _ticks(bins: Bins) -> list[tuple[datetime, str]]:
    """Return the ticks of the time axis: round moments within the window, and their labels."""
    length_s = (bins.until - bins.since) / timedelta(seconds=1)
    steps = (1, 5, 15, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800)
    step = next((it for it in steps if length_s / it <= 8), 2_592_000 * max(1, round(length_s / 2_592_000 / 8)))
    first = -(-micros(bins.since) // (step * 10**6))
    last = micros(bins.until) // (step * 10**6)
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 43_200 else "%b %d" if step < 604_800 else "%Y-%m-%d"
    moments = [datetime.fromtimestamp(number * step, UTC) for number in range(first, last + 1)]
    return [(it, f"{it:%b %d}" if form == "%H:%M" and not (it.hour or it.minute) else f"{it:{form}}") for it in moments]


def _round_up(number: int) -> int:
    """Return `number` rounded up to a round number, at least 1. From 4 on it is a multiple of 4, so that quarters are
    whole."""
    if number <= 4:
        return max(1, number)
    size = 4
    while size * 5 < number:
        size *= 5 if str(size)[0] == "4" and size * 5 < number else 2
    return -(-number // size) * size
