"""Recovery: silent runs are interrupted, those resumed too often are given up, and two recoveries do not collide."""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from ledger_shapes import claimed, wait
from together import at_once

from retake import attempts
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock, SystemClock, stamp
from retake.errors import Code, LeaseHeld
from retake.retrying.policy import RetryPolicy
from retake.runs import Ledger
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.recovery import MAX_RESUMES, PATIENCE_S, Recovery, take_over
from retake.runs.run import CHANGED, ERROR, Run
from retake.runs.sql_ledger import SqlLedger, open_sql_ledger
from retake.runs.states import IllegalTransition, RunStatus, Trigger
from retake.runs.worker import Worker

Connect = Callable[[], Ledger]


@pytest.fixture(params=["bucket", "sqlite", "postgresql"])
def connect(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path, opened: list[SqlLedger]) -> Connect:
    if request.param == "bucket":
        store = MemoryStore(clock)
        return lambda: BucketLedger(MemoryBucket(store), clock)
    url = f"sqlite:{tmp_path}/runs.db" if request.param == "sqlite" else request.getfixturevalue("database_url")

    def connect() -> Ledger:
        opened.append(open_sql_ledger(url, clock))
        return opened[-1]

    return connect


def begun(ledger: Ledger, name: str = "t", pipeline: str = "") -> Run:
    """Create a run that a worker has claimed."""
    run = ledger.create_for_task(name, f"{name}#1", actor="cron", pipeline=pipeline)
    return ledger.move(run, Trigger.WORKER_CLAIM, actor="worker", worker="host:7")


def statuses(ledger: Ledger, run: Run) -> list[str]:
    return [event.payload["status"] for event in ledger.events(run.run_id) if event.kind == CHANGED]


def test_a_worker_with_a_recovery_takes_up_a_silent_run_before_it_is_idle(connect: Connect, clock: FakeClock) -> None:
    ledger = connect()
    run = begun(ledger)
    clock.sleep(PATIENCE_S + 1)
    recovery = Recovery(ledger, clock)
    worker = Worker(ledger, lambda handle: None, RetryPolicy(0), clock, name="host:8", recovery=recovery)
    assert worker.work(until_idle=True) == 1
    assert statuses(ledger, run)[-3:] == ["interrupted", "running", "succeeded"]


def test_a_silent_run_is_interrupted_with_a_record_of_who_had_it_and_since_when(
    connect: Connect, clock: FakeClock
) -> None:
    ledger = connect()
    run, since = begun(ledger), clock.now()
    clock.sleep(40)
    ledger.heartbeat(run)
    clock.sleep(PATIENCE_S + 1)
    (interrupted,) = Recovery(connect(), clock).sweep().interrupted
    assert (interrupted.status, interrupted.worker) == (RunStatus.INTERRUPTED, None)
    changed, error = ledger.events(run.run_id)[-2:]
    assert (changed.payload["actor"], changed.payload["error_code"]) == ("recovery", Code.SCRIPT_DIED)
    assert (error.kind, error.payload["correlation_id"], error.payload["robot_id"]) == (ERROR, run.run_id, "recovery")
    context = error.payload["details"]["system_context"]
    heard = since + timedelta(seconds=40)
    assert (context["worker"], context["since"], context["last_heard_of"]) == ("host:7", stamp(since), stamp(heard))
    assert "host:7 had" in error.payload["message"]
    assert error.payload["recovery_actions"] == [{"action": "RETRY", "delay_seconds": 0}]


def test_whoever_gives_signs_of_life_is_left_alone(connect: Connect, clock: FakeClock) -> None:
    ledger = connect()
    run = begun(ledger)
    for _ in range(5):
        clock.sleep(PATIENCE_S)
        assert Recovery(connect(), clock).sweep() == ([], [])
        run = ledger.heartbeat(run)
    assert statuses(ledger, run) == ["queued", "running"]


def test_whoever_gives_a_sign_of_life_while_others_are_interrupted_is_left_alone(
    connect: Connect, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many runs, some time passes between finding the silent ones and interrupting them."""
    sweeping, ledger = connect(), connect()
    first, alive = begun(ledger, "first"), begun(ledger, "alive")
    clock.sleep(PATIENCE_S + 1)
    ledger.heartbeat(first)
    clock.sleep(PATIENCE_S + 1)
    look = type(sweeping).silent

    def silent(self: Ledger, since: datetime) -> list[Run]:
        found = look(self, since)
        ledger.heartbeat(alive)
        return found

    monkeypatch.setattr(type(sweeping), "silent", silent)
    assert [run.run_id for run in Recovery(sweeping, clock).sweep().interrupted] == [first.run_id]
    assert ledger.get(alive.run_id).status is RunStatus.RUNNING


def test_whoever_died_with_a_clock_far_ahead_is_detected(connect: Connect, clock: FakeClock) -> None:
    ledger, recovery = connect(), Recovery(connect(), clock)
    clock.sleep(365 * 24 * 3600)
    run = begun(ledger)
    clock.moment -= timedelta(days=364)
    assert recovery.sweep() == ([], [])
    clock.sleep(PATIENCE_S + 1)
    assert [it.run_id for it in recovery.sweep().interrupted] == [run.run_id]


def test_whoever_lives_with_a_clock_far_ahead_is_left_alone(connect: Connect, clock: FakeClock) -> None:
    ledger, recovery = connect(), Recovery(connect(), clock)
    run = begun(ledger)
    for _ in range(5):
        clock.sleep(365 * 24 * 3600)
        run = ledger.heartbeat(run)
        clock.moment -= timedelta(days=364, hours=23)
        assert recovery.sweep() == ([], [])


@pytest.mark.parametrize("pipeline", [None, "story"])
def test_a_retry_that_a_clock_far_ahead_has_scheduled_is_made(
    connect: Connect, clock: FakeClock, pipeline: str | None
) -> None:
    ledger, start = connect(), clock.now()
    clock.sleep(365 * 86400)
    for task, due_s in (("r1", 50), ("r2", 20)):
        wait(ledger, clock, task, RunStatus.RETRY_SCHEDULED, due_s=due_s, pipeline="story")
    clock.moment = start
    wait(ledger, clock, "q", RunStatus.QUEUED, pipeline="story")
    wait(ledger, clock, "r3", RunStatus.RETRY_SCHEDULED, due_s=1, pipeline="story")
    clock.sleep(1)
    assert claimed(ledger, pipeline) == ["r3", "r1", "r2", "q"]


def test_a_retry_of_a_machine_whose_clock_is_a_little_ahead_waits(connect: Connect, clock: FakeClock) -> None:
    ledger, start = connect(), clock.now()
    clock.sleep(240)
    wait(ledger, clock, "r", RunStatus.RETRY_SCHEDULED, due_s=10)
    clock.moment = start
    assert claimed(ledger) == []


class MachineClock(SystemClock):
    """A machine's clock, which can be set, and its monotonic clock, which cannot."""

    def __init__(self) -> None:
        self.moment, self.monotonic_s = FakeClock().moment, 0.0

    def now(self) -> datetime:
        return self.moment

    def sleep(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)
        self.monotonic_s += seconds

    def monotonic(self) -> float:
        return self.monotonic_s


def test_whoever_lives_while_the_clock_is_set_forward_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MachineClock()
    monkeypatch.setattr(attempts, "time", clock)
    ledger = BucketLedger(MemoryBucket(MemoryStore(clock)), clock)
    living, dead, recovery, found = begun(ledger, "a"), begun(ledger, "b"), Recovery(ledger, clock), []
    clock.moment += timedelta(hours=1)
    for _ in range(6):
        found += recovery.sweep().interrupted
        clock.sleep(PATIENCE_S / 4)
        living = ledger.heartbeat(living)
    assert [run.run_id for run in found] == [dead.run_id]


def test_runs_of_other_pipelines_are_left_alone(connect: Connect, clock: FakeClock) -> None:
    """The story's runs are silent between two ticks."""
    ledger = connect()
    for pipeline in ("story", "music"):
        begun(ledger, pipeline, pipeline)
    clock.sleep(3600)
    swept = Recovery(connect(), clock, pipeline="music").sweep()
    assert [run.pipeline for run in swept.interrupted] == ["music"]


def test_a_run_resumed_too_often_is_given_up_and_a_person_told(connect: Connect, clock: FakeClock) -> None:
    ledger, recovery = connect(), Recovery(connect(), clock)
    run = begun(ledger)
    for _ in range(MAX_RESUMES):
        clock.sleep(PATIENCE_S + 1)
        assert recovery.sweep().given_up == []
        claimed = ledger.claim("host:8")
        assert claimed is not None
        run = claimed
    assert run.resumes == MAX_RESUMES
    clock.sleep(PATIENCE_S + 1)
    swept = recovery.sweep()
    assert swept.interrupted == []
    (given_up,) = swept.given_up
    assert (given_up.status, given_up.error_code) == (RunStatus.FAILED, Code.SCRIPT_DIED)
    (action,) = ledger.events(run.run_id)[-1].payload["recovery_actions"]
    assert (action["action"], action["recipient"]) == ("ESCALATE", "operator")
    assert recovery.sweep() == ([], [])


def test_a_worker_that_returned_the_job_did_not_die_of_it(connect: Connect, clock: FakeClock) -> None:
    ledger, recovery = connect(), Recovery(connect(), clock)
    run = begun(ledger)
    for _ in range(2 * MAX_RESUMES):
        ledger.move(run, Trigger.PROCESS_RESTART, actor="worker")  # told to stop, as for a new version of it
        assert recovery.sweep() == ([], [])
        claimed = ledger.claim("host:8")
        assert claimed is not None
        run = claimed
    clock.sleep(PATIENCE_S + 1)
    assert [it.run_id for it in recovery.sweep().interrupted] == [run.run_id]


def test_two_recoveries_at_once_do_each_thing_once(connect: Connect, clock: FakeClock) -> None:
    ledger = connect()
    runs = [begun(ledger, f"t{number}") for number in range(6)]
    clock.sleep(PATIENCE_S + 1)
    marked: list[str] = []

    def sweep() -> None:
        recovery = Recovery(connect(), clock)
        with suppress(LeaseHeld):  # whoever holds it for so long is doing the same
            marked.extend(run.run_id for run in recovery.sweep().interrupted)

    at_once([sweep] * 3)
    Recovery(ledger, clock).sweep()
    assert len(marked) == len(set(marked))
    for run in runs:
        assert statuses(ledger, run) == ["queued", "running", "interrupted"]


def test_a_run_that_was_resumed_meanwhile_is_not_a_fault(clock: FakeClock) -> None:
    """In between, its worker finishes it, or another recovery marks it."""
    store = MemoryStore(clock)

    class Slow(BucketLedger):
        def silent(self, since: datetime) -> list[Run]:
            found = super().silent(since)
            others = BucketLedger(MemoryBucket(store), clock)
            others.move(found[0], Trigger.COMPLETED, actor="worker")
            others.move(found[1], Trigger.PROCESS_RESTART, actor="recovery")
            return found

    ledger = BucketLedger(MemoryBucket(store), clock)
    runs = [begun(ledger, name) for name in ("done", "marked", "silent")]
    clock.sleep(PATIENCE_S + 1)
    swept = Recovery(Slow(MemoryBucket(store), clock), clock).sweep()
    assert len(swept.interrupted) == 1
    assert {statuses(ledger, run)[-1] for run in runs} == {"succeeded", "interrupted"}


def test_a_recovery_that_dies_anywhere_is_made_up_for_by_the_next(clock: FakeClock) -> None:
    def world() -> MemoryStore:
        store = MemoryStore(clock)
        ledger = BucketLedger(MemoryBucket(store), clock)
        run = begun(ledger, "often")
        for _ in range(MAX_RESUMES):
            run = ledger.move(run, Trigger.PROCESS_RESTART, actor="recovery")
            run = ledger.move(run, Trigger.RECOVERY_RESUME, actor="worker", worker="w")
        begun(ledger, "once")
        clock.sleep(PATIENCE_S + 1)
        return store

    counted = FailingBucket(MemoryBucket(world()))
    Recovery(BucketLedger(counted, clock), clock).sweep()
    for number in range(1, len(counted.operations) + 1):
        store = world()
        dying = FailingBucket(MemoryBucket(store), Fault(Crash, number=number, after=True))
        with pytest.raises(Crash):
            Recovery(BucketLedger(dying, clock), clock).sweep()
        store.end_leases()
        ledger = BucketLedger(MemoryBucket(store), clock)
        Recovery(ledger, clock).sweep()
        counts = ledger.counts()
        assert (counts[RunStatus.FAILED], counts[RunStatus.INTERRUPTED]) == (1, 1)


# --- by the lease -----------------------------------------------------------------------------------------------


def test_whoever_has_the_lease_now_takes_over_at_once(connect: Connect, clock: FakeClock) -> None:
    ledger = connect()
    run = take_over(ledger, begun(ledger), clock, worker="host:9")
    assert (run.status, run.worker, run.resumes, run.attempt) == (RunStatus.RUNNING, "host:9", 1, 1)
    assert statuses(ledger, run) == ["queued", "running", "interrupted", "running"]
    events = ledger.events(run.run_id)
    assert len({event.trace_id for event in events[-3:]}) == 1
    assert [event.payload.get("actor") for event in events[-3:]] == ["recovery", None, "recovery"]


def test_a_take_over_that_died_in_the_middle_is_taken_over_too(connect: Connect, clock: FakeClock) -> None:
    ledger = connect()
    interrupted = ledger.move(begun(ledger), Trigger.PROCESS_RESTART, actor="recovery")
    assert take_over(ledger, interrupted, clock, worker="host:9").status is RunStatus.RUNNING


def test_not_for_ever(connect: Connect, clock: FakeClock) -> None:
    ledger = connect()
    run = begun(ledger)
    for _ in range(MAX_RESUMES):
        run = take_over(ledger, run, clock, worker="host:9")
    assert take_over(ledger, run, clock, worker="host:9").status is RunStatus.FAILED


def test_what_has_ended_is_not_taken_over(connect: Connect, clock: FakeClock) -> None:
    ledger = connect()
    done = ledger.move(begun(ledger), Trigger.COMPLETED, actor="worker")
    with pytest.raises(IllegalTransition):
        take_over(ledger, done, clock, worker="host:9")
