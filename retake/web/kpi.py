"""The page of figures (rates, durations and levels over a window), and the metrics for Prometheus."""

import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

from retake.errors import RetakeError
from retake.exit_codes import ExitCode
from retake.kpi.facts import Fact, micros
from retake.kpi.figures import SUCCESS_TARGET, KpiLevel, PipelineFigures, StepFigures, ratio
from retake.operations.kpi import KpiReader, KpiReport
from retake.operations.words import read_window, span, window_length
from retake.percent import percent
from retake.web.charts import Axis, Drawing, bar_chart, line_chart, round_up
from retake.web.desk import Desk, PageData
from retake.web.gate import wants_page
from retake.web.shelf import READ_S, BucketSilent

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
MAX_PIPELINES = 60
"""Maximum number of pipelines on the page: the worst, and of those the ones with the most runs."""

_PATIENCE_S, _SHORT_S = 1.0, 0.2
"""Seconds that a page waits for figures before it says that runs are being counted, and the shorter wait if that is
known already or there are earlier figures to show."""

_RUNS_PER_REST = 100  # runs counted between two pauses
_MAX_REPORTS = 20  # kept in memory

_MAX_BINS = 40  # of a chart
_BIN_WIDTHS_S = (60, 300, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400, 604_800, 2_592_000, 7_776_000)

TONES = {KpiLevel.OK: "good", KpiLevel.WARNING: "warn", KpiLevel.ERROR: "bad", KpiLevel.CRITICAL: "bad"}

WINDOWS = ("24h", "7d", "30d")
"""The windows offered on the page."""


class StillCounting(RetakeError):
    """The runs are being counted, for the first time since the dashboard started."""

    exit_code = ExitCode.TRY_LATER

    def __init__(self, runs: int) -> None:
        super().__init__(f"the runs are being counted, {runs:,} so far; ask again in a moment")
        self.runs = runs


class FigureReader:
    """Reads figures for many viewers: one count at a time, kept in memory and never written to the bucket.

    Counting all runs may take minutes; no request waits longer than `_PATIENCE_S` for it.
    """

    def __init__(self, desk: Desk) -> None:
        self._reader = KpiReader(desk.operations, read_only=True, progress=self._on_progress)
        self._shelf, self._desk = desk.shelf.child(), desk
        self._lock = threading.Lock()
        self._last: OrderedDict[Hashable, Any] = OrderedDict()
        self._runs, self._counting = 0, False
        self._since = 0.0

    def seen(self, window_s: float | None, window: str) -> tuple[datetime, PageData]:
        """Return the page's data and its time: the previous figures while they are counted again. Raises like
        `KpiReader.report`, and StillCounting, BucketSilent."""

        def read() -> tuple[datetime, PageData]:
            report = self._reader.report(window_s)
            ended = (it for it in report.facts() if it.cell[0] == "ended")
            return report.figures.at, PageData(report.figures.document(), kpi_view(report, ended))

        found: tuple[datetime, PageData] = self._get(window, read)
        return found

    def metrics(self) -> str:
        """Return the metrics; until the runs are counted, without those that need the count. Raises like
        `KpiReader.metrics`, and BucketSilent."""
        try:
            found: str = self._get(None, self._reader.metrics)
        except StillCounting:
            found = self._desk.shelf.get("levels", self._reader.levels)
        return found

    def _get(self, key: Hashable, read: Callable[[], Any]) -> Any:
        def counted() -> Any:
            with self._lock:
                self._runs, self._counting, self._since = 0, False, time.thread_time()
                try:
                    found = read()
                finally:
                    self._counting = False
            self._last[key] = found
            while len(self._last) > _MAX_REPORTS:
                self._last.popitem(last=False)
            return found

        known = self._counting or key in self._last
        try:
            return self._shelf.get(key, counted, _SHORT_S if known else _PATIENCE_S)
        except BucketSilent:
            if key in self._last:
                return self._last[key]
            if self._counting:
                raise StillCounting(self._runs) from None
            return self._shelf.get(key, counted, READ_S - _PATIENCE_S)

    def _on_progress(self, runs: int) -> None:
        """Pause for as long as the last runs took to read, so that pages are served meanwhile."""
        if self._shelf.closed:
            raise BucketSilent("the dashboard is stopping")
        self._counting, self._runs = True, self._runs + runs
        if runs and self._runs % _RUNS_PER_REST == 0:
            time.sleep(min(1.0, max(0.0, time.thread_time() - self._since)))
            self._since = time.thread_time()


def kpi_routes(desk: Desk) -> APIRouter:
    """Return the routes /kpi and /metrics."""
    router, reader = APIRouter(), FigureReader(desk)

    @router.get("/kpi")
    def kpi(request: Request, window: str = "") -> Response:
        try:
            window_s = read_window(window) if window else None
        except ValueError as error:
            raise HTTPException(422, str(error)) from None

        try:
            at, seen = reader.seen(window_s, window)
        except StillCounting as counting:
            if not wants_page(request.scope):
                raise
            return desk.page(request, "counting.html", {"runs": f"{counting.runs:,}"})

        return desk.respond(request, "kpi.html", at, seen)

    @router.get("/metrics")
    def metrics() -> Response:
        return Response(reader.metrics(), media_type=PROMETHEUS)

    return router


def kpi_view(report: KpiReport, ended: Iterable[Fact]) -> dict[str, Any]:
    """Return the values of the page's template. `ended` are the facts about how runs ended."""
    figures = report.figures
    told = [it for it in figures.pipelines if not it.silent]
    worst_first = sorted(told, key=lambda it: (-it.level.rank, -it.ended, it.pipeline))
    return {
        "windows": [(it, read_window(it) == figures.window_seconds) for it in WINDOWS],
        "length": window_length(figures.window_seconds),
        "level": figures.level.value,
        "tone_of_all": TONES[figures.level],
        "rows": [_row(it) for it in worst_first[:MAX_PIPELINES]],
        "more": max(0, len(told) - MAX_PIPELINES),
        "silent": len(figures.pipelines) - len(told),
        "charts": _charts(report, ended),
        "target": f"{100 * SUCCESS_TARGET:g} %",
    }


def _row(it: PipelineFigures) -> dict[str, Any]:
    return {
        "name": it.pipeline or "no pipeline",
        "level": it.level.value,
        "tone": TONES[it.level],
        "ended": it.ended,
        "success": percent(it.success_rate, ""),
        "retries": percent(it.retry_rate, ""),
        "mean": "" if it.mean_seconds is None else span(it.mean_seconds),
        "errors": it.errors_in_words,
        "missed": ", ".join(name.replace("_", " ") for name in it.targets_missed),
        "steps": [_step(step) for step in it.steps[:30]],
    }


def _step(it: StepFigures) -> tuple[str | int, ...]:
    return it.step, it.done, it.failed_tries, it.given_up, percent(it.success_rate, ""), percent(it.retry_rate, "")


def _charts(report: KpiReport, ended: Iterable[Fact]) -> list[Drawing]:
    """Return charts of the runs that ended, and of the share that succeeded, over time."""
    names, counts = _over_time(report.since, report.figures.at, ended)
    runs = [float(sum(it.values())) for it in counts]
    half = math.ceil(round_up(max(runs, default=0) / 2))  # the tick in the middle of the axis is a whole number too
    rates = [ratio(100.0 * it["succeeded"], it["succeeded"] + it["failed"]) for it in counts]
    return [
        bar_chart("Runs that ended", names, runs, Axis(2.0 * half, digits=0)),
        line_chart("Runs that succeeded", names, rates, Axis(100.0, " %", 0), 100 * SUCCESS_TARGET),
    ]


def _over_time(since: datetime, until: datetime, ended: Iterable[Fact]) -> tuple[list[str], list[Counter[str]]]:
    """Divide the window into bins. Return their names, and for each how many runs ended in which status."""
    facts = [(it.at, str(it.cell[2]), it.amount) for it in ended]
    first = max(micros(since), min((at for at, _, _ in facts), default=micros(until)))
    length_s = (micros(until) - first) / 1e6
    width_s = next((it for it in _BIN_WIDTHS_S if length_s / it <= _MAX_BINS), _BIN_WIDTHS_S[-1])
    width = width_s * 10**6
    start = first // width
    counts: list[Counter[str]] = [Counter() for _ in range(min(micros(until) // width - start, 2000) + 1)]
    for at, status, amount in facts:
        counts[min(max(at // width - start, 0), len(counts) - 1)][status] += amount
    form = "%m-%d %H:%M" if width_s < 86_400 else "%Y-%m-%d"
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return [(epoch + timedelta(microseconds=(start + n) * width)).strftime(form) for n in range(len(counts))], counts
