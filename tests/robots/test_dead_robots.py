"""What a robot's process leaves on the ledger when it dies, and what becomes of it."""

import threading
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
from dying_robot import ROBOT, killed_in, robot_of
from waiting import eventually

from retake.bucket import Bucket
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock, SystemClock
from retake.errors import Code, RobotError, StorageError
from retake.retrying.guard import Call
from retake.robots import run_record
from retake.robots.action_sink import RecordingSink
from retake.robots.creation import CreationParts
from retake.robots.execution import Ports
from retake.robots.policies import load_policies
from retake.robots.protocol import longest_lease_s
from retake.robots.robot import Robot
from retake.runs import Ledger
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.recovery import MAX_RESUMES, PATIENCE_S, Recovery
from retake.runs.run import CHANGED, ERROR, Run
from retake.runs.states import RunStatus, Trigger
from retake.testing import CapturedLogs

POLICIES = load_policies()
LEASE_S = longest_lease_s(POLICIES[ROBOT])


@pytest.fixture(params=["bucket", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "" if request.param == "bucket" else f"sqlite:{tmp_path}/runs.db"


def later(seconds: float = PATIENCE_S + 5) -> FakeClock:
    return FakeClock(SystemClock().now() + timedelta(seconds=seconds))


def by_task(ledger: Ledger) -> dict[str, list[tuple[int, RunStatus, int]]]:
    """Attempt, state and resumes of the runs of each task."""
    found = dict[str, list[tuple[int, RunStatus, int]]]()
    for run in sorted(ledger.runs(), key=lambda it: it.attempt):
        found.setdefault(run.task_id, []).append((run.attempt, run.status, run.resumes))
    return found


def test_the_same_work_resumes_the_run_of_a_killed_process(url: str, tmp_path: Path) -> None:
    killed_in(url, tmp_path, "event-1")
    robot, ledger = robot_of(url, tmp_path, later())
    [left] = ledger.runs()
    assert left.status is RunStatus.RUNNING
    assert robot.run(lambda call: "result", correlation_id="event-1").value == "result"
    assert by_task(ledger) == {f"{ROBOT}/event-1": [(1, RunStatus.SUCCEEDED, 1)]}
    events = ledger.events(left.run_id)
    changes = [(it.payload["status"], it.payload["actor"]) for it in events if it.kind == CHANGED]
    assert changes == [
        ("queued", "robot"),
        ("running", "robot"),
        ("interrupted", "recovery"),
        ("running", "robot"),
        ("succeeded", "robot"),
    ]


def test_other_work_leaves_it_interrupted_and_at_last_gives_it_up(url: str, tmp_path: Path) -> None:
    killed_in(url, tmp_path, "event-1")
    robot, ledger = robot_of(url, tmp_path, clock := later())
    robot.run(lambda call: "result", correlation_id="event-2")
    other = [(1, RunStatus.SUCCEEDED, 0)]
    lost = f"{ROBOT}/event-1"
    assert by_task(ledger) == {lost: [(1, RunStatus.INTERRUPTED, 0)], f"{ROBOT}/event-2": other}
    clock.sleep(2 * LEASE_S)
    robot.run(lambda call: "result", correlation_id="event-3")
    assert by_task(ledger)[lost] == [(1, RunStatus.FAILED, 0)]
    [left] = ledger.of_task(lost)
    error = [it for it in ledger.events(left.run_id) if it.kind == ERROR][-1]
    assert error.payload["error_code"] == Code.SCRIPT_DIED
    assert "nobody resumed it" in error.payload["message"]
    robot.run(lambda call: "result", correlation_id="event-1")
    assert by_task(ledger)[lost] == [(1, RunStatus.FAILED, 0), (2, RunStatus.SUCCEEDED, 0)]


def test_deferred_work_whose_process_was_killed_is_done_once_more_and_resumes_its_run(url: str, tmp_path: Path) -> None:
    killed_in(url, tmp_path, "event-1", deferred=True)
    robot, ledger = robot_of(url, tmp_path, clock := later())
    robot.run(lambda call: "result", correlation_id="event-2")
    assert robot.run_due(lambda deferred, call: "result") == [], "it is left to the process that took it"
    clock.sleep(LEASE_S)
    assert [result.value for _, result in robot.run_due(lambda deferred, call: "result")] == ["result"]
    assert robot.deferrals.all() == []
    assert by_task(ledger)[f"{ROBOT}/event-1"] == [(1, RunStatus.SUCCEEDED, 1)]


class Fleet:
    """Robots of one id in several processes, on a clock that stands still."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.ledger = BucketLedger(MemoryBucket(self.store), self.clock)

    def robot(self, robot_id: str = ROBOT) -> Robot:
        ledger = BucketLedger(MemoryBucket(self.store), self.clock)
        return Robot(POLICIES[robot_id], Ports(self.clock, lambda: 0.5, RecordingSink(), ledger=ledger))

    def run(self, correlation_id: str = "event-1") -> Run:
        [run] = self.ledger.of_task(f"{ROBOT}/{correlation_id}")
        return run


def dies(call: Call) -> None:
    """Killed: nothing is recorded from here on."""
    raise _Killed


class _Killed(BaseException):
    pass


def killed(robot: Robot, monkeypatch: pytest.MonkeyPatch, correlation_id: str = "event-1") -> None:
    with monkeypatch.context() as patch:
        patch.setattr(run_record.RobotRun, "_end", lambda self, trigger, **more: None)
        with pytest.raises(_Killed):
            robot.run(dies, correlation_id=correlation_id)


def test_work_that_lasts_keeps_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_record, "HEARTBEAT_S", 0.01)
    fleet = Fleet()

    def lasting(call: Call) -> str:
        for _ in range(3):
            fleet.clock.sleep(PATIENCE_S + 1)
            eventually(lambda: fleet.run().heartbeat_at == fleet.clock.now())
            fleet.robot().run(lambda call: "result", correlation_id=f"other-{fleet.clock.now()}")
            assert fleet.run().status is RunStatus.RUNNING
        return "result"

    fleet.robot().run(lasting, correlation_id="event-1")
    assert (fleet.run().status, fleet.run().crashes) == (RunStatus.SUCCEEDED, 0)
    assert [it.name for it in threading.enumerate() if it.name.startswith("heartbeat")] == []


def test_work_whose_process_was_only_slow_ends_its_run_all_the_same() -> None:
    fleet = Fleet()

    def frozen(call: Call) -> str:
        fleet.clock.sleep(PATIENCE_S + 1)
        fleet.robot().run(lambda call: "result", correlation_id="event-2")
        assert fleet.run().status is RunStatus.INTERRUPTED
        return "result"

    assert fleet.robot().run(frozen, correlation_id="event-1").value == "result"
    assert (fleet.run().status, fleet.run().resumes) == (RunStatus.SUCCEEDED, 1)


def test_work_that_was_taken_over_while_its_process_was_frozen_changes_nothing() -> None:
    fleet = Fleet()

    def frozen(call: Call) -> str:
        fleet.clock.sleep(PATIENCE_S + 1)
        fleet.robot().run(lambda call: "result", correlation_id="event-1")
        raise RobotError("ERR_BUSINESS_TECH_DOC_NOT_FOUND", "it is gone")

    assert not fleet.robot().run(frozen, correlation_id="event-1").done
    assert (fleet.run().status, fleet.run().resumes) == (RunStatus.SUCCEEDED, 1)


def test_work_that_is_done_again_at_once_is_a_run_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one may still be alive."""
    fleet = Fleet()
    killed(fleet.robot(), monkeypatch)
    fleet.robot().run(lambda call: "result", correlation_id="event-1")
    found = [(run.attempt, run.status) for run in fleet.ledger.of_task(f"{ROBOT}/event-1")]
    assert found == [(1, RunStatus.RUNNING), (2, RunStatus.SUCCEEDED)]


def test_work_that_kills_every_process_is_given_up_and_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet()
    for _ in range(MAX_RESUMES + 1):
        killed(fleet.robot(), monkeypatch)
        fleet.clock.sleep(PATIENCE_S + 1)
    assert fleet.run().crashes == MAX_RESUMES
    fleet.robot().run(lambda call: "result", correlation_id="event-1")
    found = [(run.attempt, run.status) for run in fleet.ledger.of_task(f"{ROBOT}/event-1")]
    assert found == [(1, RunStatus.FAILED), (2, RunStatus.SUCCEEDED)]


def test_a_left_run_that_was_cancelled_meanwhile_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet()
    killed(fleet.robot(), monkeypatch)
    fleet.clock.sleep(PATIENCE_S + 1)
    robot = fleet.robot()
    robot.run(lambda call: "result", correlation_id="event-2")
    fleet.ledger.move(fleet.run(), Trigger.CANCEL_COMMAND, actor="operator")
    robot.run(lambda call: "result", correlation_id="event-1")
    found = [(run.attempt, run.status) for run in fleet.ledger.of_task(f"{ROBOT}/event-1")]
    assert found == [(1, RunStatus.CANCELLED), (2, RunStatus.SUCCEEDED)]


def test_a_process_looks_for_left_runs_once_a_minute_however_many_robots_it_makes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def looks(correlation_id: str) -> int:
        ports = Ports(fleet.clock, lambda: 0.5, RecordingSink(), ledger=fleet.ledger)
        before = len(sweeps)
        Robot(POLICIES[ROBOT], ports).run(lambda call: "result", correlation_id=correlation_id)
        return len(sweeps) - before

    fleet, sweeps, sweep = Fleet(), list[Recovery](), Recovery.sweep
    monkeypatch.setattr(Recovery, "sweep", lambda self: (sweeps.append(self), sweep(self))[1])
    assert [looks("event-2"), looks("event-3")] == [1, 0]
    killed(fleet.robot(), monkeypatch)
    fleet.clock.sleep(PATIENCE_S + 1)
    assert [looks("event-2"), looks("event-1")] == [1, 0]
    assert (fleet.run().status, fleet.run().resumes) == (RunStatus.SUCCEEDED, 1)


def test_other_work_whose_long_id_begins_alike_does_not_resume_a_left_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, alike = Fleet(), "https://files.example.org/" + "a" * 200
    killed(fleet.robot(), monkeypatch, f"{alike}/1")
    fleet.clock.sleep(PATIENCE_S + 1)
    fleet.robot().run(lambda call: "result", correlation_id=f"{alike}/2")
    found = {(run.status, run.resumes) for run in fleet.ledger.runs()}
    assert found == {(RunStatus.INTERRUPTED, 0), (RunStatus.SUCCEEDED, 0)}


def test_a_robot_leaves_the_runs_of_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet()
    killed(fleet.robot(), monkeypatch)
    story = fleet.ledger.create_for_task("a", "a#1", actor="cron", pipeline="story", worker="a tick")
    fleet.clock.sleep(PATIENCE_S + 1)
    fleet.robot("NR.NSI.1").run(lambda call: "result", correlation_id="event-1")
    assert fleet.run().status is fleet.ledger.get(story.run_id).status is RunStatus.RUNNING


def test_a_creation_that_is_no_creation_leaves_no_run_under_way() -> None:
    fleet = Fleet()
    parts = CreationParts[str](find=lambda key, data: None, make=lambda key, data, call: "item")
    with pytest.raises(ValueError, match="does not look before it creates"):
        fleet.robot().create(parts, {"name": "plate"}, correlation_id="event-1")
    assert fleet.run().status is RunStatus.FAILED


def test_a_ledger_that_cannot_say_what_was_left_still_records_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> list[Run]:
        raise StorageError("away")

    fleet = Fleet()
    robot = fleet.robot()
    with monkeypatch.context() as patch, CapturedLogs() as logs:
        patch.setattr(BucketLedger, "_silent", away)
        robot.run(lambda call: "result", correlation_id="event-1")
    assert fleet.run().status is RunStatus.SUCCEEDED
    assert logs.warnings == [f"{ROBOT}: the runs that dead processes have left are not recovered: away"]


def test_a_machine_that_starts_no_further_thread_still_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    fleet = Fleet()
    with CapturedLogs() as logs:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert fleet.robot().run(lambda call: "result", correlation_id="event-1").value == "result"
    assert fleet.run().status is RunStatus.SUCCEEDED
    [warning] = logs.warnings
    assert "has no heartbeats" in warning


def test_a_death_at_any_operation_leaves_no_run_that_does_not_end() -> None:
    def work(fleet: Fleet, bucket: Bucket, correlation_id: str = "event-1") -> None:
        ports = Ports(fleet.clock, lambda: 0.5, RecordingSink(), ledger=BucketLedger(bucket, fleet.clock))
        Robot(POLICIES[ROBOT], ports).run(lambda call: "result", correlation_id=correlation_id)

    fleet = Fleet()
    counted = FailingBucket(MemoryBucket(fleet.store))
    work(fleet, counted)
    for number, after in product(range(1, len(counted.operations) + 1), (False, True)):
        fleet = Fleet()
        dying = FailingBucket(MemoryBucket(fleet.store), Fault(Crash, number=number, after=after))
        with pytest.raises(Crash):
            work(fleet, dying)
        fleet.store.end_leases()
        fleet.clock.sleep(3600)
        work(fleet, MemoryBucket(fleet.store), "event-2")
        for _ in range(2):
            assert all(run.status is not RunStatus.QUEUED for run in fleet.ledger.runs())
            fleet.clock.sleep(2 * LEASE_S)
            work(fleet, MemoryBucket(fleet.store), "event-2")
        assert all(run.ended for run in fleet.ledger.runs()), (number, after)
