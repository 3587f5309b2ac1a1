"""The ledger in databases: transitions per second compared with the bare driver, and how it slows as runs
accumulate."""

import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.ledger_rows import grow
from bench.pipelines import ROOT
from bench.table import markdown
from retake.clock import SystemClock
from retake.runs.database import Database, open_database
from retake.runs.run import Run
from retake.runs.sql_ledger import SqlLedger, open_sql_ledger
from retake.runs.states import Trigger

ROUNDS = 7
RUNS_PER_ROUND = 75  # each claimed and completed
SIZES = (1_000, 10_000, 100_000, 1_000_000)
SAMPLES = 25  # of each operation at each size

Execution = tuple[str, Any]


def ledger_table(folder: Path) -> str:
    with servers(folder) as places:
        speeds = [(name, *speed(urls)) for name, urls in places.items()]
        sizes = growth({name: urls[3] for name, urls in places.items()})
    return "\n\n".join((speed_table(speeds), growth_table(tuple(places), sizes)))


@contextmanager
def servers(folder: Path) -> Iterator[dict[str, list[str]]]:
    """Yield the URLs of four empty databases of each kind. PostgreSQL runs with its default settings, so what it has
    committed is on disk."""
    sys.path.append(str(ROOT / "tests"))
    from postgres import NoServer, new_database, server

    places = {"SQLite": [f"sqlite:{folder}/{name}.db" for name in ("ours", "recorded", "bare", "grown")]}
    try:
        with server() as base:
            yield {**places, "PostgreSQL": [new_database(base) for _ in range(4)]}
    except NoServer as error:
        print(error, file=sys.stderr)
        yield places


# --- beside the bare driver ----------------------------------------------------------------------------------------


def speed_table(rows: Sequence[Sequence[str]]) -> str:
    title = (
        "Transitions of runs on a ledger by one client, each with its event, and each on the disk before the next "
        "begins; the reference is the same statements with the same values, recorded from a ledger, by the bare "
        f"driver: sqlite3, psycopg. Interleaved, medians of {ROUNDS} rounds of {2 * RUNS_PER_ROUND}."
    )
    return markdown(title, ("ledger", "statements each", "transitions/s", "bare/s", "÷ bare"), rows)


def speed(urls: Sequence[str]) -> tuple[str, ...]:
    ours, recorded, bare = (open_sql_ledger(url, SystemClock()) for url in urls[:3])
    batches = [list(zip(*(create(ledger, n) for ledger in (ours, recorded, bare)), strict=True)) for n in range(ROUNDS)]
    times = [(ours_s, bare_s) for ours_s, bare_s in (run_round(urls, ours, recorded, batch) for batch in batches)]
    number = len(record(recorded, create(recorded, ROUNDS)[:1]))
    for ledger in (ours, recorded, bare):
        ledger.close()
    mine, theirs = (2 * RUNS_PER_ROUND / statistics.median(side) for side in zip(*times, strict=True))
    ratio = statistics.median(bare_s / ours_s for ours_s, bare_s in times)
    return f"{number / 2:g}", f"{mine:,.0f}", f"{theirs:,.0f}", f"{ratio:.2f}"


def create(ledger: SqlLedger, round_: int) -> list[Run]:
    return [
        ledger.create_for_task(f"task {round_}.{n}", f"task {round_}.{n}#1", actor="bench")
        for n in range(RUNS_PER_ROUND)
    ]


def run_round(
    urls: Sequence[str], ours: SqlLedger, recorded: SqlLedger, batch: Sequence[tuple[Run, ...]]
) -> tuple[float, float]:
    """Return the seconds that the ledger takes, and those of the bare driver."""
    replay_all = replay(urls[2], record(recorded, [runs[1] for runs in batch]))
    began = time.perf_counter()
    run_to_end(ours, [runs[0] for runs in batch])
    between = time.perf_counter()
    replay_all()
    return between - began, time.perf_counter() - between


def run_to_end(ledger: SqlLedger, runs: Sequence[Run]) -> None:
    for run in runs:
        ledger.move(
            ledger.move(run, Trigger.WORKER_CLAIM, actor="bench", worker="bench"), Trigger.COMPLETED, actor="bench"
        )


def record(ledger: SqlLedger, runs: Sequence[Run]) -> list[Execution]:
    """Run `runs` to their end; return the statements that the driver is given."""
    recorded: list[Execution] = []
    original = Database.cursor

    @contextmanager
    def recording(database: Database) -> Iterator[Any]:
        with original(database) as cursor:
            yield RecordingCursor(cursor, recorded)

    with patch.object(Database, "cursor", recording):
        run_to_end(ledger, runs)
    return recorded


class RecordingCursor:
    """A driver's cursor that records the statements it is given."""

    def __init__(self, cursor: Any, recorded: list[Execution]) -> None:
        self._cursor, self._recorded = cursor, recorded

    def execute(self, sql: str, values: Any = None) -> None:
        self._recorded.append((sql, values))
        self._cursor.execute(sql, values) if values is not None else self._cursor.execute(sql)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def replay(url: str, recorded: Sequence[Execution]) -> Callable[[], None]:
    """Return a function that executes the same statements on a bare connection, which is opened now."""
    if url.startswith("sqlite:"):
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:"), isolation_level=None)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
    else:
        import psycopg

        connection = psycopg.connect(url, autocommit=True)

    def replay_all() -> None:
        cursor = connection.cursor()
        for sql, values in recorded:
            cursor.execute(sql, values) if values is not None else cursor.execute(sql)
            if cursor.description:
                cursor.fetchall()
        connection.close()

    return replay_all


# --- growth --------------------------------------------------------------------------------------------------------


def growth_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    title = (
        "Milliseconds of one operation by the number of runs on the ledger: a transition, a claim, a list of the 50 "
        f"runs that changed last, the counts by state. Medians of {SAMPLES}."
    )
    heads = [head for name in names for head in (f"{name}: move", "claim", "list", "counts")]
    return markdown(title, ("runs", *heads), rows)


def growth(urls: dict[str, str]) -> list[tuple[str, ...]]:
    rows: dict[int, list[str]] = {size: [] for size in SIZES}
    for url in urls.values():
        ledger = open_sql_ledger(url, SystemClock())
        database = open_database(url, read_only=False)
        for size in SIZES:
            grow(database, size)
            rows[size] += measure(ledger)
        database.close()
        ledger.close()
    return [(f"{size:,}", *cells) for size, cells in rows.items()]


def measure(ledger: SqlLedger) -> list[str]:
    stamp = time.perf_counter_ns()
    fresh = [ledger.create_for_task(f"new {stamp}.{n}", f"new {stamp}.{n}#1", actor="bench") for n in range(SAMPLES)]
    operations: list[Callable[[int], object]] = [
        lambda n: ledger.move(fresh[n], Trigger.CANCEL_COMMAND, actor="bench"),
        lambda n: ledger.claim("bench"),
        lambda n: ledger.runs(limit=50),
        lambda n: ledger.counts(),
    ]
    return [
        f"{statistics.median(seconds(operation, n) for n in range(SAMPLES)) * 1000:.2f}" for operation in operations
    ]


def seconds(operation: Callable[[int], object], n: int) -> float:
    began = time.perf_counter()
    operation(n)
    return time.perf_counter() - began
