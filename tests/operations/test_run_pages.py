"""One long list of the runs of many channels, each with a ledger of its own."""

from contextlib import suppress
from pathlib import Path
from threading import Event, Lock

import pytest

from retake.bucket import Entry
from retake.bucket.memory import MemoryBucket
from retake.bucket.wrappers import CountingBucket
from retake.clock import FakeClock
from retake.errors import RunError
from retake.operations import run_pages
from retake.operations.lookup import find
from retake.operations.pipelines import Listings, Operations
from retake.operations.run_pages import runs_page
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.listing import RunsWanted
from retake.runs.run import Run, UnknownRun
from retake.runs.sql_ledger import SqlLedger
from retake.runs.states import RunStatus, Trigger
from retake.story.operations import open_operations
from retake.story.settings import Settings

CHANNELS = ("north", "south", "west")


def channels(runs: int, url: str | None = None, bucket: MemoryBucket | None = None) -> tuple[Operations, list[Run]]:
    """Create so many runs in each channel; return all of them, the last changed first."""
    bucket, clock = bucket or MemoryBucket(), FakeClock()
    settings = Settings(channels=CHANNELS)
    operations = open_operations(settings._replace(storage=settings.storage._replace(ledger=url)), clock, bucket=bucket)
    found = []
    for n in range(runs):
        for pipeline in operations.pipelines:
            clock.sleep(90)
            ledger = operations.writable_ledger(pipeline) if url else BucketLedger(pipeline.bucket, clock)
            task = f"{pipeline.channel}/item-{n:03}"
            run = ledger.create_for_task(task, f"{task}#1", actor="cron", pipeline=pipeline.name)
            if n % 3:
                run = ledger.move(run, Trigger.CANCEL_COMMAND, actor="operator")
            found.append(run)
    return operations, found[::-1]


@pytest.mark.parametrize("kind", ["bucket", "database"])
def test_pages_go_through_the_runs_of_all_channels(kind: str, tmp_path: object) -> None:
    operations, every = channels(7, f"sqlite:{tmp_path}/runs.db" if kind == "database" else None)
    pages = [runs_page(operations, RunsWanted(), page, 10) for page in (1, 2, 3, 99)]
    assert [it.at for it in pages] == [(1, 3, 21), (2, 3, 21), (3, 3, 21), (3, 3, 21)]
    assert [run for page in pages[:3] for run in page.listed.runs] == every
    assert pages[3].listed == pages[2].listed
    south = [run for run in every if run.pipeline == "story/south" and run.status is RunStatus.QUEUED]
    found = runs_page(operations, RunsWanted(frozenset({RunStatus.QUEUED}), "story/south"), 1, 10)
    assert found.listed.runs == south


@pytest.mark.parametrize("kind", ["bucket", "database"])
def test_a_part_of_an_id_finds_runs_in_all_channels(kind: str, tmp_path: object) -> None:
    operations, every = channels(7, f"sqlite:{tmp_path}/runs.db" if kind == "database" else None)
    found = runs_page(operations, RunsWanted(), 1, 50, "item-003")
    assert found.listed.runs == [run for run in every if run.task_id.endswith("item-003")]
    assert not found.bounded
    assert runs_page(operations, RunsWanted(), 1, 50, every[5].run_id[:9]).listed.runs == [every[5]]
    assert runs_page(operations, RunsWanted(pipeline="story/west"), 1, 50, "item-003").at.total == 1


def test_the_last_of_many_runs_in_buckets_are_searched_and_older_ones_by_their_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_pages, "MAX_SEARCHED", 6)
    operations, every = channels(7)
    found = runs_page(operations, RunsWanted(), 1, 50, "item")
    assert found.listed.runs == every[:6]
    assert found.bounded
    oldest = every[-1]
    for text in (oldest.task_id, oldest.run_id, oldest.run_id[:9]):
        assert runs_page(operations, RunsWanted(), 1, 50, text).listed.runs == [oldest]


def test_a_generation_is_found_by_the_beginning_of_its_id() -> None:
    operations, _ = channels(2)
    assert find(operations, "south/item-001").task_id == "south/item-001"
    assert find(operations, "west/item-000").task_id == "west/item-000"
    for text in ("nope", "run-ffffffffffffffff", "item-9"):
        with pytest.raises(UnknownRun):
            find(operations, text)


def test_runs_of_two_ledgers_with_one_key_are_two() -> None:
    operations, _ = channels(0)
    for pipeline in operations.pipelines:
        ledger = BucketLedger(pipeline.bucket, operations.clock)
        ledger.create_for_task(f"{pipeline.channel}/poster", "poster", actor="cron", pipeline=pipeline.name)
    assert runs_page(operations, RunsWanted(), 1, 50, "post").at.total == 3
    with pytest.raises(RunError, match="may mean several: north/poster, south/poster, west/poster"):
        find(operations, "post")


def test_listings_that_are_renewed_read_no_closed_segment_again() -> None:
    bucket, clock = CountingBucket(MemoryBucket()), FakeClock()
    operations = open_operations(Settings(channels=CHANNELS), clock, bucket=bucket)

    def day_passes() -> None:
        clock.sleep(86_400)
        for pipeline in operations.pipelines:
            ledger, task = BucketLedger(pipeline.bucket, clock), f"{pipeline.channel}/{clock.now():%Y%m%d}"
            run = ledger.create_for_task(task, f"{task}#1", actor="cron", pipeline=pipeline.name)
            ledger.move(run, Trigger.CANCEL_COMMAND, actor="operator")

    def counted(before: Listings) -> tuple[Listings, int]:
        bucket.counts.clear()
        listings = operations.listings(before)
        last = runs_page(operations, RunsWanted(), 99, 2, listings=listings)
        assert last.listed == runs_page(operations, RunsWanted(), 99, 2).listed
        runs_page(operations, RunsWanted(), 99, 2, listings=listings)
        return listings, bucket.counts["list"]

    for _ in range(6):
        day_passes()
    first, reading_all = counted(())
    day_passes()
    _, reading_what_is_new = counted(first)
    again = 2 * (len(CHANNELS) + 1)  # what is open, and the open segment, there and at the root
    closed = len(CHANNELS) * 5
    assert reading_all == 2 * (again + closed)  # the second time without listings
    assert reading_what_is_new == again + len(CHANNELS) + again + closed + len(CHANNELS)


def test_a_whole_id_that_is_unknown_costs_one_read_a_ledger() -> None:
    bucket = CountingBucket(MemoryBucket())
    operations = open_operations(Settings(channels=CHANNELS), FakeClock(), bucket=bucket)
    with pytest.raises(UnknownRun):
        find(operations, "run-0123456789abcdef")
    assert bucket.counts == {"read": len(CHANNELS) + 1}  # that at the root is one


def test_a_task_is_looked_for_once_in_a_shared_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operations, every = channels(2, f"sqlite:{tmp_path}/runs.db")
    asked: list[str] = []
    looked = SqlLedger.of_task
    monkeypatch.setattr(SqlLedger, "of_task", lambda self, task: asked.append(task) or looked(self, task))
    assert find(operations, every[0].task_id).runs == [every[0]]
    assert asked.count(every[0].task_id) == 1


class Meeting(MemoryBucket):
    """A bucket in which, while `held`, no read and no listing is answered until two are asked for at once."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self._lock, self._asked, self._met = False, Lock(), 0, Event()

    def list(self, prefix: str) -> list[Entry]:
        self._meet()
        return super().list(prefix)

    def read(self, key: str) -> tuple[bytes, str]:
        self._meet()
        return super().read(key)

    def _meet(self) -> None:
        if not self.held:
            return
        with self._lock:
            self._asked += 1
            if self._asked == 2:
                self._met.set()
        assert self._met.wait(60), "the ledgers are asked one after another"


@pytest.mark.parametrize("text", ["west/item-000", "run-0123456789abcdef"])
def test_ledgers_in_a_bucket_are_asked_at_once(text: str) -> None:
    bucket = Meeting()
    operations, _ = channels(1, bucket=bucket)
    bucket.held = True
    with suppress(UnknownRun):
        assert find(operations, text).task_id == text
