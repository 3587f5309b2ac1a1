"""The figures of all pipelines of `Operations`, from each ledger, with snapshots at the bucket's root."""

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from logging import getLogger
from threading import Lock
from typing import NamedTuple, TypeVar
from zlib import crc32

from retake.alerts.settings import LEVELS
from retake.alerts.store import BoardStore
from retake.bucket import Bucket, NotFound
from retake.errors import StateError
from retake.kpi.facts import Cell, CountedItem, Fact, RunSource, Source, added_up, micros
from retake.kpi.figures import Figures, PipelineFigures, each_pipeline, pipeline_figures
from retake.kpi.metrics import Metrics, render, replace_file
from retake.kpi.sheet import RECENT_S
from retake.kpi.snapshots import CountedRuns, KpiSnapshots, OutdatedSnapshot
from retake.operations.breakers import breaker_states, open_breakers
from retake.operations.modes import ModePanel
from retake.operations.pipelines import ROOT, Operations
from retake.operations.port import OperatedPipeline
from retake.paid.caps import CAPS
from retake.paid.day_book import decoded, is_day
from retake.retrying.dead_letters import DeadLetters
from retake.runs.bucket_index import tag_of
from retake.runs.history import Fingerprint, RunHistory, fingerprint, open_history
from retake.strict_json import parse

_MAX_WAITING = 100
"""Maximum number of ledgers that wait for a thread, since each takes memory then."""

MAX_AGE_S = 3600.0
"""Maximum age in seconds of the snapshot of an unchanged ledger."""

_log = getLogger(__name__)

T = TypeVar("T")


class KpiReport(NamedTuple):
    """The figures of a window, and the facts that they are computed from."""

    figures: Figures
    since: datetime
    counted: tuple[CountedRuns, ...]

    def facts(self) -> Iterator[Fact]:
        """Yield the facts in the window about the pipelines in the figures. Raises StorageError."""
        names = {it.pipeline for it in self.figures.pipelines}
        for counted in self.counted:
            found = counted.facts(micros(self.since), micros(self.figures.at))
            yield from (fact for fact in found if fact.cell[1] in names)


class KpiSums(NamedTuple):
    """The counts in all ledgers together up to `at`, without any data of single runs."""

    at: datetime
    recent: Mapping[float, Mapping[Cell, int]]  # by window in seconds, without open runs
    totals: Mapping[Cell, int]  # since the ledgers began; empty unless requested


class KpiReader:
    """Counts runs, and takes snapshots when they are due; with `read_only` the snapshots stay in memory. One object may
    be used for the whole life of a process. `progress` is passed to `RunSource`."""

    def __init__(
        self,
        operations: Operations,
        *,
        read_only: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._operations, self._progress = operations, progress
        self._terms = operations.terms.kpi
        self._snapshots = KpiSnapshots(
            operations.bucket,
            operations.clock,
            every_s=self._terms.snapshot_seconds,
            recent_s=max(RECENT_S, self._terms.window_seconds),
            read_only=read_only,
        )

    def report(
        self, window_s: float | None = None, *, until: datetime | None = None, rebuild: bool = False
    ) -> KpiReport:
        """Return the figures of the `window_s` seconds, by default `KPI.window_seconds`, up to `until`, by default now.

        With `rebuild` everything is counted again and the snapshots are replaced. Raises SettingsError, StateError and
        StorageError if a ledger cannot be read.
        """
        counted = tuple(self._of_each_ledger(lambda it: it, rebuild=rebuild))
        stopped, now = _stopped(self._operations), until or self._operations.clock.now()
        return self._report(counted, stopped, window_s or self._terms.window_seconds, now)

    def sums(
        self, windows_s: Collection[float], *, totals: bool = False, unchanged: Container[str] | None = None
    ) -> KpiSums:
        """Return the counts in the windows up to now and, with `totals`, since the ledgers began. There may be 10,000
        ledgers, so only the sums are kept. Raises like `report`.

        If a tick knows which pipelines are `unchanged` since their last snapshot, their own ledgers are not looked at,
        and of the others each change is saved for later ticks.
        """
        now, lock = self._operations.clock.now(), Lock()
        recent = {window_s: Counter[Cell]() for window_s in windows_s}
        since_ever = Counter[Cell]()

        def add(counted: CountedRuns) -> None:
            found = {it: counted.between(micros(_before(now, it)), micros(now)) for it in recent}
            with lock:
                for window_s, cells in found.items():
                    recent[window_s].update({cell: amount for cell, amount in cells.items() if cell[0] != "open"})
                if totals:
                    since_ever.update(counted.totals())

        self._of_each_ledger(add, unchanged=unchanged)
        return KpiSums(now, recent, since_ever)

    def recent_figures(self, sums: KpiSums, window_s: float) -> Iterator[PipelineFigures]:
        """Yield the figures of each pipeline with any activity in one of the windows of `sums`. They do not say whether
        a pipeline has stopped."""
        return each_pipeline(sums.recent[window_s], min_runs=self._terms.min_runs)

    def metrics(self, sums: KpiSums | None = None) -> str:
        """Return all metrics in Prometheus's text format. `sums`, if given, must be fresh and have the window
        `KPI.window_seconds` and the totals. Raises like `report`."""
        window_s = self._terms.window_seconds
        sums = sums or self.sums([window_s], totals=True)
        books = self._snapshots.counted("caps", DayBooks(self._operations.bucket))
        figures = Figures(sums.at, window_s, self._figures(sums.recent[window_s], _stopped(self._operations)))
        return self._render(added_up([sums.totals, books.totals()]), figures)

    def levels(self) -> str:
        """Return the metrics that need no count of runs: dead letters, alerts, breakers, the mode. Raises like
        `report`."""
        return self._render({}, Figures(self._operations.clock.now(), self._terms.window_seconds, ()))

    def _render(self, totals: Mapping[Cell, int], figures: Figures) -> str:
        operations = self._operations
        now, states = operations.clock.now(), breaker_states(operations)
        not_closed = {it["name"] for it in open_breakers(states, now)}
        letters = {
            it.name: DeadLetters(it.bucket, operations.clock, counted=True).count() for it in operations.pipelines
        }
        breakers = {name: name in not_closed for name in states}
        return render(Metrics(totals, figures, letters, breakers, _open_alerts(operations), _mode(operations)))

    def write_textfile(self, sums: KpiSums | None = None) -> None:
        """Replace `KPI.textfile`, if it is set. `sums` is as for `metrics`. Raises like `report`."""
        if self._terms.textfile:
            replace_file(self._terms.textfile, self.metrics(sums).encode(), "the metrics")

    def _of_each_ledger(
        self, use: Callable[[CountedRuns], T], *, rebuild: bool = False, unchanged: Container[str] | None = None
    ) -> list[T]:
        """Return what `use` makes of the facts of each ledger. It is called again if a snapshot turns out to be of no
        use."""
        found: list[T] = []
        remembered: dict[str, CountedRuns] = {}

        def counted(writer: OperatedPipeline) -> T:
            name, history = _history(self._operations, writer)
            if name in remembered:
                with suppress(OutdatedSnapshot):
                    return use(remembered.pop(name))
            source, every_change = RunSource(history, self._progress), unchanged is not None
            return use(self._snapshots.counted(name, source, rebuild=rebuild, every_change=every_change))

        writers = self._operations.writers()
        if self._progress:  # it counts, and paces, what one thread reads
            return [*map(counted, writers)]
        for at in range(0, len(writers), _MAX_WAITING):
            those = writers[at : at + _MAX_WAITING]
            if unchanged is not None:
                own = [it.name for it in those if it.name in unchanged and self._operations.ledger_url(it) is None]
                remembered = self._snapshots.remembered([*map(tag_of, own)], MAX_AGE_S)
            found += self._operations.each(counted, those)
        return found

    def _report(
        self, counted: tuple[CountedRuns, ...], stopped: Collection[str], window_s: float, now: datetime
    ) -> KpiReport:
        since = _before(now, window_s)
        counts = added_up(it.between(micros(since), micros(now)) for it in counted)
        return KpiReport(Figures(now, window_s, self._figures(counts, stopped)), since, counted)

    def _figures(self, counts: Mapping[Cell, int], stopped: Collection[str]) -> tuple[PipelineFigures, ...]:
        listed = [it.name for it in self._operations.pipelines]
        if self._operations.named:
            counts = {cell: amount for cell, amount in counts.items() if cell[1] in listed}
        return pipeline_figures(counts, listed=listed, stopped=stopped, min_runs=self._terms.min_runs)


def histories(operations: Operations) -> Iterator[tuple[str, RunHistory]]:
    """Yield the name of the snapshots and the history of each ledger."""
    return (_history(operations, it) for it in operations.writers())


def _history(operations: Operations, writer: OperatedPipeline) -> tuple[str, RunHistory]:
    if (url := operations.ledger_url(writer)) is not None:
        history = open_history(url, operations.bucket, operations.ledger_setting(writer))
        return f"ledger-{sha256(url.encode()).hexdigest()[:12]}", history
    return "root" if writer.name == ROOT else tag_of(writer.name), open_history(None, writer.bucket)


def counted_ledgers(operations: Operations) -> Iterator[tuple[str, Source]]:
    """Yield everything that snapshots are taken of, with the name of the snapshots: each ledger, and the day books."""
    yield from ((name, RunSource(history)) for name, history in histories(operations))
    yield "caps", DayBooks(operations.bucket)


def _stopped(operations: Operations) -> list[str]:
    """Return the names of the pipelines that begin nothing until a person acts, if their documents are valid."""
    states = operations.each(lambda pipeline: pipeline.state(None, lambda vendor: ""))
    return [it.name for it, state in zip(operations.pipelines, states, strict=True) if state.stopped]


def _open_alerts(operations: Operations) -> Mapping[str, int] | None:
    """Return the number of open alerts of each level, or None if they cannot be read."""
    try:
        board = BoardStore(operations.bucket, operations.clock).read()
    except StateError as error:
        _log.warning("%s; the metrics lack the alerts", error)
        return None
    active = [it.level for it in board.alerts.values() if it.active]
    return {level: active.count(level) for level in LEVELS}


def _mode(operations: Operations) -> int | None:
    """Return the degraded mode, or None if it cannot be read."""
    panel = ModePanel(operations)
    try:
        return panel.mode(panel.state()).mode
    except StateError as error:
        _log.warning("%s; the metrics lack the mode", error)
        return None


def _before(now: datetime, window_s: float) -> datetime:
    try:
        return now - timedelta(seconds=window_s)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


class DayBooks:
    """The spending in the day books (`retake.paid.caps`), as a source of facts whose segments are months. Only settled
    calls count, so the sums never fall."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._listed: dict[str, dict[str, int]] = {}

    def segments(self) -> Mapping[str, Fingerprint]:
        self._listed = {}
        for entry in self._bucket.list(CAPS):
            day = entry.key.removeprefix(CAPS).removesuffix(".json")
            if entry.key == f"{CAPS}{day}.json" and is_day(day):
                mark = crc32(f"{day} {entry.size} {entry.modified!r}".encode())
                self._listed.setdefault(day[:7], {})[day] = mark
        return {month: fingerprint(marks.values()) for month, marks in self._listed.items()}

    def marks(self, segment: str) -> Mapping[str, int]:
        return self._listed.get(segment, {})

    def read(self, segment: str, run_ids: Iterable[str]) -> Iterator[CountedItem]:
        for day in run_ids:
            try:
                raw = parse(self._bucket.read(f"{CAPS}{day}.json")[0])
                if not isinstance(raw, dict):
                    raise ValueError("not a JSON object")  # noqa: TRY301, TRY004
                book = decoded(day, raw)
            except NotFound:
                continue
            except ValueError as error:
                _log.warning("%s%s.json: %s; the metrics lack this day's spending", CAPS, day, error)
                continue
            at = micros(datetime.fromisoformat(day).replace(tzinfo=UTC))
            sums = {} if book.moved else book.pipelines
            facts = [Fact(at, ("spent", name), round(it.settled * 1e6)) for name, it in sums.items()]
            yield CountedItem(day, self._listed[segment][day], segment, facts)
