"""What a worker makes of errors that are odd themselves: no message, an endless wait, a text that no ledger takes."""

from collections.abc import Mapping
from typing import Any

import pytest

from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.retrying.policy import RetryPolicy
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run_handle import RunHandle
from retake.runs.states import RunStatus
from retake.runs.worker import Postponed, Worker


class Untold(Exception):
    def __str__(self) -> str:
        return str(self.args[0])


@pytest.mark.parametrize(
    "error", [Untold(), Postponed("later", float("inf")), Postponed("later", 1e12), Postponed("x" * 2_000_000, 5)]
)
def test_an_odd_error_ends_the_try_and_not_the_worker(error: Exception) -> None:
    def job(handle: RunHandle) -> Mapping[str, Any]:
        raise error

    clock = FakeClock()
    ledger = BucketLedger(MemoryBucket(), clock)
    run = ledger.create_for_task("t", "t#1", actor="cron")
    assert Worker(ledger, job, RetryPolicy(2), clock, name="host:1").work_once()
    assert ledger.get(run.run_id).status is RunStatus.RETRY_SCHEDULED
