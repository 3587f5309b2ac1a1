"""Pages of a long list of runs: the same in every ledger, and what reading one costs."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from ledger_shapes import WAY_TO, last_changed, step
from postgres import empty

from retake.bucket import ANY, Bucket
from retake.bucket.directory import DirectoryBucket
from retake.bucket.memory import MemoryBucket
from retake.bucket.wrappers import CountingBucket
from retake.clock import FakeClock
from retake.runs import Ledger, open_ledger
from retake.runs.listing import BucketListing, RunListing, RunPlace, RunsWanted, open_listing
from retake.runs.run import Run
from retake.runs.sql_ledger import SqlLedger, open_sql_ledger
from retake.runs.states import RunStatus, Trigger

EVERY = RunsWanted()


class Shelves(NamedTuple):
    """A ledger to write to, and the listing of its runs."""

    clock: FakeClock
    ledger: Ledger
    open: Callable[[], RunListing]


@contextmanager
def shelves(kind: str, folder: Path, url: str | None) -> Iterator[Shelves]:
    clock = FakeClock(datetime(2026, 2, 7, 12, 0, 0, 123_456, tzinfo=UTC))
    bucket: Bucket = DirectoryBucket(str(folder / "bucket")) if kind == "directory" else MemoryBucket()
    ledger = open_ledger(url, bucket, clock)
    try:
        yield Shelves(clock, ledger, lambda: open_listing(url, bucket))
    finally:
        if isinstance(ledger, SqlLedger):
            ledger.close()


@pytest.fixture(params=["memory", "directory", "sqlite", "postgres"])
def there(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelves]:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    url = {"sqlite": f"sqlite:{tmp_path}/runs.db"}.get(request.param)
    if request.param == "postgres":
        url = request.getfixturevalue("shared_database")
        open_sql_ledger(url, FakeClock()).close()
        empty(url)
    with shelves(request.param, tmp_path, url) as it:
        yield it


def lived(there: Shelves, number: int, days: int = 4) -> list[Run]:
    """Create so many runs of two pipelines over several days, some of them open and old; return them, last changed
    first."""
    order = random.Random(number)
    found = []
    for n in range(number):
        there.clock.sleep(order.choice([0, 0, 30, 86_400 * days / number]))
        run = there.ledger.create_for_task(f"{'ab'[n % 2]}/task-{n:03}", f"key {n}", actor="cron", pipeline="ab"[n % 2])
        for trigger in WAY_TO[order.choice([*RunStatus, *(4 * [RunStatus.SUCCEEDED])])]:
            run = step(there.ledger, run, trigger)
        found.append(run)
    return sorted(found, key=last_changed, reverse=True)


def places(runs: list[Run]) -> list[RunPlace]:
    return [RunPlace(run.updated_at, run.run_id) for run in runs]


def test_pages_of_every_filter_are_parts_of_the_whole_list(there: Shelves) -> None:
    runs, listing = lived(there, 24), there.open()
    assert [run for run in runs if not run.ended]
    for statuses in (frozenset(RunStatus), frozenset({RunStatus.SUCCEEDED}), frozenset({RunStatus.QUEUED, "failed"})):
        for pipeline in (None, "a", "b", "c"):
            wanted = RunsWanted(frozenset(map(RunStatus, statuses)), pipeline)
            expected = [run for run in runs if run.status in wanted.statuses and pipeline in (None, run.pipeline)]
            listed = listing.listed(wanted)
            assert listed.total == len(expected)
            for offset in {*range(0, len(expected), 2), len(expected), len(expected) + 1}:
                assert [*listed.places(3, offset)] == places(expected)[offset : offset + 3]


def test_runs_are_read_in_the_order_of_their_ids_and_those_that_are_gone_are_left_out(there: Shelves) -> None:
    runs, listing = lived(there, 7), there.open()
    ids = [run.run_id for run in runs]
    assert listing.runs([*ids, "run-0000000000000000"]) == runs
    assert listing.runs(ids[::-1]) == runs[::-1]
    assert listing.runs([]) == []


def test_runs_are_found_by_the_beginning_of_their_id_and_by_their_task(there: Shelves) -> None:
    runs, listing = lived(there, 9), there.open()
    for run in runs:
        assert run.run_id in listing.named(EVERY, run.run_id[:10], 5)
        assert run.run_id in listing.named(EVERY, run.run_id, 5)
        assert listing.named(EVERY, run.task_id, 5) == [run.run_id]
    for text in ("run-zzz", "task-9", "run-../", "%", "_", "\\", "a\0b", "\ud800", "x" * 3000, "'; --"):
        assert listing.named(EVERY, text, 5) == []
    if listing.searchable:
        assert len(listing.named(EVERY, "task-", 5)) == 5
        assert {*listing.named(RunsWanted(pipeline="a"), "ask-00", 9)} == {
            it.run_id for it in runs if it.pipeline == "a"
        }


@pytest.mark.parametrize("pipeline", ["", "a\0b", "\ud800", "x" * 3000])
def test_a_pipeline_that_no_ledger_can_have_has_no_runs(there: Shelves, pipeline: str) -> None:
    lived(there, 2)
    listed = there.open().listed(RunsWanted(pipeline=pipeline))
    assert (listed.total, [*listed.places(5)]) == (0, [])


def test_an_empty_ledger_has_an_empty_list(there: Shelves) -> None:
    listing = there.open()
    listed = listing.listed(EVERY)
    assert (listed.total, [*listed.places(50)], listing.named(EVERY, "x", 5)) == (0, [], [])


def test_no_state_is_no_run(there: Shelves) -> None:
    lived(there, 3)
    listed = there.open().listed(RunsWanted(frozenset()))
    assert (listed.total, [*listed.places(5)]) == (0, [])


# --- in a bucket ------------------------------------------------------------------------------------------------------


def test_a_page_lists_only_the_segments_that_it_is_in() -> None:
    clock, bucket = FakeClock(), CountingBucket(MemoryBucket())
    ledger = open_ledger(None, bucket, clock)
    for n in range(100):
        run = ledger.create_for_task(f"t{n}", f"t{n}#1", actor="cron", pipeline="story")
        ledger.move(run, Trigger.CANCEL_COMMAND, actor="operator")
        clock.sleep(86_400 / 5)
    expected = places(ledger.runs(limit=200))
    for offset in (0, 3, 50, 96):
        listed = BucketListing(bucket).listed(EVERY)
        before = bucket.counts["list"]
        assert [*listed.places(3, offset)] == expected[offset : offset + 3]
        assert bucket.counts["list"] - before <= 2, "there are 20 segments"


def test_an_invalid_document_does_not_hide_the_others() -> None:
    clock, bucket = FakeClock(), MemoryBucket()
    ledger = open_ledger(None, bucket, clock)
    good, bad = (ledger.create_for_task(name, name, actor="cron", pipeline="story") for name in ("good", "bad"))
    bucket.write(f"runs/{bad.run_id}.json", b"{", ANY)
    listing = BucketListing(bucket)
    assert [*listing.listed(EVERY).places(5)] == places([good])
    assert listing.runs([bad.run_id, good.run_id]) == [good]


def test_names_of_other_programs_are_passed_over() -> None:
    clock, bucket = FakeClock(), MemoryBucket()
    ledger = open_ledger(None, bucket, clock)
    run = ledger.create_for_task("t", "t#1", actor="cron", pipeline="story")
    run = ledger.move(run, Trigger.CANCEL_COMMAND, actor="operator")
    for name in ("yesterday", "99999999T999999000000"):
        bucket.write(f"runs/index/ended/2026-01-01/{name}.failed.story.run-{'0' * 16}", b"", ANY)
    listed = BucketListing(bucket).listed(EVERY)
    assert [*listed.places(1)] == places([run])
    assert next(listed.places(5)).run_id == run.run_id
