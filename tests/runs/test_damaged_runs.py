"""Runs whose documents somebody has damaged or removed: what becomes of the others, and of their workers."""

from retake.bucket import ANY
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.retrying.policy import RetryPolicy
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run_document import run_key
from retake.runs.run_handle import RunHandle
from retake.runs.states import RunStatus, Trigger
from retake.runs.worker import Worker


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


def test_a_run_that_is_removed_while_it_is_worked_on_does_not_end_its_worker() -> None:
    bucket, clock = MemoryBucket(), FakeClock()
    ledger = BucketLedger(bucket, clock)
    for name in ("gone", "stays"):
        ledger.create_for_task(name, name, actor="shop")
        clock.sleep(1)

    def job(handle: RunHandle) -> None:
        if handle.run.task_id == "gone":
            bucket.delete(run_key(handle.run.run_id))

    worker = Worker(ledger, job, RetryPolicy(max_retries=3), clock, name="host:1")
    assert worker.work(until_idle=True) == 2
    assert [(it.task_id, it.status) for it in ledger.runs()] == [("stays", RunStatus.SUCCEEDED)]
