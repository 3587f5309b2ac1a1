"""The work of robots on the ledger: pipeline "robot/ID", a run for each piece of work."""

from collections.abc import Callable
from typing import Any

import pytest
from protocol_robots import POLICIES, RecordingSink

from retake.bucket.memory import MemoryBucket
from retake.bucket.wrappers import Wrapper
from retake.clock import FakeClock
from retake.errors import RobotError, Stopped, StorageError
from retake.robots.batch import BatchItem, BatchParts
from retake.robots.batch_plan import Made
from retake.robots.creation import CreationParts
from retake.robots.execution import Ports
from retake.robots.robot import Robot
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run import CHANGED
from retake.runs.states import RunStatus

AWAY = "ERR_TEMPORARY_APPIUS_UNAVAILABLE"


class Shop:
    def __init__(self, robot: str = "NR.NSI.1", stop: Callable[[], bool] | None = None) -> None:
        self.clock = FakeClock()
        self.ledger = BucketLedger(MemoryBucket(), self.clock)
        ports = Ports(self.clock, lambda: 0.5, RecordingSink(), owner="host:1", stop=stop, ledger=self.ledger)
        self.robot = Robot(POLICIES[robot], ports)

    def told(self) -> list[tuple[str, RunStatus, list[str]]]:
        """Return for each run: task, state, and what is recorded of it, error codes and finished steps."""
        return [
            (
                run.task_id,
                run.status,
                [
                    str(it.payload.get("error_code") or f"done: {it.payload.get('step')}")
                    for it in self.ledger.events(run.run_id)
                    if it.kind != CHANGED
                ],
            )
            for run in self.ledger.runs(pipeline=f"robot/{self.robot.policy.id}")
        ]


def failing(code: str, times: int) -> Callable[[Any], str]:
    def work(call: Any) -> str:
        if call.attempt <= times:
            raise RobotError(code, "it failed")
        return "result"

    return work


def test_failed_tries_and_a_result() -> None:
    shop = Shop()
    shop.robot.run(failing(AWAY, 2), correlation_id="event-1")
    assert shop.told() == [("NR.NSI.1/event-1", RunStatus.SUCCEEDED, [AWAY, AWAY, "done: NR.NSI.1"])]
    [run] = shop.ledger.runs()
    assert (run.updated_at - run.created_at).total_seconds() == 2 + 8


def test_a_last_failure_ends_the_run_with_its_record() -> None:
    shop = Shop()
    result = shop.robot.run(failing(AWAY, 9), correlation_id="event-1")
    assert shop.told() == [("NR.NSI.1/event-1", RunStatus.FAILED, [AWAY] * 4)]
    [run] = shop.ledger.runs()
    assert shop.ledger.events(run.run_id)[-1].payload["error_id"] == result.failures[0].record["error_id"]


def test_the_same_work_again_is_a_run_of_its_own() -> None:
    shop = Shop()
    for _ in range(2):
        shop.robot.run(failing(AWAY, 0), correlation_id="event-1")
        shop.clock.sleep(1)
    assert [run.attempt for run in shop.ledger.runs()] == [2, 1]


def test_work_that_is_stopped_is_cancelled_and_a_bug_is_a_failure() -> None:
    stopped, broken = Shop(stop=lambda: True), Shop()
    with pytest.raises(Stopped):
        stopped.robot.run(failing(AWAY, 9), correlation_id="e")
    with pytest.raises(ZeroDivisionError):
        broken.robot.run(lambda call: 1 // 0, correlation_id="e")
    assert [status for _, status, _ in stopped.told()] == [RunStatus.CANCELLED]
    assert [status for _, status, _ in broken.told()] == [RunStatus.FAILED]


def test_a_creation_is_a_run() -> None:
    shop, items = Shop("NR.NSI.4"), dict[str, str]()
    conflict = "ERR_TEMPORARY_DB_CONFLICT"

    def make(key: str, data: Any, call: Any) -> str:
        return items.setdefault(key, failing(conflict, 1)(call))

    parts = CreationParts(find=lambda key, data: items.get(key), make=make)
    shop.robot.create(parts, {"name": "plate"}, correlation_id="c")
    assert shop.told() == [("NR.NSI.4/c", RunStatus.SUCCEEDED, [conflict, "done: NR.NSI.4"])]


def test_batches_are_one_run_that_fails_where_any_item_failed() -> None:
    for bad, status in ((set[str](), RunStatus.SUCCEEDED), ({"b"}, RunStatus.FAILED)):
        shop = Shop("NR.NSI.5")

        def send(sending: Any, bad: set[str] = bad) -> dict[str, Any]:
            refused = RobotError("ERR_BUSINESS_INVALID_SCRAP_TYPE", "it is refused")
            return {it.key: refused if it.key in bad else Made(it.key) for it in sending.items}

        parts = BatchParts(find=lambda item: None, send=send, undo=lambda item, made: None)
        shop.robot.create_all(parts, [BatchItem(key, {"n": key}) for key in "abc"], correlation_id="c")
        assert [it[1] for it in shop.told()] == [status]


def test_a_batch_that_failed_in_several_ways_ends_with_a_critical_error() -> None:
    shop = Shop("NR.NSI.5")
    codes = {"a": "ERR_BUSINESS_INVALID_SCRAP_TYPE", "b": "ERR_CRITICAL_DISK_FULL"}

    def send(sending: Any) -> dict[str, Any]:
        return {it.key: RobotError(codes[it.key], "it is refused") for it in sending.items}

    parts = BatchParts(find=lambda item: None, send=send, undo=lambda item, made: None)
    result = shop.robot.create_all(parts, [BatchItem(key, {"n": key}) for key in "ab"], correlation_id="c")
    assert shop.told() == [("NR.NSI.5/c", RunStatus.FAILED, ["ERR_CRITICAL_DISK_FULL"])]
    assert [str(it.error.code) for it in result.failures] == [codes["b"], codes["a"]]


def test_the_record_of_a_batch_tells_how_often_its_items_were_tried_again() -> None:
    """The console shows the attempt of a failure by it: `show RUN`."""
    lost, too_large = "ERR_TEMPORARY_BATCH_FAILURE", "ERR_CRITICAL_MEMORY_OVERFLOW"
    shop, calls = Shop("NR.NSI.5"), 0

    def send(sending: Any) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if calls <= 2:  # of all items, and of both halves
            raise RobotError(lost if calls == 1 else too_large, "it failed")
        refused = RobotError("ERR_BUSINESS_INVALID_SCRAP_TYPE", "it is refused")
        answers = {"a": refused, "b": RobotError(lost, "it failed")}
        return {it.key: answers.get(it.key, Made(it.key)) for it in sending.items}

    parts = BatchParts(find=lambda item: None, send=send, undo=lambda item, made: None)
    result = shop.robot.create_all(parts, [BatchItem(key, {"n": key}) for key in "abcdef"], correlation_id="c")
    retries = {str(it.error.code): it.record["details"]["retry_count"] for it in result.failures}
    assert retries == {"ERR_BUSINESS_INVALID_SCRAP_TYPE": 2, lost: 2 + 5}


def test_an_item_that_cannot_be_rolled_back_tells_how_often_that_was_tried_again() -> None:
    shop = Shop("NR.NSI.5")

    def send(sending: Any) -> dict[str, Any]:
        refused = RobotError("ERR_BUSINESS_INVALID_SCRAP_TYPE", "it is refused")
        return {it.key: Made(it.key) if it.key == "a" else refused for it in sending.items}

    def undo(item: BatchItem, made: object) -> None:
        raise RobotError("ERR_TEMPORARY_BATCH_FAILURE", "it cannot be rolled back")

    parts = BatchParts(find=lambda item: None, send=send, undo=undo)
    result = shop.robot.create_all(parts, [BatchItem(key, {"n": key}) for key in "abc"], correlation_id="c")
    retries = {
        tuple(it.record["details"]["input_data"]["items"]): it.record["details"]["retry_count"]
        for it in result.failures
    }
    assert retries == {("a",): 5, ("b", "c"): 0}


def test_a_ledger_that_is_away_stops_no_robot() -> None:
    class Away(Wrapper):
        def write(self, key, data, expect):  # type: ignore[no-untyped-def]
            raise StorageError("away")

    clock = FakeClock()
    ledger = BucketLedger(Away(MemoryBucket()), clock)
    robot = Robot(POLICIES["NR.NSI.1"], Ports(clock, lambda: 0.5, RecordingSink(), ledger=ledger))
    assert robot.run(failing(AWAY, 1), correlation_id="e").value == "result"
