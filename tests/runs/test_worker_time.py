"""A worker and time: a job longer than `timeout_s`, clocks set back, the policy's deadline."""

import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from retake.bucket.failing import FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.bucket.wrappers import CountingBucket
from retake.clock import FakeClock
from retake.errors import Code, CodedError, StorageError
from retake.retrying.backoff import Fixed
from retake.retrying.policy import RetryPolicy
from retake.retrying.time_limit import abandoned
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run import ERROR, Event, Run, StaleRun
from retake.runs.run_handle import RunHandle
from retake.runs.states import RunStatus, Trigger
from retake.runs.worker import LATE, Postponed, Worker

LIMIT_S = 3.0
LONG_S = 30.0  # only reached when something is broken


class SlowJob:
    """A job that hangs in its first call until the test continues it, and then wants to pay."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.thread: threading.Thread | None = None
        self.paid: list[int] = []
        self.refused: list[str] = []

    def __call__(self, handle: RunHandle) -> Mapping[str, Any]:
        number = handle.run.retries
        if number == 0:
            self.thread = threading.current_thread()
            assert self.go_on.wait(LONG_S)
        try:
            handle.check()
        except StaleRun as error:
            self.refused.append(str(error))
            raise
        self.paid.append(number)
        return {"attempt": number}

    def end(self) -> None:
        self.go_on.set()
        assert self.thread
        self.thread.join(LONG_S)


@pytest.fixture
def job() -> Iterator[SlowJob]:
    job = SlowJob()
    yield job
    job.end()
    assert abandoned() == 0


@pytest.fixture
def ledger() -> BucketLedger:
    return BucketLedger(MemoryBucket(MemoryStore()), FakeClock())


def kinds(ledger: BucketLedger, run_id: str) -> list[str]:
    return [event.payload.get("status", event.kind) for event in ledger.events(run_id)]


def test_a_job_that_hangs_fails_because_its_payments_are_unknown(ledger: BucketLedger, job: SlowJob) -> None:
    run = ledger.create_for_task("t", "t#1", actor="cron")
    worker = Worker(ledger, job, RetryPolicy(5, Fixed(0.0), timeout_s=LIMIT_S), FakeClock(), name="host:1")
    assert worker.work(until_idle=True) == 1
    failed = ledger.get(run.run_id)
    assert (failed.status, failed.error_code) == (RunStatus.FAILED, Code.TIMEOUT)
    assert f"within {LIMIT_S:g} s" in ledger.events(run.run_id)[-1].payload["message"]
    before = ledger.events(run.run_id)
    job.end()
    assert (job.paid, len(job.refused)) == ([], 1)
    assert (ledger.get(run.run_id), ledger.events(run.run_id)) == (failed, before)


def test_where_the_policy_names_the_error_the_job_is_tried_again_and_pays_once(
    ledger: BucketLedger, job: SlowJob
) -> None:
    run = ledger.create_for_task("t", "t#1", actor="cron")
    policy = RetryPolicy(5, Fixed(0.0), timeout_s=LIMIT_S, timeout_code=Code.TIMEOUT)
    assert Worker(ledger, job, policy, FakeClock(), name="host:1").work(until_idle=True) == 2
    job.end()
    assert (job.paid, len(job.refused)) == ([1], 1)
    assert kinds(ledger, run.run_id) == [
        *("queued", "running", "retry_scheduled", "run.error", "running", "run.result", "succeeded")
    ]


def test_a_worker_whose_job_hangs_goes_on_with_the_next_run(ledger: BucketLedger, job: SlowJob) -> None:
    ledger.create_for_task("hangs", "hangs#1", actor="cron")
    ledger.create_for_task("other", "other#1", actor="cron")

    def either(handle: RunHandle) -> Mapping[str, Any]:
        return job(handle) if handle.run.task_id == "hangs" else {"done": True}

    worker = Worker(ledger, either, RetryPolicy(0, timeout_s=LIMIT_S), FakeClock(), name="host:1")
    assert worker.work(until_idle=True) == 2
    counts = ledger.counts()
    assert (counts[RunStatus.FAILED], counts[RunStatus.SUCCEEDED]) == (1, 1)


def test_a_heartbeat_that_fails_with_a_bug_is_not_the_last_one() -> None:
    clock, heard = FakeClock(), threading.Semaphore(0)

    class Odd(BucketLedger):
        broken = True

        def heartbeat(self, run: Run) -> Run:
            if self.broken:
                self.broken = False
                raise RuntimeError("can't start new thread")
            found = super().heartbeat(run)
            heard.release()
            return found

    def job(handle: RunHandle) -> None:
        assert heard.acquire(timeout=LONG_S)

    ledger = Odd(MemoryBucket(MemoryStore(clock)), clock)
    ledger.create_for_task("t", "k", actor="shop")
    done = Worker(ledger, job, RetryPolicy(0), clock, name="host:1", heartbeat_s=0.01).work_once()
    assert done is not None
    assert done.status is RunStatus.SUCCEEDED


def test_whoever_was_frozen_while_the_clock_was_set_back_asks_before_paying() -> None:
    clock = FakeClock()
    ledger = BucketLedger(MemoryBucket(MemoryStore(clock)), clock)
    ledger.create_for_task("t", "k", actor="shop")
    run = ledger.claim("host:1")
    assert run is not None
    handle = RunHandle(ledger, run, clock)
    ledger.move(run, Trigger.CANCEL_COMMAND, actor="operator")
    clock.moment -= timedelta(days=365)
    with pytest.raises(StaleRun, match="cancelled"):
        handle.check()


@pytest.mark.parametrize("frozen", ["claim", "heartbeat"])
def test_whoever_was_frozen_before_it_read_the_answer_asks_before_paying(frozen: str) -> None:
    """A heartbeat that was sent an hour ago says nothing about now, however late its answer is read."""
    clock = FakeClock()

    class Freezing(BucketLedger):
        def heartbeat(self, run: Run) -> Run:
            found = super().heartbeat(run)
            clock.sleep(3600)
            BucketLedger.move(self, run, Trigger.CANCEL_COMMAND, actor="operator")
            return found

    store = MemoryBucket(MemoryStore(clock))
    kind = Freezing if frozen == "heartbeat" else BucketLedger
    ledger = kind(store, clock)
    ledger.create_for_task("t", "k", actor="shop")
    run = ledger.claim("host:1")
    assert run is not None
    if frozen == "claim":
        clock.sleep(3600)
        ledger.move(run, Trigger.CANCEL_COMMAND, actor="operator")
    handle = RunHandle(ledger, run, clock)
    if frozen == "heartbeat":
        handle.heartbeat()
    with pytest.raises(StaleRun, match="cancelled"):
        handle.check()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_late_result_is_noted_once_though_the_ledger_is_away_for_a_moment(after: bool) -> None:
    clock = FakeClock()
    store = MemoryBucket(MemoryStore(clock))
    ledger = BucketLedger(store, clock)
    run = ledger.create_for_task("t", "k", actor="shop")
    noted = Fault(operation="write", key=f"runs/{run.run_id}.json", number=2, after=after)  # the first is its claim

    def job(handle: RunHandle) -> Mapping[str, Any]:
        ledger.move(handle.run, Trigger.CANCEL_COMMAND, actor="operator")
        return {"paid": "for"}

    its_ledger = BucketLedger(FailingBucket(store, noted), clock)
    ended = Worker(its_ledger, job, RetryPolicy(0), clock, name="host:1", heartbeat_s=999.0).work_once()
    assert ended is not None
    assert ended.status is RunStatus.CANCELLED
    late = [event.payload["results"] for event in ledger.events(run.run_id) if event.kind == LATE]
    assert late == [[{"paid": "for"}]]


def test_a_job_that_was_postponed_has_all_its_attempts_left() -> None:
    clock = FakeClock()
    ledger = BucketLedger(MemoryBucket(), clock)
    endings: list[Exception] = [Postponed("the cap is reached", 60.0)] * 5
    endings += [CodedError(Code.UNAVAILABLE, "HTTP 503")] * 3
    run = ledger.create_for_task("aurora", "aurora", actor="shop")

    def job(handle: RunHandle) -> None:
        raise endings.pop(0)

    worker = Worker(ledger, job, RetryPolicy(max_retries=2), clock, name="host:1")
    while not ledger.get(run.run_id).ended:
        worker.work(until_idle=True)
        clock.sleep(60)
    assert not endings
    records = [event.payload for event in ledger.events(run.run_id) if event.kind == ERROR]
    assert [it["details"]["retry_count"] for it in records] == [0, 1, 2]


# --- the policy's deadline --------------------------------------------------------------------------------------------

WITHOUT_END = RetryPolicy(max_retries=None, backoff=Fixed(5.0), deadline_s=10.0)


def ends_of(ledger: BucketLedger, clock: FakeClock, attempts: int) -> list[RunStatus]:
    """Return the ends of so many attempts that take a second each, and fail."""

    def job(handle: RunHandle) -> None:
        clock.sleep(1)
        raise CodedError(Code.UNAVAILABLE, "HTTP 503")

    ended = []
    for _ in range(attempts):
        ended.append(Worker(ledger, job, WITHOUT_END, clock, name="host:1").work_once())
        clock.sleep(5)
    return [run.status for run in ended if run]


def test_a_run_whose_deadline_has_passed_is_not_repeated() -> None:
    """The deadline counts from when a worker first began, not from the creation of the run; each repeat is the same
    run."""
    clock = FakeClock()
    ledger = BucketLedger(MemoryBucket(), clock)
    run = ledger.create_for_task("aurora", "aurora", actor="shop")
    clock.sleep(60)
    assert ends_of(ledger, clock, 3) == [RunStatus.RETRY_SCHEDULED, RunStatus.RETRY_SCHEDULED, RunStatus.FAILED]
    [action] = ledger.events(run.run_id)[-1].payload["recovery_actions"]
    assert action["what"] == f"{Code.UNAVAILABLE} after 13 s"


def test_where_its_events_cannot_be_read_the_deadline_counts_from_the_attempt() -> None:
    class Away(BucketLedger):
        def events(self, run_id: str) -> list[Event]:
            raise StorageError("away")

    clock = FakeClock()
    ledger = Away(MemoryBucket(), clock)
    ledger.create_for_task("aurora", "aurora", actor="shop")
    assert ends_of(ledger, clock, 9) == [RunStatus.RETRY_SCHEDULED] * 9


def test_a_look_for_a_run_in_a_bucket_is_one_listing() -> None:
    bucket, clock = CountingBucket(MemoryBucket()), FakeClock()
    worker = Worker(BucketLedger(bucket, clock), lambda handle: None, RetryPolicy(1), clock, name="host:1")
    assert worker.work_once() is None
    bucket.counts.clear()
    assert worker.work_once() is None
    assert bucket.counts == {"list": 1}
