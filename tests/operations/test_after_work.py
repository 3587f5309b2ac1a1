"""The work after the ticks of a round: 10,000 ledgers are counted, and almost nothing is kept in memory."""

import gc
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Lock
from typing import TypeVar

from retake.bucket import ANY
from retake.bucket.memory import MemoryBucket
from retake.bucket.wrappers import CountingBucket, Wrapper
from retake.clock import FakeClock
from retake.degraded.mode import Mode
from retake.operations.after_work import after_work
from retake.operations.kpi import MAX_AGE_S, KpiReader
from retake.runs import open_ledger
from retake.runs.bucket_index import OPEN
from retake.runs.run import STEP_DONE
from retake.runs.states import Trigger
from retake.story.operations import open_operations
from retake.story.settings import Settings

T = TypeVar("T")

MOST_A_CHANNEL = 1_600
"""Bytes: with 10,000 channels, 16 MB in addition to the 40 MB of a tick with its clients and figures loaded."""


class FarSnapshots(Wrapper):
    """A bucket whose snapshots take no memory of this process."""

    written = 0

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        if operation == "write" and key.startswith("kpi/"):
            self.written += 1
            return "version"  # type: ignore[return-value]
        return call()


def channels(number: int, clock: FakeClock) -> tuple[FarSnapshots, tuple[str, ...]]:
    """Return a bucket with channels of one run each, which waits for a picture."""
    first = MemoryBucket()
    ledger = open_ledger(None, first, clock)
    run = ledger.create_for_task("20260101-0000", "20260101-0000#1", actor="cron", pipeline="story/CHANNEL")
    run = ledger.move(run, Trigger.WORKER_CLAIM, actor="cron", worker="w")
    for step in ("content", "imagine"):
        ledger.note(run, STEP_DONE, {"step": step, "text": "it is there"}, actor="cron")
    names, bucket = tuple(f"channel-{it:05d}" for it in range(number)), MemoryBucket()
    for entry in first.list(""):
        data, _ = first.read(entry.key)
        for name in names:
            bucket.write(f"{name}/{entry.key}", data.replace(b"CHANNEL", name.encode()), ANY)
    return FarSnapshots(bucket), names


def most_memory(number: int) -> int:
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
    bucket, names = channels(number, clock)
    settings = Settings()._replace(channels=names)
    gc.collect()
    tracemalloc.start()
    try:
        work = after_work(open_operations(settings, clock, bucket=bucket), Mode())
        work.finish()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        assert bucket.written == 2 * number


def test_figures_of_10_000_channels_fit_beside_a_tick() -> None:
    most_memory(10)  # whatever is loaded or remembered once
    few, many = most_memory(100), most_memory(500)
    assert (many - few) / 400 <= MOST_A_CHANNEL


def test_what_looks_at_the_pipelines_after_a_tick_loads_nothing_for_pipelines_of_ones_own() -> None:
    code = "import sys, retake.operations.after_work; print('retake.operations.own_pipeline' in sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert told.stdout == "False\n"


def test_each_channel_costs_the_requests_that_are_documented(tmp_path: Path) -> None:
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))

    def requests(number: int, url: str | None = None, *, unchanged: bool = False) -> Counter[str]:
        """Return the operations after a tick, once all is in the snapshots."""
        bucket, names = channels(number, clock)
        settings = Settings()._replace(channels=names)
        settings = settings._replace(storage=settings.storage._replace(ledger=url))
        for _ in range(2):
            counting = CountingBucket(bucket.bucket)
            these = {f"story/{it}" for it in names} if unchanged else set[str]()
            after_work(open_operations(settings, clock, bucket=counting), Mode(), these)
        return counting.counts

    counted, remembered = requests(5), requests(5, unchanged=True)
    counted.subtract(requests(2))
    remembered.subtract(requests(2, unchanged=True))
    assert +counted == {"list": 3 * 2, "read": 3 * 3}  # each has a generation under way
    assert +remembered == {"read": 3}
    url = f"sqlite:{tmp_path / 'ledger.sqlite3'}"
    open_ledger(url, MemoryBucket(), clock)
    assert requests(5, url) == requests(2, url)


class Figures:
    """The figures of two channels, of which every tick counts those that worked."""

    def __init__(self) -> None:
        self.clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
        bucket, self.names = channels(2, self.clock)
        self.bucket = bucket.bucket
        self.seen(*self.names)

    def done(self, channel: str, step: str) -> None:
        """Note on the channel's ledger that a step is done."""
        ledger = open_ledger(None, self.bucket.part(f"{channel}/"), self.clock)
        [run] = ledger.runs()
        ledger.note(run, STEP_DONE, {"step": step, "text": "it is there"}, actor="cron")

    def seen(self, *worked: str, window_s: float = 3 * 3600.0) -> Counter[str]:
        """Return how often each step was done in both channels, after a tick in which these worked."""
        settings = Settings()._replace(channels=self.names)
        reader = KpiReader(open_operations(settings, self.clock, bucket=self.bucket))
        unchanged = {f"story/{it}" for it in set(self.names) - set(worked)}
        counts: Counter[str] = Counter()
        for cell, amount in reader.sums([window_s], unchanged=unchanged).recent[window_s].items():
            if cell[0] == "done":
                counts[cell[2]] += amount
        return counts


def test_what_a_channel_did_in_an_earlier_tick_is_in_the_figures_although_it_did_nothing_since() -> None:
    world = Figures()
    first, second = world.names
    world.clock.sleep(60)  # the last snapshot is not old enough to be due
    world.done(first, "upscale")
    assert world.seen(first) == {"content": 2, "imagine": 2, "upscale": 1}
    world.done(second, "upscale")
    assert world.seen(second) == {"content": 2, "imagine": 2, "upscale": 2}
    assert world.seen() == {"content": 2, "imagine": 2, "upscale": 2}


def test_what_no_tick_has_counted_is_in_the_figures_within_an_hour() -> None:
    world = Figures()
    world.done(world.names[0], "upscale")  # the tick that did it was killed, or was an older version's
    assert world.seen() == {"content": 2, "imagine": 2}
    world.clock.sleep(MAX_AGE_S)
    assert world.seen() == {"content": 2, "imagine": 2, "upscale": 1}


def test_a_snapshot_without_the_sheet_that_is_needed_is_not_used() -> None:
    world = Figures()
    world.clock.sleep(60)
    world.done(world.names[0], "upscale")
    world.seen(world.names[0])
    kept = world.seen(window_s=30)  # which needs the times of single facts
    sheets = [it.key for it in world.bucket.list("kpi/") if it.key.endswith("open.json")]
    assert len(sheets) == 2
    for key in sheets:
        world.bucket.delete(key)
    assert world.seen(window_s=30) == kept == {"upscale": 1}


class Meeting(FarSnapshots):
    """A bucket in which no list of open runs is answered until two are asked for at once."""

    def __init__(self, bucket: MemoryBucket) -> None:
        super().__init__(bucket)
        self._lock, self._asked, self._met = Lock(), 0, Event()

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        if operation == "list" and key.endswith(OPEN):
            with self._lock:
                self._asked += 1
                if self._asked == 2:
                    self._met.set()
            assert self._met.wait(60), "the ledgers are counted one after another"
        return super().around(operation, key, call)


def test_ledgers_in_a_bucket_are_counted_at_once() -> None:
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
    bucket, names = channels(3, clock)
    found = KpiReader(open_operations(Settings()._replace(channels=names), clock, bucket=Meeting(bucket.bucket)))
    sums = found.sums([3600.0], totals=True)
    assert {cell: sums.totals[cell] for cell in sums.recent[3600.0]} == sums.recent[3600.0]
    assert [sums.totals["done", f"story/{name}", "imagine"] for name in names] == [1, 1, 1]
