"""Runs whose documents were damaged or removed, and their effect on other runs and workers."""

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from ledger_shapes import wait

from retake.bucket import ANY
from retake.bucket.directory import DirectoryBucket
from retake.bucket.failing import FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock
from retake.errors import StateError, StorageError
from retake.retrying.policy import RetryPolicy
from retake.runs import schema
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.history import BucketHistory
from retake.runs.listing import BucketListing, RunsWanted
from retake.runs.recovery import Recovery
from retake.runs.run_document import run_key
from retake.runs.run_handle import RunHandle
from retake.runs.sql_ledger import SqlLedger, open_sql_ledger
from retake.runs.sql_listing import SqlListing
from retake.runs.states import RunStatus, Trigger
from retake.runs.worker import LATE, Worker
from retake.testing.logs import CapturedLogs


def test_a_run_that_cannot_be_claimed_keeps_no_other_waiting() -> None:
    """The next attempt of its task is unknown while another run of the task is unreadable."""
    bucket, clock = MemoryBucket(), FakeClock()
    ledger = BucketLedger(bucket, clock)
    unreadable = ledger.create_for_task("t", "t#1", actor="cron")
    ledger.move(unreadable, Trigger.CANCEL_COMMAND, actor="cron")
    ledger.create_for_task("t", "t#2", actor="cron")
    taken = ledger.claim("worker")
    assert taken
    ledger.move(taken, Trigger.RETRYABLE_ERROR, actor="cron", next_retry_at=clock.now())
    bucket.write(run_key(unreadable.run_id), b"{", ANY)
    other = ledger.create_for_task("u", "u#1", actor="cron")
    claimed = ledger.claim("worker")
    assert claimed
    assert claimed.run_id == other.run_id
    assert ledger.claim("worker") is None


@pytest.mark.parametrize("damaged", [None, b"{"], ids=["removed", "damaged"])
def test_a_run_that_is_spoilt_while_it_is_worked_on_does_not_end_its_worker(damaged: bytes | None) -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    ledger = BucketLedger(bucket, clock)
    for name in ("spoilt", "sound"):
        ledger.create_for_task(name, name, actor="shop")
        clock.sleep(1)

    def job(handle: RunHandle) -> None:
        if handle.run.task_id == "spoilt":
            bucket.delete(run_key(handle.run.run_id))
            if damaged is not None:
                bucket.write(run_key(handle.run.run_id), damaged, ANY)

    worker = Worker(ledger, job, RetryPolicy(max_retries=3), clock, name="host:1")
    assert worker.work(until_idle=True) == 2
    assert [(it.task_id, it.status) for it in ledger.runs()] == [("sound", RunStatus.SUCCEEDED)]


def linked(document: Path) -> None:
    document.rename(document.parents[2] / "elsewhere")
    document.symlink_to(document.parents[2] / "elsewhere")


def forbidden(document: Path) -> None:
    document.chmod(0)


AS_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")


@pytest.mark.parametrize("spoil", [linked, pytest.param(forbidden, marks=AS_ROOT)])
def test_a_run_that_the_store_cannot_read_hides_no_other(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    bucket, clock = DirectoryBucket(f"{tmp_path}/bucket"), FakeClock()
    ledger = BucketLedger(bucket, clock)
    spoilt, sound = (wait(ledger, clock, name, RunStatus.RUNNING) for name in ("spoilt", "sound"))
    clock.sleep(3600)
    spoil(tmp_path / "bucket" / run_key(spoilt.run_id))
    listing, history = BucketListing(bucket), BucketHistory(bucket)
    assert [run.run_id for run in Recovery(ledger, clock, max_resumes=0).sweep().given_up] == [sound.run_id]
    assert [run.run_id for run in ledger.runs()] == [sound.run_id]
    assert [run.run_id for run in listing.runs([spoilt.run_id, sound.run_id])] == [sound.run_id]
    assert sum(it.runs for it in history.segments().values()) == 1
    for unreadable in (ledger.unreadable, listing.unreadable):
        [told] = unreadable
        assert told.startswith(f"cannot read {run_key(spoilt.run_id)}")


def test_a_store_that_does_not_answer_is_not_taken_for_one_damaged_run() -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    run = BucketLedger(bucket, clock).create_for_task("t", "t#1", actor="cron")
    with pytest.raises(StorageError):
        BucketLedger(FailingBucket(bucket, Fault(key=run_key(run.run_id))), clock).runs()


@pytest.mark.parametrize("last_read", [2, 3, 5], ids=["before the heartbeat", "before the move", "before giving up"])
def test_a_run_that_is_damaged_during_a_sweep_does_not_end_the_sweep(last_read: int) -> None:
    reads = 0

    def damage(operation: str, key: str) -> None:
        nonlocal reads
        if (operation, key) == ("read", run_key(spoilt.run_id)):
            reads += 1
            if reads == last_read:
                bucket.write(key, b"{", ANY)

    store, clock = MemoryStore(), FakeClock()
    bucket = MemoryBucket(store)
    ledger = BucketLedger(bucket, clock)
    spoilt, sound = (wait(ledger, clock, name, RunStatus.RUNNING) for name in ("spoilt", "sound"))
    clock.sleep(3600)
    with CapturedLogs() as log:
        recovery = Recovery(BucketLedger(MemoryBucket(store, meanwhile=damage), clock), clock, max_resumes=0)
        assert [run.run_id for run in recovery.sweep().given_up] == [sound.run_id]
    assert any(run_key(spoilt.run_id) in it for it in log.warnings)


def test_the_late_result_of_a_run_whose_older_events_are_missing_is_noted() -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    ledger = BucketLedger(bucket, clock, max_events=4)
    run = ledger.create_for_task("aurora", "aurora", actor="shop")

    def job(handle: RunHandle) -> dict[str, int]:
        for number in range(8):
            handle.step_done(f"step {number}")
        for entry in bucket.list("runs/events/"):
            bucket.delete(entry.key)
        ledger.move(ledger.get(run.run_id), Trigger.CANCEL_COMMAND, actor="operator")
        return {"picture": 7}

    worker = Worker(ledger, job, RetryPolicy(max_retries=3), clock, name="host:1")
    ended = worker.work_once()
    assert ended
    assert ended.status is RunStatus.CANCELLED
    last = json.loads(bucket.read(run_key(run.run_id))[0])["events"][-1]
    assert (last["kind"], last["payload"]["results"]) == (LATE, [{"picture": 7}])


ODD = [
    (RunStatus.QUEUED, "created_at", "soon"),
    (RunStatus.QUEUED, "updated_at", "0"),
    (RunStatus.INTERRUPTED, "updated_at", 7),
    (RunStatus.RETRY_SCHEDULED, "next_retry_at", "2026-02-30T00:00:00Z"),
    (RunStatus.RUNNING, "heartbeat_at", b"2026-01-01"),
    (RunStatus.RUNNING, "created_at", "0"),
    (RunStatus.SUCCEEDED, "updated_at", "zzz"),
]


@pytest.mark.parametrize(("status", "column", "value"), ODD)
def test_what_another_program_wrote_into_one_row_of_sqlite_keeps_no_other_run_waiting(
    tmp_path: Path,
    opened: list[SqlLedger],
    status: RunStatus,
    column: str,
    value: object,
) -> None:
    """It comes first in each list. Whoever names it is told what to fix, and so is the log, once."""
    clock, url = FakeClock(), f"sqlite:{tmp_path}/runs.db"
    ledger = open_sql_ledger(url, clock)
    opened.append(ledger)
    odd = wait(ledger, clock, "odd", status, pipeline="p")
    silent = wait(ledger, clock, "silent", RunStatus.RUNNING, pipeline="p")
    waiting = wait(ledger, clock, "waiting", RunStatus.QUEUED, pipeline="p")
    with sqlite3.connect(f"{tmp_path}/runs.db") as connection:
        connection.execute(f"UPDATE task_runs SET {column} = ? WHERE run_id = ?", (value, odd.run_id))  # noqa: S608
    connection.close()
    clock.sleep(3600)
    with CapturedLogs() as log:
        for _ in range(2):
            Recovery(ledger, clock).sweep()
        found = [ledger.claim("w", pipeline=pipeline) for pipeline in (None, "p", None)]
    assert [run and run.run_id for run in found] == [silent.run_id, waiting.run_id, None]
    assert sum("Fix the row" in it for it in log.warnings) <= 1
    assert {run.run_id for run in ledger.runs()} == {silent.run_id, waiting.run_id}
    listing = SqlListing(schema.opened(url, read_only=True))
    listed = listing.listed(RunsWanted(frozenset(RunStatus)))
    assert {it.run_id for it in listed.places(10)} - {odd.run_id} == {silent.run_id, waiting.run_id}
    assert {run.run_id for run in listing.runs([odd.run_id, waiting.run_id])} == {waiting.run_id}
    listing.close()
    with pytest.raises(StateError, match=f"{column} in the row that begins with '{odd.run_id}'.*Fix the row or remove"):
        ledger.get(odd.run_id)
