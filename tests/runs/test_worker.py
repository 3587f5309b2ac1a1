"""The worker: how a job's end becomes a transition, signs of life, lost runs, and how it stops."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from retake.bucket.failing import FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock
from retake.errors import (
    Code,
    CodedError,
    OutcomeUnknown,
    Refused,
    SettingsError,
    Stopped,
    StorageError,
)
from retake.retrying.backoff import Exponential, Fixed
from retake.retrying.policy import GiveUp, Retry, RetryIf, RetryPolicy, decide_on_paid
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.recovery import MAX_RESUMES
from retake.runs.run import CHANGED, ERROR, Run, StaleRun
from retake.runs.run_handle import RunHandle
from retake.runs.states import RunStatus, Trigger
from retake.runs.validation import InvalidField
from retake.runs.worker import LATE, NOT_STORABLE, RESULT, SAVE_PAUSES_S, Job, Worker, coded

POLICY = RetryPolicy(max_retries=2, backoff=Exponential(5.0, 2.0))


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.ledger = self.connect()

    def connect(self, *faults: Fault) -> BucketLedger:
        return BucketLedger(FailingBucket(MemoryBucket(self.store), *faults), self.clock)

    def queue(self, name: str = "t", pipeline: str = "") -> Run:
        return self.ledger.create_for_task(name, f"{name}#1", actor="cron", pipeline=pipeline)

    def worker(self, job: Job, policy: RetryPolicy = POLICY, *faults: Fault, **more: Any) -> Worker:
        more = {"name": "host:1", "draw": lambda: 0.5, **more}
        return Worker(self.connect(*faults), job, policy, self.clock, **more)

    def kinds(self, run: Run) -> list[str]:
        return [event.payload.get("status", event.kind) for event in self.ledger.events(run.run_id)]


@pytest.fixture
def world() -> World:
    return World()


def raising(error: BaseException) -> Job:
    def job(handle: RunHandle) -> Mapping[str, Any]:
        raise error

    return job


def nothing(handle: RunHandle) -> None:
    return None


# --- ends -------------------------------------------------------------------------------------------------------


def test_what_a_job_returns_is_on_record_with_the_end_of_its_run(world: World) -> None:
    run = world.queue()
    done = world.worker(lambda handle: {"picture": handle.run.task_id}).work_once()
    assert done is not None
    assert done.status is RunStatus.SUCCEEDED
    result, end = world.ledger.events(run.run_id)[-2:]
    assert (result.kind, result.payload) == (RESULT, {"picture": "t", "actor": "worker"})
    assert (end.payload["status"], end.trace_id) == ("succeeded", result.trace_id)


def test_a_job_that_returns_nothing_has_succeeded_too(world: World) -> None:
    run = world.queue()
    world.worker(nothing).work_once()
    assert world.kinds(run) == ["queued", "running", "succeeded"]


def test_nothing_to_do_is_not_an_error(world: World) -> None:
    assert world.worker(nothing).work_once() is None
    world.queue(pipeline="music")
    assert world.worker(nothing, pipeline="story").work_once() is None


def test_a_failure_is_repeated_as_the_policy_says_and_then_no_more(world: World) -> None:
    run, waits = world.queue(), []
    worker = world.worker(raising(Refused(Code.UNAVAILABLE, "503")))
    while not (run := worker.work_once() or run).ended:
        assert run.next_retry_at is not None
        waits.append((run.next_retry_at - world.clock.now()).total_seconds())
        world.clock.sleep(waits[-1])
    assert (waits, run.status, run.attempt) == ([5, 10], RunStatus.FAILED, 3)
    errors = [event.payload for event in world.ledger.events(run.run_id) if event.kind == ERROR]
    assert [it["details"]["retry_count"] for it in errors] == [0, 1, 2]
    actions = [it["recovery_actions"] for it in errors]
    assert actions[:2] == [[{"action": "RETRY", "delay_seconds": delay}] for delay in (5, 10)]
    assert actions[2][0]["action"] == "ESCALATE"
    assert errors[0]["details"]["input_data"] == {"task_id": "t", "attempt": 1, "idempotency_key": "t#1"}


@pytest.mark.slow
def test_however_many_repeats_there_may_be_there_are_no_more(world: World) -> None:
    """There are more repeats than events in the run's document: they are counted on the run, not by its events."""
    run, calls = world.queue(), []
    policy = RetryPolicy(max_retries=340, backoff=Fixed(1.0))
    ledger = BucketLedger(MemoryBucket(world.store), world.clock, max_events=20)

    def job(handle: RunHandle) -> None:
        calls.append(handle.run.retries)
        raise Refused(Code.UNAVAILABLE, "503")

    worker = Worker(ledger, job, policy, world.clock, name="host:1")
    while not (worker.work_once() or run).ended:
        world.clock.sleep(1)
    assert calls == list(range(341))
    events = world.ledger.events(run.run_id)
    statuses = [event.payload["status"] for event in events if event.kind == CHANGED]
    assert statuses == ["queued", *["running", "retry_scheduled"] * 340, "running", "failed"]
    assert len([event for event in events if event.kind == ERROR]) == 341


def test_a_new_run_of_a_task_has_repeats_of_its_own(world: World) -> None:
    """When an operator lets a failed task be done anew, its attempts go on and its repeats start again."""
    worker = world.worker(raising(Refused(Code.UNAVAILABLE, "503")))
    world.queue()
    for _ in range(3):
        worker.work_once()
        world.clock.sleep(60)
    again = world.ledger.create_for_task("t", "t#2", actor="operator")
    assert again.attempt == 4
    for _ in range(2):
        again = worker.work_once() or again
        assert again.status is RunStatus.RETRY_SCHEDULED
        world.clock.sleep(60)


def test_the_wait_is_as_long_as_the_other_side_asked(world: World) -> None:
    run = world.queue()
    world.worker(raising(Refused(Code.RATE_LIMIT, "429", retry_after_s=90))).work_once()
    due = world.ledger.get(run.run_id).next_retry_at
    assert due is not None
    assert (due - world.clock.now()).total_seconds() == 90


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (Refused(Code.REJECTED, "moderation"), Code.REJECTED, RunStatus.FAILED),
        (Refused(Code.UNAUTHORIZED, "401"), Code.UNAUTHORIZED, RunStatus.FAILED),
        (SettingsError("no key"), Code.CONFIGURATION, RunStatus.FAILED),
        (OutcomeUnknown(Code.TIMEOUT, "no answer"), Code.TIMEOUT, RunStatus.FAILED),
        (StorageError("the disk is full"), Code.SCRIPT_DIED, RunStatus.RETRY_SCHEDULED),
        (ZeroDivisionError("a bug"), Code.SCRIPT_DIED, RunStatus.RETRY_SCHEDULED),
    ],
)
def test_every_error_has_its_code_and_its_end(world: World, error: Exception, code: Code, status: RunStatus) -> None:
    run = world.queue()
    world.worker(raising(error)).work_once()
    after = world.ledger.get(run.run_id)
    assert (after.status, after.error_code) == (status, code)
    assert str(error) in world.ledger.events(run.run_id)[-1].payload["message"]


def test_a_bug_is_named() -> None:
    assert str(coded(ZeroDivisionError("a bug"))).endswith("ZeroDivisionError: a bug")
    error = CodedError("ERR_BUSINESS_X", "x")
    assert coded(error) is error


def test_cannot_know_is_an_answer_of_its_own() -> None:
    unknown = OutcomeUnknown(Code.TIMEOUT, "no answer")
    always = RetryPolicy(max_retries=None, backoff=Fixed(1))
    assert isinstance(decide_on_paid(always, Refused(Code.TIMEOUT, "no connection"), 1, lambda: 0), Retry)
    decision = decide_on_paid(always, unknown, 1, lambda: 0)
    assert isinstance(decision, GiveUp)
    assert not decision.used_up
    named = always._replace(retry_if=RetryIf(codes=frozenset({Code.TIMEOUT})))
    assert isinstance(decide_on_paid(named, unknown, 1, lambda: 0), Retry)


class Unreadable(dict[str, Any]):
    """Raises for everyone who looks into it."""

    def __bool__(self) -> bool:
        raise ZeroDivisionError("whether there is anything in it")

    def items(self) -> Any:
        raise ZeroDivisionError("what is in it")


class Filled(Unreadable):
    def __bool__(self) -> bool:
        return True


@pytest.mark.parametrize("result", [Unreadable(), Filled(), "done", 7, [1], object(), iter("ab")])
def test_what_is_not_a_result_at_all_ends_the_run_and_not_the_worker(world: World, result: Any) -> None:
    run, other = world.queue(), world.queue("other")
    worker = world.worker(lambda handle: result if handle.run.task_id == "t" else None)
    assert worker.work(until_idle=True) == 2
    assert world.ledger.get(run.run_id).status is RunStatus.FAILED
    assert world.ledger.get(other.run_id).status is RunStatus.SUCCEEDED
    assert world.ledger.events(run.run_id)[-1].payload["error_code"] == NOT_STORABLE


@pytest.mark.parametrize("result", [None, {}, "", 0, []])
def test_nothing_is_a_result_too(world: World, result: Any) -> None:
    run = world.queue()
    world.worker(lambda handle: result).work_once()
    assert world.kinds(run) == ["queued", "running", "succeeded"]


def test_a_result_that_cannot_be_stored_is_in_the_record_as_far_as_it_can(world: World) -> None:
    """It may have been paid for."""
    run = world.queue()
    world.worker(lambda handle: {"picture": "https://files/1.png", "size": {1, 2}, "n": float("nan")}).work_once()
    context = world.ledger.events(run.run_id)[-1].payload["details"]["system_context"]
    assert context["result"] == {"picture": "https://files/1.png", "size": "{1, 2}", "n": "nan"}


def test_an_error_whose_code_no_store_takes_is_on_record_anyway(world: World) -> None:
    run = world.queue()
    world.worker(raising(CodedError("ERR_BUSINESS_\0", "odd"))).work_once()
    after = world.ledger.get(run.run_id)
    assert (after.status, after.error_code) == (RunStatus.FAILED, r"'ERR_BUSINESS_\x00'")


def test_a_late_result_that_cannot_be_stored_is_noted_anyway(world: World) -> None:
    run = world.queue()

    def job(handle: RunHandle) -> Mapping[str, Any]:
        world.ledger.move(world.ledger.get(run.run_id), Trigger.CANCEL_COMMAND, actor="operator")
        return {"size": {1, 2}}

    assert world.worker(job).work(until_idle=True) == 1
    assert world.kinds(run) == ["queued", "running", "cancelled", LATE]


@pytest.mark.parametrize("name", ["", " ", "a\0", "\ud800"])
def test_a_worker_has_a_name(world: World, name: str) -> None:
    with pytest.raises(ValueError, match=r"^name: "):
        world.worker(nothing, name=name)


# --- signs of life, and lost runs -------------------------------------------------------------------------------


class Listening(BucketLedger):
    """Signals each sign of life."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.heard = threading.Semaphore(0)

    def heartbeat(self, run: Run) -> Run:
        try:
            return super().heartbeat(run)
        finally:
            self.heard.release()


def test_while_the_job_is_done_signs_of_life_are_given_and_then_no_more(world: World) -> None:
    run = world.queue()
    ledger = Listening(MemoryBucket(world.store), world.clock)

    def job(handle: RunHandle) -> None:
        world.clock.sleep(100)
        while ledger.heard.acquire(blocking=False):  # earlier ones
            pass
        for _ in range(3):
            assert ledger.heard.acquire(timeout=30)
        alive = world.ledger.get(run.run_id)
        assert alive.heartbeat_at == world.clock.now()

    worker = Worker(ledger, job, POLICY, world.clock, name="host:1", heartbeat_s=0.01)
    done = worker.work_once()
    assert done is not None
    assert done.status is RunStatus.SUCCEEDED
    beating = [it for it in threading.enumerate() if it.name == f"heartbeat {run.run_id}"]
    for thread in beating:
        thread.join(30)  # the worker waits for it no longer than one heartbeat
    assert not any(it.is_alive() for it in beating)


def test_a_ledger_that_is_away_for_a_while_costs_no_run(world: World) -> None:
    world.queue()
    ledger = Listening(MemoryBucket(world.store), world.clock)
    away = [StorageError("away")] * 3
    heartbeat = ledger.heartbeat

    def beating(run: Run) -> Run:
        if away:
            ledger.heard.release()
            raise away.pop()
        return heartbeat(run)

    ledger.heartbeat = beating  # type: ignore[method-assign]

    def job(handle: RunHandle) -> None:
        for _ in range(5):
            assert ledger.heard.acquire(timeout=30)

    done = Worker(ledger, job, POLICY, world.clock, name="host:1", heartbeat_s=0.01).work_once()
    assert done is not None
    assert done.status is RunStatus.SUCCEEDED


def test_whoever_was_frozen_hears_before_paying_that_the_run_is_not_theirs_any_more(world: World) -> None:
    run, paid = world.queue(), []

    def job(handle: RunHandle) -> None:
        handle.check()  # costs nothing: it was alive a moment ago
        world.clock.sleep(3600)
        taken = world.ledger.move(world.ledger.get(run.run_id), Trigger.PROCESS_RESTART, actor="recovery")
        world.ledger.move(taken, Trigger.RECOVERY_RESUME, actor="worker", worker="host:2")
        handle.check()
        paid.append(run.run_id)

    after = world.worker(job).work_once()
    assert after is not None
    assert (after.status, after.worker, paid) == (RunStatus.RUNNING, "host:2", [])


@pytest.mark.parametrize("trigger", [Trigger.CANCEL_COMMAND, Trigger.PROCESS_RESTART])
def test_what_comes_from_a_run_that_was_taken_away_is_noted_and_not_saved(world: World, trigger: Trigger) -> None:
    run = world.queue()

    def job(handle: RunHandle) -> Mapping[str, Any]:
        world.ledger.move(world.ledger.get(run.run_id), trigger, actor="operator")
        return {"picture": "paid for"}

    after = world.worker(job).work_once()
    assert after is not None
    assert after.status in (RunStatus.CANCELLED, RunStatus.INTERRUPTED)
    note = world.ledger.events(run.run_id)[-1]
    assert (note.kind, note.payload["trigger"]) == (LATE, "completed")
    assert note.payload["results"] == [{"picture": "paid for"}]
    assert "host:1" in note.payload["text"]


def test_a_job_that_fails_after_its_run_was_cancelled_leaves_it_cancelled(world: World) -> None:
    run = world.queue()

    def job(handle: RunHandle) -> None:
        world.ledger.move(world.ledger.get(run.run_id), Trigger.CANCEL_COMMAND, actor="operator")
        raise Refused(Code.UNAVAILABLE, "503")

    world.worker(job).work_once()
    assert world.kinds(run) == ["queued", "running", "cancelled", LATE]


def test_a_hold_knows_that_it_is_lost(world: World) -> None:
    run = world.ledger.move(world.queue(), Trigger.WORKER_CLAIM, actor="worker")
    handle = RunHandle(world.ledger, run, world.clock)
    handle.heartbeat()
    assert not handle.lost
    world.ledger.move(run, Trigger.CANCEL_COMMAND, actor="operator")
    handle.heartbeat()
    assert handle.lost
    with pytest.raises(StaleRun, match="cancelled"):
        handle.check()


def test_one_that_ended_too_many_workers_is_not_begun_again(world: World) -> None:
    """A worker was faster than the recovery that would have given it up."""
    run = world.ledger.move(world.queue(), Trigger.WORKER_CLAIM, actor="worker")
    for number in range(1 + MAX_RESUMES):
        run = world.ledger.move(run, Trigger.PROCESS_RESTART, actor="recovery")
        if number < MAX_RESUMES:
            run = world.ledger.move(run, Trigger.RECOVERY_RESUME, actor="worker", worker="w")
    begun: list[RunHandle] = []
    after = world.worker(begun.append).work_once()
    assert after is not None
    assert (after.status, begun) == (RunStatus.FAILED, [])


# --- saving -----------------------------------------------------------------------------------------------------


def document_writes(number: int, *, after: bool, times: int = 1) -> Callable[[Run], Fault]:
    return lambda run: Fault(operation="write", key=f"runs/{run.run_id}.json", number=number, after=after, times=times)


@pytest.mark.parametrize("after", [False, True])
def test_an_end_that_could_not_be_saved_at_once_is_saved_a_moment_later(world: World, after: bool) -> None:
    """This includes an end that was saved although its answer was lost."""
    run = world.queue()
    done = world.worker(nothing, POLICY, document_writes(2, after=after)(run)).work_once()
    assert done is not None
    assert done.status is RunStatus.SUCCEEDED
    assert world.kinds(run) == ["queued", "running", "succeeded"]


def test_an_end_whose_answer_was_lost_is_looked_for_until_the_ledger_is_back(world: World) -> None:
    """It was saved; the next try finds that, but the ledger is away when it looks whose move that was."""
    run = world.queue()
    lost = document_writes(2, after=True)(run)
    key = f"runs/{run.run_id}.json"
    away = Fault(operation="read", key=key, number=6, times=1)
    done = world.worker(nothing, POLICY, lost, away).work_once()
    assert done is not None
    assert done.status is RunStatus.SUCCEEDED
    assert world.kinds(run) == ["queued", "running", "succeeded"]


def test_an_end_that_cannot_be_saved_is_not_an_end(world: World) -> None:
    run = world.queue()
    fault = document_writes(2, after=False, times=100)(run)
    before = world.clock.now()
    with pytest.raises(StorageError):
        world.worker(nothing, POLICY, fault).work_once()
    assert world.ledger.get(run.run_id).status is RunStatus.RUNNING
    assert (world.clock.now() - before).total_seconds() == sum(SAVE_PAUSES_S)


# --- a day's work -----------------------------------------------------------------------------------------------


def test_it_works_until_nothing_waits(world: World) -> None:
    for number in range(5):
        world.queue(f"t{number}")
    assert world.worker(nothing).work(until_idle=True) == 5
    assert world.ledger.counts()[RunStatus.SUCCEEDED] == 5


def test_told_to_stop_it_finishes_what_it_has_in_hand(world: World) -> None:
    for number in range(3):
        world.queue(f"t{number}")
    worker = world.worker(lambda handle: worker.stop())
    assert worker.work() == 1
    counts = world.ledger.counts()
    assert (counts[RunStatus.SUCCEEDED], counts[RunStatus.QUEUED]) == (1, 2)


def test_a_job_that_is_told_to_stop_lets_go_of_its_run_at_once(world: World) -> None:
    run = world.queue()
    assert world.worker(raising(Stopped("asked to"))).work() == 1
    assert world.kinds(run) == ["queued", "running", "interrupted"]
    assert world.worker(nothing).work(until_idle=True) == 1
    assert world.ledger.get(run.run_id).status is RunStatus.SUCCEEDED


def test_it_waits_for_what_is_due_and_for_a_ledger_that_is_away(world: World) -> None:
    errors = [Refused(Code.UNAVAILABLE, "503")]

    def job(handle: RunHandle) -> None:
        if errors:
            raise errors.pop()
        worker.stop()

    run = world.queue()
    worker = world.worker(job, POLICY, Fault(operation="list", number=1, times=3))
    assert worker.work(idle_s=1.0) == 2
    changes = [event.at for event in world.ledger.events(run.run_id) if event.kind == CHANGED]
    assert [(at - changes[0]).total_seconds() for at in changes] == [0, 3, 3, 8, 8]


def test_a_ledger_that_is_away_is_not_one_in_which_nothing_waits(world: World) -> None:
    world.queue()
    before = world.clock.now()
    worker = world.worker(nothing, POLICY, Fault(operation="list", number=1, times=3))
    assert worker.work(until_idle=True) == 1
    assert (world.clock.now() - before).total_seconds() == 3
    with pytest.raises(StorageError):
        world.worker(nothing, POLICY, Fault(operation="list", number=1, times=1000)).work(until_idle=True)


def test_a_step_that_is_done_is_known_to_the_next_worker(world: World) -> None:
    run, made = world.queue(), list[str]()

    def job(handle: RunHandle) -> None:
        for step in ("sketch", "print"):
            if step not in handle.steps_done():
                made.append(step)
                if made == ["sketch", "print"]:
                    raise CodedError(Code.MEDIA, "no ink")
                handle.step_done(step, {"file": f"t.{step}"})

    world.worker(job).work_once()
    world.clock.sleep(60)
    assert world.worker(job).work(until_idle=True) == 1
    assert made == ["sketch", "print", "print"]
    handle = RunHandle(world.ledger, run, world.clock)
    assert handle.steps_done() == {"sketch": {"file": "t.sketch"}, "print": {"file": "t.print"}}
    with pytest.raises(InvalidField):
        handle.step_done("print", {"file": object()})
