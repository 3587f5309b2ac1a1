"""Odd errors in a worker: no message, an endless wait, a text that no ledger accepts."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.errors import CapReached, CodedError, Degraded, LeaseHeld
from retake.retrying.backoff import Fixed, Intervals
from retake.retrying.policy import RetryPolicy
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.recovery import Recovery
from retake.runs.run import ERROR, Run
from retake.runs.run_handle import RunHandle
from retake.runs.states import RunStatus
from retake.runs.validation import InvalidField
from retake.runs.worker import MAX_LEDGER_FAILURES, MODE_WAIT_S, Postponed, Worker, coded
from retake.testing.logs import CapturedLogs


class Untold(Exception):
    def __str__(self) -> str:
        return str(self.args[0])


@pytest.mark.parametrize(
    "error",
    [
        Untold(),
        Postponed("later", float("inf")),
        Postponed("later", float("nan")),
        Postponed("later", -10),
        Postponed("later", 1e12),
        Postponed("x" * 2_000_000, 5),
    ],
)
def test_an_odd_error_ends_the_try_and_not_the_worker(error: Exception) -> None:
    def job(handle: RunHandle) -> Mapping[str, Any]:
        raise error

    clock = FakeClock()
    ledger = BucketLedger(MemoryBucket(), clock)
    run = ledger.create_for_task("t", "t#1", actor="cron")
    assert Worker(ledger, job, RetryPolicy(2), clock, name="host:1").work_once()
    assert ledger.get(run.run_id).status is RunStatus.RETRY_SCHEDULED


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (lambda: Postponed("later", None), 0),  # type: ignore[arg-type]
        (lambda: Postponed("later", "60"), 60),  # type: ignore[arg-type]
        (lambda: CodedError("ERR_TEMPORARY_BUSY", "busy", retry_after_s="30"), 30),  # type: ignore[arg-type]
        (lambda: CodedError("ERR_TEMPORARY_BUSY", "busy", retry_after_s="soon"), 0),  # type: ignore[arg-type]
    ],
)
def test_a_wait_of_another_type_ends_the_try_and_not_the_worker(error: Callable[[], Exception], seconds: int) -> None:
    def job(handle: RunHandle) -> Mapping[str, Any]:
        raise error()

    clock = FakeClock()
    ledger = BucketLedger(MemoryBucket(), clock)
    ledger.create_for_task("t", "t#1", actor="cron")
    done = Worker(ledger, job, RetryPolicy(2), clock, name="host:1").work_once()
    assert done
    assert done.next_retry_at == clock.now() + timedelta(seconds=seconds)


def test_a_run_that_meets_the_daily_cap_waits_for_the_next_day_and_has_not_failed() -> None:
    def job(handle: RunHandle) -> None:
        if clock.now() < tomorrow:
            raise CapReached("the daily cap: 1.000 of 1.000 USD are spent; continues at 00:00 UTC")

    clock = FakeClock(datetime(2026, 1, 1, 21, 30, tzinfo=UTC))
    tomorrow = datetime(2026, 1, 2, tzinfo=UTC)
    ledger = BucketLedger(MemoryBucket(), clock)
    run = ledger.create_for_task("t", "t#1", actor="cron")
    worker = Worker(ledger, job, RetryPolicy(max_retries=0), clock, name="host:1")
    waits = []
    with CapturedLogs() as log:
        while (done := worker.work_once()) and not done.ended:
            assert (done.status, done.error_code) == (RunStatus.RETRY_SCHEDULED, None)
            assert done.next_retry_at
            waits.append((done.next_retry_at - clock.now()).total_seconds())
            clock.moment = done.next_retry_at
    assert waits == [3600, 3600, 1800]
    assert ledger.get(run.run_id).status is RunStatus.SUCCEEDED
    said = [event.payload["text"] for event in ledger.events(run.run_id) if event.kind == "run.note"]
    assert said == ["the daily cap: 1.000 of 1.000 USD are spent; continues at 00:00 UTC"] * 3
    assert [it.getMessage() for it in log.records] == [f"{run.run_id} (task t) is put off: {text}" for text in said]


def test_a_run_that_a_degraded_mode_holds_back_waits_and_has_not_failed() -> None:
    def job(handle: RunHandle) -> None:
        if clock.now() < over:
            raise Degraded("degraded mode 2 is set")

    clock = FakeClock()
    over = clock.now() + timedelta(seconds=2 * MODE_WAIT_S)
    ledger = BucketLedger(MemoryBucket(), clock)
    run = ledger.create_for_task("t", "t#1", actor="cron")
    worker = Worker(ledger, job, RetryPolicy(max_retries=0), clock, name="host:1")
    for _ in range(2):
        waiting = worker.work_once()
        assert waiting
        assert (waiting.status, waiting.error_code) == (RunStatus.RETRY_SCHEDULED, None)
        clock.sleep(MODE_WAIT_S)
    worker.work_once()
    assert ledger.get(run.run_id).status is RunStatus.SUCCEEDED


def test_what_a_job_was_told_is_not_called_a_bug() -> None:
    assert str(coded(LeaseHeld("host:2 is at work"))) == "the job failed: host:2 is at work"


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_s": 0},
        {"heartbeat_s": float("nan")},
        {"result_kind": ""},
        {"policy": RetryPolicy(3, timeout_s=60, timeout_code="TIMEOUT")},
        {"policy": RetryPolicy(3, Intervals(()))},
        {"policy": RetryPolicy(3, Fixed(float("nan")))},
    ],
    ids=str,
)
def test_what_a_worker_could_not_work_with_is_refused_before_it_begins(wrong: dict[str, Any]) -> None:
    ledger = BucketLedger(MemoryBucket(), FakeClock())
    with pytest.raises(ValueError, match=r"heartbeat_s|result_kind|TIMEOUT|first retry"):
        Worker(ledger, lambda handle: None, clock=FakeClock(), name="host:1", **{"policy": RetryPolicy(3), **wrong})


def test_a_recovery_that_takes_its_own_worker_for_dead_is_warned_of() -> None:
    ledger, clock = BucketLedger(MemoryBucket(), FakeClock()), FakeClock()
    recovery = Recovery(ledger, clock, patience_s=10)
    with CapturedLogs() as log:
        Worker(ledger, lambda handle: None, RetryPolicy(0), clock, name="host:1", recovery=recovery, heartbeat_s=2)
        assert log.warnings == []
        Worker(ledger, lambda handle: None, RetryPolicy(0), clock, name="host:1", recovery=recovery)
    assert "takes a worker for dead that is heard of every 15 s" in log.warnings[0]


class Busy(BucketLedger):
    """A ledger that is busy for `busy` claims in a row, and answers the next one."""

    busy: tuple[int, ...] = ()
    asked = 0

    def claim(self, worker: str, *, actor: str = "worker", pipeline: str | None = None) -> Run | None:
        self.asked += 1
        if self.busy and self.busy[0]:
            self.busy = (self.busy[0] - 1, *self.busy[1:])
            raise LeaseHeld("host:2 is at work")
        self.busy = self.busy[1:]
        return super().claim(worker, actor=actor, pipeline=pipeline)


def test_a_ledger_that_is_busy_is_asked_thirty_times_more_and_again_after_each_answer() -> None:
    clock = FakeClock()
    ledger = Busy(MemoryBucket(), clock)
    for number in range(2):
        ledger.create_for_task(f"t{number}", f"t{number}#1", actor="cron")
    ledger.busy = (MAX_LEDGER_FAILURES, MAX_LEDGER_FAILURES, MAX_LEDGER_FAILURES + 1)
    with CapturedLogs() as log, pytest.raises(LeaseHeld):
        Worker(ledger, lambda handle: None, RetryPolicy(0), clock, name="host:1").work(until_idle=True)
    assert ledger.asked == 3 * (MAX_LEDGER_FAILURES + 1)
    assert {run.status for run in ledger.runs()} == {RunStatus.SUCCEEDED}
    assert log.warnings[0] == "claiming a run failed and is retried: host:2 is at work"


@pytest.mark.parametrize("pipeline", ["", "posters"])
def test_the_record_of_a_failure_names_the_pipeline(pipeline: str) -> None:
    def job(handle: RunHandle) -> None:
        raise ValueError("no such poster")

    clock = FakeClock()
    ledger = BucketLedger(MemoryBucket(), clock)
    run = ledger.create_for_task("t", "t#1", actor="cron", pipeline=pipeline)
    Worker(ledger, job, RetryPolicy(0), clock, name="host:1").work_once()
    [record] = [event.payload for event in ledger.events(run.run_id) if event.kind == ERROR]
    assert record["robot_id"] == (pipeline or "worker")


def test_a_run_that_somebody_removes_while_it_is_worked_on_ends_no_worker() -> None:
    def job(handle: RunHandle) -> None:
        if handle.run.task_id == "t0":
            for entry in [it for it in bucket.list("") if handle.run.run_id in it.key]:
                bucket.delete(entry.key)

    clock, bucket = FakeClock(), MemoryBucket()
    ledger = BucketLedger(bucket, clock)
    for number in range(2):
        ledger.create_for_task(f"t{number}", f"t{number}#1", actor="cron")
    with CapturedLogs() as log:
        assert Worker(ledger, job, RetryPolicy(0), clock, name="host:1").work(until_idle=True) == 2
    assert [run.status for run in ledger.runs()] == [RunStatus.SUCCEEDED]
    assert any("which is not saved: there is no run" in it.getMessage() for it in log.records)


@pytest.mark.parametrize(("step", "facts"), [("", {}), ("film", {"step": 1}), ("film", {"actor": "Ada", "file": "f"})])
def test_a_step_whose_facts_would_not_come_back_is_refused(step: str, facts: dict[str, Any]) -> None:
    ledger = BucketLedger(MemoryBucket(), FakeClock())
    handle = RunHandle(ledger, ledger.create_for_task("t", "t#1", actor="cron"), FakeClock())
    with pytest.raises(InvalidField, match=r"step: has to be|facts\.(step|actor): is a name of the event's own"):
        handle.step_done(step, facts)
    assert handle.steps_done() == {}
