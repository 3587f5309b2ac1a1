"""The names of a run in a directory's ledger: which of them wait for the disk, and what a power cut may remove."""

import os
from pathlib import Path

import pytest

from retake.bucket import ANY
from retake.bucket.directory import DirectoryBucket
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.runs import bucket_index
from retake.runs.bucket_index import TALLY
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.states import RunStatus, Trigger


def on_a_disk(path: Path) -> DirectoryBucket:
    return DirectoryBucket(str(path / "bucket"))


def synced_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that records the folders and drafts synced from now on."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    return synced


def test_nothing_waits_for_the_names_of_a_run_of_the_leases_holder(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = on_a_disk(tmp_path)
    ledger = BucketLedger(bucket, clock, lease=bucket.lease("story", "a tick"))
    for number in range(2):  # the first creates the folders
        synced = synced_names(monkeypatch)
        run = ledger.create_for_task("t", f"t#{number}", actor="cron", pipeline="story", worker="a tick")
        ledger.move(run, Trigger.COMPLETED, actor="cron")
    assert [Path(it).name for it in synced if "/.retake/tmp/" not in it] == ["runs"], "an ended run is on the disk"
    assert len(synced) == 3, "each document, and its folder once"
    assert ledger.counts()[RunStatus.SUCCEEDED] == 2
    assert bucket.list("runs/index/open/") == []


@pytest.mark.parametrize("leased", [False, True])
def test_the_name_of_a_run_that_waits_for_a_worker_is_durable(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, leased: bool
) -> None:
    bucket = on_a_disk(tmp_path)
    ledger = BucketLedger(bucket, clock, lease=bucket.lease("story", "a tick") if leased else None)
    synced = synced_names(monkeypatch)
    ledger.create_for_task("t", "t#1", actor="cron", pipeline="story")
    folders = [it.partition("/bucket/")[2] for it in synced]
    assert folders.index("runs/index/open") < max(n for n, it in enumerate(folders) if it == "runs")


def test_the_holder_of_the_lease_names_its_run_again(tmp_path: Path, clock: FakeClock) -> None:
    bucket = on_a_disk(tmp_path)
    lease = bucket.lease("story", "a tick")
    run = BucketLedger(bucket, clock, lease=lease).create_for_task(
        "t", "t#1", actor="cron", pipeline="story", worker="a tick"
    )
    names = [entry.key for entry in bucket.list("runs/index/")]
    for key in names:
        bucket.delete(key)
    ledger = BucketLedger(bucket, clock, lease=lease)
    assert ledger.runs() == []
    assert ledger.find("t#1") == run
    assert [entry.key for entry in bucket.list("runs/index/")] == names
    assert ledger.runs() == ledger.of_task("t") == [run]


def test_what_has_ended_and_still_has_the_name_of_an_open_run_is_filed_with_the_next_segment(
    tmp_path: Path, clock: FakeClock
) -> None:
    bucket = on_a_disk(tmp_path)
    lease = bucket.lease("story", "a tick")
    ledger = BucketLedger(bucket, clock, lease=lease)
    run = ledger.create_for_task("t", "t#1", actor="cron", pipeline="story", worker="a tick")
    before = [entry.key for entry in bucket.list("runs/index/open/")]
    ledger.move(run, Trigger.COMPLETED, actor="cron")
    for entry in bucket.list("runs/index/ended/"):
        bucket.delete(entry.key)
    for key in before:  # the disk has the previous name
        bucket.write(key, b"", ANY)
    assert [it.status for it in ledger.runs()] == [RunStatus.SUCCEEDED]
    clock.sleep(24 * 3600)
    ledger = BucketLedger(bucket, clock, lease=lease)
    other = ledger.create_for_task("next", "next#1", actor="cron", pipeline="story", worker="a tick")
    ledger.move(other, Trigger.COMPLETED, actor="cron")
    assert bucket.list("runs/index/open/") == []
    assert ledger.counts()[RunStatus.SUCCEEDED] == 2


def end_one(ledger: BucketLedger, name: str) -> None:
    run = ledger.create_for_task(name, f"{name}#1", actor="cron", pipeline="story", worker="a tick")
    ledger.move(run, Trigger.COMPLETED, actor="cron")


def test_a_tally_of_endless_numbers_is_invalid() -> None:
    bucket = MemoryBucket()
    document = b'{"open_segment": "2026-01-02", "closed_segments": {"2026-01-01": {"story": {"succeeded": 1e999}}}}'
    bucket.write(TALLY, document, ANY)
    assert bucket_index.read_tally(bucket) is None


def test_there_is_no_tally_while_the_first_segment_is_open(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = MemoryBucket()
    monkeypatch.setattr(bucket_index, "SEGMENT_SIZE", 3)
    for number in range(3):
        end_one(BucketLedger(bucket, clock), f"t{number}")  # each in a process of its own
        assert not bucket.find(TALLY, [""])
    end_one(BucketLedger(bucket, clock), "t3")
    tally = bucket_index.read_tally(bucket)
    assert tally is not None
    assert (tally.open_segment, [*tally.closed]) == ("2026-01-01.000001", ["2026-01-01"])
    assert BucketLedger(bucket, clock).counts()[RunStatus.SUCCEEDED] == 4
