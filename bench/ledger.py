"""The ledger in databases: transitions a second beside the bare driver's, and what grows with the number of runs."""

import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.ledger_rows import grown
from bench.pipelines import ROOT
from bench.table import markdown
from retake.clock import SystemClock
from retake.runs.database import Database, open_database
from retake.runs.run import Run
from retake.runs.sql_ledger import SqlLedger, open_sql_ledger
from retake.runs.states import Trigger

ROUNDS = 7
BATCH = 75  # runs a round, each taken up and completed
SIZES = (1_000, 10_000, 100_000, 1_000_000)
TRIED = 25  # of each operation, at each size

Execution = tuple[str, Any]


def ledger_table(folder: Path) -> str:
    with servers(folder) as places:
        speeds = [(name, *speed(urls)) for name, urls in places.items()]
        sizes = growth({name: urls[3] for name, urls in places.items()})
    return "\n\n".join((speed_table(speeds), growth_table(tuple(places), sizes)))


@contextmanager
def servers(folder: Path) -> Iterator[dict[str, list[str]]]:
    """Four empty databases of each kind. PostgreSQL as it is installed, so what it has committed is on the disk."""
    sys.path.append(str(ROOT / "tests" / "runs"))
    from postgres import NoServer, new_database, server

    places = {"SQLite": [f"sqlite:{folder}/{name}.db" for name in ("ours", "noted", "bare", "grown")]}
    try:
        with server() as base:
            yield {**places, "PostgreSQL": [new_database(base) for _ in range(4)]}
    except NoServer as error:
        print(error, file=sys.stderr)
        yield places


# --- beside the bare driver ----------------------------------------------------------------------------------------


def speed_table(rows: Sequence[Sequence[str]]) -> str:
    title = (
        "Transitions of runs on a ledger, each with its event and each on the disk before the next begins, by one "
        "client; and the same statements with the same values, recorded from a ledger, by the bare driver: sqlite3, "
        f"psycopg. Medians of {ROUNDS} rounds of {2 * BATCH}, in turn."
    )
    return markdown(title, ("ledger", "statements each", "transitions/s", "bare/s", "÷ bare"), rows)


def speed(urls: Sequence[str]) -> tuple[str, ...]:
    ours, noted, bare = (open_sql_ledger(url, SystemClock()) for url in urls[:3])
    batches = [list(zip(*(created(ledger, n) for ledger in (ours, noted, bare)), strict=True)) for n in range(ROUNDS)]
    done = [(ours_s, bare_s) for ours_s, bare_s in (a_round(urls, ours, noted, batch) for batch in batches)]
    number = len(recorded(noted, created(noted, ROUNDS)[:1]))
    for ledger in (ours, noted, bare):
        ledger.close()
    mine, theirs = (2 * BATCH / statistics.median(side) for side in zip(*done, strict=True))
    ratio = statistics.median(bare_s / ours_s for ours_s, bare_s in done)
    return f"{number / 2:g}", f"{mine:,.0f}", f"{theirs:,.0f}", f"{ratio:.2f}"


def created(ledger: SqlLedger, round_: int) -> list[Run]:
    return [ledger.create_for_task(f"task {round_}.{n}", f"task {round_}.{n}#1", actor="bench") for n in range(BATCH)]


def a_round(
    urls: Sequence[str], ours: SqlLedger, noted: SqlLedger, batch: Sequence[tuple[Run, ...]]
) -> tuple[float, float]:
    """Seconds, of the ledger and of the bare driver."""
    again = replay(urls[2], recorded(noted, [runs[1] for runs in batch]))
    began = time.perf_counter()
    lived(ours, [runs[0] for runs in batch])
    between = time.perf_counter()
    again()
    return between - began, time.perf_counter() - between


def lived(ledger: SqlLedger, runs: Sequence[Run]) -> None:
    for run in runs:
        ledger.move(
            ledger.move(run, Trigger.WORKER_CLAIM, actor="bench", worker="bench"), Trigger.COMPLETED, actor="bench"
        )


def recorded(ledger: SqlLedger, runs: Sequence[Run]) -> list[Execution]:
    """What the driver is asked while the runs live."""
    noted: list[Execution] = []
    usual = Database.cursor

    @contextmanager
    def noting(database: Database) -> Iterator[Any]:
        with usual(database) as cursor:
            yield Noting(cursor, noted)

    with patch.object(Database, "cursor", noting):
        lived(ledger, runs)
    return noted


class Noting:
    """A driver's cursor that notes what it is asked."""

    def __init__(self, cursor: Any, noted: list[Execution]) -> None:
        self._cursor, self._noted = cursor, noted

    def execute(self, sql: str, values: Any = None) -> None:
        self._noted.append((sql, values))
        self._cursor.execute(sql, values) if values is not None else self._cursor.execute(sql)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def replay(url: str, noted: Sequence[Execution]) -> Callable[[], None]:
    """The same by a connection of the driver's own, opened now."""
    if url.startswith("sqlite:"):
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:"), isolation_level=None)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
    else:
        import psycopg

        connection = psycopg.connect(url, autocommit=True)

    def again() -> None:
        cursor = connection.cursor()
        for sql, values in noted:
            cursor.execute(sql, values) if values is not None else cursor.execute(sql)
            if cursor.description:
                cursor.fetchall()
        connection.close()

    return again


# --- growth --------------------------------------------------------------------------------------------------------


def growth_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    title = (
        "What one operation takes on a ledger with so many runs in it, in milliseconds: a transition, a claim, a list "
        f"of the 50 that changed last, the counts by state. Medians of {TRIED}."
    )
    heads = [head for name in names for head in (f"{name}: move", "claim", "list", "counts")]
    return markdown(title, ("runs", *heads), rows)


def growth(urls: dict[str, str]) -> list[tuple[str, ...]]:
    rows: dict[int, list[str]] = {size: [] for size in SIZES}
    for url in urls.values():
        ledger = open_sql_ledger(url, SystemClock())
        database = open_database(url, read_only=False)
        for size in SIZES:
            grown(database, size)
            rows[size] += taken(ledger)
        database.close()
        ledger.close()
    return [(f"{size:,}", *cells) for size, cells in rows.items()]


def taken(ledger: SqlLedger) -> list[str]:
    stamp = time.perf_counter_ns()
    fresh = [ledger.create_for_task(f"new {stamp}.{n}", f"new {stamp}.{n}#1", actor="bench") for n in range(TRIED)]
    operations: list[Callable[[int], object]] = [
        lambda n: ledger.move(fresh[n], Trigger.CANCEL_COMMAND, actor="bench"),
        lambda n: ledger.claim("bench"),
        lambda n: ledger.runs(limit=50),
        lambda n: ledger.counts(),
    ]
    return [f"{statistics.median(timed(operation, n) for n in range(TRIED)) * 1000:.2f}" for operation in operations]


def timed(operation: Callable[[int], object], n: int) -> float:
    began = time.perf_counter()
    operation(n)
    return time.perf_counter() - began
