"""Runs whose documents somebody has damaged or removed: what becomes of the others, and of their workers."""

from retake.bucket import ANY
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run_document import run_key
from retake.runs.states import Trigger


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
