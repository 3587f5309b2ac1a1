"""Snapshots change no figure, whatever happens to them; they save reading."""

import json
import os
from collections import Counter
from collections.abc import Callable
from datetime import date, datetime, timedelta
from random import Random

import pytest
from kpi_ledgers import A, B, C, Place

from retake.bucket import ANY, Bucket
from retake.bucket.memory import MemoryBucket
from retake.bucket.wrappers import CountingBucket, Wrapper
from retake.clock import FakeClock
from retake.errors import StorageError
from retake.kpi.facts import Cell, micros
from retake.kpi.snapshots import KPI, KpiSnapshots
from retake.operations.kpi import DayBooks
from retake.paid.caps import CAPS
from retake.paid.day_book import DayBook, Move, Sums, encoded
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.history import UNFINISHED, open_history
from retake.runs.run import STEP_DONE, Run
from retake.runs.run_document import run_key
from retake.runs.states import Trigger
from retake.testing.logs import CapturedLogs

SEEDS = range(max(8, int(os.environ.get("RETAKE_SEEDS", "0")) // 20))


# --- random histories -----------------------------------------------------------------------------------------------


class Life:
    """Random events of runs and snapshots."""

    def __init__(self, place: Place, random: Random) -> None:
        self.place, self.random = place, random
        self.open: list[Run] = []
        self.ended: list[Run] = []
        self.kpi = MemoryBucket()
        self.snapshotters = [self.snapshotter(), self.snapshotter()]
        if place.url is None:  # documents whose older events move to other objects
            place.ledger = BucketLedger(place.bucket, place.clock, max_events=6)

    def snapshotter(self) -> KpiSnapshots:
        return KpiSnapshots(self.kpi, self.place.clock, every_s=self.random.choice([0.5, 300]))

    def happens(self) -> None:
        acts: list[tuple[int, Callable[[], None]]] = [
            (6, self.begins),
            (12, self.works),
            (5, self.ends),
            (1, self.noted_late),
            (6, self.time),
            (4, self.snapshot),
            (1, self.restart),
            (1, self.loss),
        ]
        self.random.choices([act for _, act in acts], [weight for weight, _ in acts])[0]()

    def begins(self) -> None:
        pipeline = self.random.choice(["story", "story/канал", "robot/NR.NSI.1", ""])
        self.open.append(self.place.begun(f"task {self.random.randrange(8)}", pipeline))

    def works(self) -> None:
        if self.open:
            number, step = self.random.randrange(len(self.open)), self.random.choice(["content", "imagine", "fetch"])
            if self.random.random() < 0.6:
                self.place.done(self.open[number], step)
            else:
                code = self.random.choice([A, B, C])
                self.open[number] = self.place.failed(self.open[number], step, code)

    def ends(self) -> None:
        if self.open:
            run = self.open.pop(self.random.randrange(len(self.open)))
            trigger = self.random.choice([Trigger.COMPLETED, Trigger.NON_RETRYABLE_ERROR, Trigger.CANCEL_COMMAND])
            step = self.random.choice(["imagine", ""]) if trigger is Trigger.NON_RETRYABLE_ERROR else ""
            self.ended.append(self.place.end(run, trigger, step))

    def noted_late(self) -> None:
        if self.ended:
            self.place.ledger.note(self.random.choice(self.ended), STEP_DONE, {"step": "content"}, actor="operator")

    def time(self) -> None:
        """Move the clock, mostly forward, sometimes to another day, and sometimes back."""
        seconds = self.random.choice([0.001, 1, 60, 3600, 40_000, 86_400, 3_000_000, -30, -50_000])
        self.place.clock.moment += timedelta(seconds=seconds)

    def snapshot(self) -> None:
        self.place.counted(self.random.choice(self.snapshotters), rebuild=self.random.random() < 0.1)

    def restart(self) -> None:
        self.snapshotters[self.random.randrange(2)] = self.snapshotter()

    def loss(self) -> None:
        entries = self.kpi.list(KPI)
        if entries:
            key = self.random.choice(entries).key
            how = self.random.choice(["all", "one", "invalid", "foreign"])
            if how == "all":
                for entry in entries:
                    self.kpi.delete(entry.key)
            elif how == "one":
                self.kpi.delete(key)
            else:
                self.kpi.write(key, b"{" if how == "invalid" else self.kpi.read(entries[0].key)[0], ANY)

    def compare(self, before: Counter[Cell]) -> Counter[Cell]:
        """Check that any window gives the same with and without snapshots, and no counter has fallen."""
        now = self.place.clock.now()
        lengths = [timedelta(seconds=it) for it in (0.5, 60, 86_400, 3_000_000)]
        kept, anew = self.place.counted(self.random.choice(self.snapshotters)), self.place.counted()
        assert kept.totals() == anew.totals()
        for length in lengths:
            until = micros(now - self.random.choice([timedelta(), length / 3]))
            since = until - length // timedelta(microseconds=1)
            assert kept.between(since, until) == anew.between(since, until)
            assert sorted(kept.facts(since, until)) == sorted(anew.facts(since, until))
        totals = kept.totals()
        assert [cell for cell, number in before.items() if cell[0] != "open" and totals[cell] < number] == []
        return totals


@pytest.mark.search
@pytest.mark.parametrize("seed", SEEDS)
def test_snapshots_and_counting_anew_give_the_same(place: Place, seed: int) -> None:
    life, totals = Life(place, Random(seed)), Counter[Cell]()
    for number in range(150):
        life.happens()
        if number % 10 == 9:
            totals = life.compare(totals)


# --- what is read and written ---------------------------------------------------------------------------------------


def lived(place: Place, number: int = 3) -> None:
    for n in range(number):
        run = place.begun(f"task {n}")
        place.clock.sleep(5)
        place.done(run, "content")
        place.end(run, Trigger.COMPLETED)


@pytest.mark.parametrize("place", ["bucket"], indirect=True)
def test_with_a_snapshot_no_run_that_has_ended_is_read_again(place: Place) -> None:
    lived(place, 20)
    kpi = MemoryBucket()
    place.counted(KpiSnapshots(kpi, place.clock))
    run = place.begun("new")
    place.bucket = counting = CountingBucket(place.bucket)
    counted = place.counted(KpiSnapshots(kpi, place.clock))
    assert counted.totals()["ended", "story", "succeeded"] == 20
    assert counted.totals()["open", "story", "running"] == 1
    assert counting.counts["read"] == 2  # the tally, and the run that has not ended
    place.end(run, Trigger.COMPLETED)
    counting.counts.clear()
    assert place.counted(KpiSnapshots(kpi, place.clock)).totals()["ended", "story", "succeeded"] == 21
    assert counting.counts["read"] == 2


def a_run_a_day(place: Place, days: int, kpi: Bucket) -> None:
    for _ in range(days):
        lived(place, 1)
        place.clock.moment += timedelta(days=1)
        place.counted(KpiSnapshots(kpi, place.clock))


def test_the_index_that_each_tick_reads_has_old_days_by_month(place: Place) -> None:
    kpi = MemoryBucket()
    a_run_a_day(place, 130, kpi)
    parts = json.loads(kpi.read(f"{KPI}ledger.json")[0])["segments"]
    assert [it for it in parts if len(it) == 7] == ["2026-01", "2026-02", "2026-03"]
    assert 31 <= len([it for it in parts if len(it) == 10]) <= 62
    kept, anew, now = place.counted(KpiSnapshots(kpi, place.clock)), place.counted(), place.clock.now()
    assert kept.totals() == anew.totals()
    for days in (1, 40, 100):
        window = (micros(now - timedelta(days=days)), micros(now - timedelta(days=days // 3)))
        assert kept.between(*window) == anew.between(*window)
        assert sorted(kept.facts(*window)) == sorted(anew.facts(*window))


def test_when_days_become_a_month_their_sums_are_added_up_and_no_sheet_is_read(place: Place) -> None:
    kpi = CountingBucket(MemoryBucket())
    a_run_a_day(place, 59, kpi)
    assert "2026-01" not in json.loads(kpi.read(f"{KPI}ledger.json")[0])["segments"]
    place.clock.moment += timedelta(days=5)
    kpi.counts.clear()
    place.counted(KpiSnapshots(kpi, place.clock))
    assert "2026-01" in json.loads(kpi.bucket.read(f"{KPI}ledger.json")[0])["segments"]
    assert kpi.counts == {"read": 1, "write": 1}


@pytest.mark.parametrize("place", ["bucket"], indirect=True)
def test_only_the_day_of_a_damaged_run_in_an_old_month_is_read(place: Place) -> None:
    kpi = CountingBucket(MemoryBucket())
    damaged = place.begun("a")
    place.end(damaged, Trigger.COMPLETED)
    place.bucket.write(run_key(damaged.run_id), b"{", ANY)
    a_run_a_day(place, 100, kpi)
    kpi.counts.clear()
    counted = place.counted(KpiSnapshots(kpi, place.clock))
    assert counted.totals()["ended", "story", "succeeded"] == 100
    assert kpi.counts["read"] == 2  # the index, and the sheet of that day
    parts = json.loads(kpi.bucket.read(f"{KPI}ledger.json")[0])["segments"]
    assert "2026-01" not in parts
    assert "2026-02" in parts


def test_a_snapshot_is_taken_when_its_time_has_come(place: Place) -> None:
    kpi = MemoryBucket()
    snapshots = KpiSnapshots(kpi, place.clock, every_s=300)
    lived(place)
    place.counted(snapshots)
    first = kpi.read(f"{KPI}ledger.json")[0]
    lived(place)
    place.clock.sleep(299 - 15)
    place.counted(snapshots)
    assert kpi.read(f"{KPI}ledger.json")[0] == first
    place.clock.sleep(1)
    place.counted(snapshots)
    second = kpi.read(f"{KPI}ledger.json")[0]
    assert second != first
    place.clock.moment -= timedelta(hours=1)  # setting the clock back does not end the snapshots
    place.counted(snapshots)
    assert kpi.read(f"{KPI}ledger.json")[0] != second


def test_segments_that_are_gone_have_no_document_left(place: Place) -> None:
    kpi, snapshots_of = MemoryBucket(), lambda: KpiSnapshots(kpi, place.clock, every_s=0.5)
    run = place.begun("a")
    place.counted(snapshots_of())
    assert len(kpi.list(KPI)) == 2
    place.clock.sleep(86_400)
    place.end(run, Trigger.COMPLETED)
    place.counted(snapshots_of())
    assert [entry.key for entry in kpi.list(KPI)] == [f"{KPI}ledger.2026-01-02.json", f"{KPI}ledger.json"]


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_days_that_are_gone_from_an_old_month_have_no_document_left(place: Place) -> None:
    kpi, held = MemoryBucket(), place.begun("held")
    place.clock.moment += timedelta(days=1)
    a_run_a_day(place, 80, kpi)
    assert "2026-01" in json.loads(kpi.read(f"{KPI}ledger.json")[0])["segments"]
    assert kpi.find(f"{KPI}ledger.2026-01-01.json", [""])
    place.end(held, Trigger.COMPLETED)  # its last transition is today's
    place.clock.sleep(300)
    place.counted(KpiSnapshots(kpi, place.clock))
    days = [entry.key.split(".")[1] for entry in kpi.list(KPI) if entry.key != f"{KPI}ledger.json"]
    assert days == sorted(open_history(place.url, place.bucket).segments())


def test_where_nothing_has_happened_nothing_is_written(place: Place) -> None:
    kpi = MemoryBucket()
    assert place.counted(KpiSnapshots(kpi, place.clock)).totals() == {}
    assert kpi.list("") == []


def test_two_simultaneous_snapshots_make_no_figure_wrong(place: Place) -> None:
    kpi = MemoryBucket()
    lived(place)

    class Meanwhile(Wrapper):
        """Another process takes a snapshot, and more happens, between the first one's reading and its writing."""

        met = False

        def write(self, key, data, expect):  # type: ignore[no-untyped-def]
            if not self.met:
                self.met = True
                lived(place)
                place.counted(KpiSnapshots(kpi, place.clock))
            return super().write(key, data, expect)

    first = place.counted(KpiSnapshots(Meanwhile(kpi), place.clock))
    assert first.totals()["ended", "story", "succeeded"] == 3
    assert place.counted(KpiSnapshots(kpi, place.clock)).totals() == place.counted().totals()
    assert place.counted().totals()["ended", "story", "succeeded"] == 6


class Unwritable(Wrapper):
    """A bucket in which `kpi/` can be neither written nor read while `away`."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.away, self.unreadable = True, False

    def write(self, key, data, expect):  # type: ignore[no-untyped-def]
        if self.away and key.startswith(KPI):
            raise StorageError("the disk is full")
        return super().write(key, data, expect)

    def read(self, key: str) -> tuple[bytes, str]:
        if self.unreadable and key.startswith(KPI):
            raise StorageError("permission denied")
        return super().read(key)


def test_while_nothing_can_be_written_figures_are_right_and_what_was_counted_is_kept(
    place: Place,
) -> None:
    memory = MemoryBucket()
    kpi = Unwritable(memory)
    snapshots = KpiSnapshots(kpi, place.clock)
    with CapturedLogs() as log:
        for _ in range(3):
            lived(place)
            assert place.counted(snapshots).totals() == place.counted().totals()
    assert memory.list(KPI) == []
    [warning] = log.records
    assert warning.getMessage().endswith("could not be written; they are right without it: the disk is full")
    kpi.away = False
    place.clock.sleep(1)  # not after another 300 s: at once
    place.counted(snapshots)
    assert len(memory.list(KPI)) == 2
    assert place.counted(KpiSnapshots(memory, place.clock)).totals() == place.counted().totals()


def test_a_run_that_takes_the_place_of_another_of_the_same_times_is_read(place: Place) -> None:
    kpi, day = MemoryBucket(), timedelta(days=1)
    first, second = place.begun("a", "story"), place.begun("b", "story")
    place.clock.moment += day
    first = place.failed(first, "imagine")
    place.counted(KpiSnapshots(kpi, place.clock))
    place.failed(second, "content")
    place.clock.moment += day
    place.end(first, Trigger.COMPLETED)
    assert place.counted(KpiSnapshots(kpi, place.clock)).totals() == place.counted().totals()


def test_snapshots_that_cannot_be_read_are_done_without(place: Place) -> None:
    kpi = Unwritable(MemoryBucket())
    kpi.unreadable = True
    lived(place)
    assert place.counted(KpiSnapshots(kpi, place.clock)).totals() == place.counted().totals()


def test_a_run_that_ended_is_counted_from_a_snapshot_of_when_it_had_not(place: Place) -> None:
    kpi = MemoryBucket()
    run = place.begun("a")
    place.counted(KpiSnapshots(kpi, place.clock))
    place.end(run, Trigger.NON_RETRYABLE_ERROR, "imagine")
    totals = place.counted(KpiSnapshots(kpi, place.clock)).totals()
    assert (totals["ended", "story", "failed"], totals["open", "story", "running"]) == (1, 0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw | {"version": 0},
        lambda raw: raw | {"cells": [["ended", "story"]]},
        lambda raw: raw | {"cells": []},
        lambda raw: raw | {"times": raw["times"][1:]},
        lambda raw: raw | {"sizes": [-1, *raw["sizes"][1:]]},
        lambda raw: raw | {"amounts": ["1" for _ in raw["amounts"]]},
        lambda raw: raw | {"amounts": [10**400, *raw["amounts"][1:]]},
        lambda raw: raw | {"times": [-(10**400), *raw["times"][1:]]},
        lambda raw: raw | {"ids": {}},
        lambda raw: [],
        lambda raw: None,
    ],
)
def test_an_invalid_snapshot_is_made_anew(clock: FakeClock, damage: Callable[[dict[str, object]], object]) -> None:
    place, kpi = Place(None, MemoryBucket(), clock), MemoryBucket()
    lived(place)
    place.counted(KpiSnapshots(kpi, clock))
    kpi.delete(f"{KPI}ledger.json")
    [entry] = kpi.list(KPI)
    kpi.write(entry.key, json.dumps(damage(json.loads(kpi.read(entry.key)[0]))).encode(), ANY)
    assert place.counted(KpiSnapshots(kpi, clock)).totals() == place.counted().totals()


SUMS = {"runs": 1, "marks": 1, "first": 0, "last": 0, "totals": []}


@pytest.mark.parametrize(
    "index",
    [
        [],
        {"version": 1},
        {"version": 1, "taken_at": "now", "segments": {}},
        {"version": 1, "taken_at": 10**400, "segments": {}},
        {"version": 1, "taken_at": 0, "segments": {"\ud800": SUMS}},
    ],
)
def test_an_invalid_index_is_made_anew(clock: FakeClock, index: object) -> None:
    place, kpi = Place(None, MemoryBucket(), clock), MemoryBucket()
    lived(place)
    place.counted(KpiSnapshots(kpi, clock))
    kpi.write(f"{KPI}ledger.json", json.dumps(index).encode(), ANY)
    assert place.counted(KpiSnapshots(kpi, clock)).totals() == place.counted().totals()
    assert json.loads(kpi.read(f"{KPI}ledger.json")[0])["taken_at"] == micros(clock.now())


def test_a_ledger_away_is_an_error_not_a_figure(clock: FakeClock) -> None:
    class Away(Wrapper):
        def list(self, prefix: str):  # type: ignore[no-untyped-def]
            raise StorageError("away")

    place = Place(None, Away(MemoryBucket()), clock)
    with pytest.raises(StorageError):
        place.counted()


@pytest.mark.parametrize("place", ["bucket"], indirect=True)
def test_a_run_whose_document_is_invalid_is_left_out_and_named(place: Place) -> None:
    lived(place, 2)
    key = next(entry.key for entry in place.bucket.list("runs/run-"))
    whole = place.bucket.read(key)[0]
    kpi = MemoryBucket()
    place.bucket.write(key, b"{", ANY)
    assert place.counted(KpiSnapshots(kpi, place.clock)).totals()["ended", "story", "succeeded"] == 1
    place.bucket.write(key, whole, ANY)
    assert place.counted(KpiSnapshots(kpi, place.clock)).totals()["ended", "story", "succeeded"] == 2


def test_a_history_tells_the_runs_that_have_not_ended(place: Place, clock: FakeClock) -> None:
    waiting = place.begun("a")
    clock.sleep(90_000)
    place.end(place.begun("b"), Trigger.COMPLETED)
    queued = place.ledger.create_for_task("c", "c#1", actor="cron", pipeline="story")
    history = open_history(place.url, place.bucket)
    history.segments()
    unfinished = history.unfinished()
    assert {*unfinished} == {waiting.run_id, queued.run_id}
    assert {it.run_id for it in history.read(UNFINISHED, unfinished)} == {*unfinished}


@pytest.mark.parametrize("seed", range(6))
def test_the_books_of_days_add_up_over_any_days_from_whatever_snapshots_are_left(clock: FakeClock, seed: int) -> None:
    """Days around the ends of months and years, leap days, and days of the future, in months of the snapshots."""
    random, bucket = Random(seed), MemoryBucket()
    edges = [date(year, month, 1) for year in (2024, 2025, clock.moment.year + 1) for month in (1, 3, 12)]
    names = sorted({f"{edge + timedelta(days=random.randrange(-3, 3))}" for edge in edges for _ in range(3)})
    spent: dict[str, Counter[Cell]] = {}
    for day in names:
        settled = {it: random.randrange(10**6) / 1e6 for it in ("story", "story/ru")}
        moved = Move("2020-01-01", "its sums are there") if random.random() < 0.1 else None
        raw = encoded(DayBook(day, {it: Sums(usd) for it, usd in settled.items()}, moved=moved))
        bucket.write(f"{CAPS}{day}.json", json.dumps(raw).encode(), ANY)
        spent[day] = Counter() if moved else Counter({("spent", it): round(usd * 1e6) for it, usd in settled.items()})
    for damaged in ("2025-02-29", "2025-3-01", "then"):
        bucket.write(f"{CAPS}{damaged}.json", b'{"pipelines": {"story": {"settled_usd": 1}}}', ANY)
    for _ in range(4):
        first, last = sorted(random.choices(names, k=2))
        counted = KpiSnapshots(bucket, clock, every_s=0.5).counted("caps", DayBooks(bucket))
        assert counted.totals() == sum(spent.values(), Counter()), seed
        within = sum((it for day, it in spent.items() if first <= day <= last), Counter[Cell]())
        assert counted.between(*(micros(datetime.fromisoformat(f"{it}T00:00Z")) for it in (first, last))) == within
        clock.sleep(1)
        for key in random.sample([it.key for it in bucket.list(KPI)], k=1):
            bucket.delete(key)
