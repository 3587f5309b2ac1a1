"""Work that a robot defers is kept, and done once it is due by one of several processes."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from protocol_robots import POLICIES, Workshop

from retake.bucket.directory import DirectoryBucket
from retake.clock import FakeClock
from retake.errors import RetakeError, RobotError, Stopped, StorageError
from retake.retrying.backoff import Fixed
from retake.retrying.guard import Call
from retake.retrying.state_store import BucketStateStore, MemoryStateStore, StateStore
from retake.robots.deferred import LEASE_S, Deferred
from retake.robots.execution import Ports
from retake.robots.follow_ups import Do
from retake.robots.robot import Result, Robot

SLOW = "ERR_TEMPORARY_API_TIMEOUT"
HALF_AN_HOUR = 1800


@pytest.fixture
def fetcher(tmp_path: Path, clock: FakeClock) -> Callable[[], Workshop]:
    """Return robot 2 as each new process has it: what it keeps is in a bucket."""

    def fetcher() -> Workshop:
        states = BucketStateStore(DirectoryBucket(str(tmp_path)), "robots/", clock)
        policy = POLICIES["NR.NSI.2"]._replace(breaker=None)  # tested elsewhere
        return Workshop(policy, states=states, clock=clock)

    return fetcher


def fail(shop: Workshop, name: str = "doc-7") -> None:
    result = shop.robot.run(shop.failing(SLOW), correlation_id=name, input_data={"document": name})
    assert not result.done


def nothing_due(it: Deferred, call: Call) -> None:
    pytest.fail(f"{it} is not due")


def test_what_robot_2_could_not_fetch_is_fetched_half_an_hour_later_by_another_process(
    fetcher: Callable[[], Workshop], clock: FakeClock
) -> None:
    """The work is deferred and done again after 30 minutes."""
    shop = fetcher()
    fail(shop)
    assert shop.sink.done == [Do.DEFERRED_RETRY, Do.JOURNAL, Do.INCIDENT]  # all of it, in the file's order
    failed_at = clock.now()
    clock.sleep(HALF_AN_HOUR - 0.001)
    assert (fetcher().robot.due(), fetcher().robot.run_due(nothing_due)) == ([], [])
    clock.sleep(0.001)
    robot = fetcher().robot
    (due,) = robot.due()
    assert (due.correlation_id, due.input_data, due.code) == ("doc-7", {"document": "doc-7"}, SLOW)
    assert (due.since, due.times) == (failed_at, 1)
    assert robot.due(failed_at) == []
    ((it, result),) = robot.run_due(lambda it, call: f"{it.input_data['document']} at {call.attempt}")
    assert (it.key, result) == (due.key, Result("doc-7 at 1", (), 1))
    assert robot.run_due(nothing_due) == []
    assert fetcher().robot.deferrals.all() == []


def test_what_fails_again_is_deferred_again_and_the_sink_is_told_again(
    fetcher: Callable[[], Workshop], clock: FakeClock
) -> None:
    shop = fetcher()
    fail(shop)
    for times in (2, 3):
        clock.sleep(HALF_AN_HOUR)
        told = len(shop.sink.recorded)
        calls = len(shop.calls)
        ((_, result),) = shop.robot.run_due(lambda it, call: shop.failing(SLOW)(call))
        assert len(shop.calls) == calls + 6  # all of the robot's own repeats
        assert [it.action.do for it in shop.sink.recorded[told:]] == [Do.DEFERRED_RETRY, Do.JOURNAL, Do.INCIDENT]
        (waiting,) = shop.robot.deferrals.all()
        assert (waiting.times, waiting.taken_until, result.done) == (times, None, False)
        assert (waiting.due_at - clock.now()).total_seconds() == HALF_AN_HOUR
        assert shop.robot.due() == []


def test_each_piece_of_work_is_kept_by_itself_and_what_was_due_first_comes_first(
    fetcher: Callable[[], Workshop], clock: FakeClock
) -> None:
    for name in ("a", "b", "c", "a"):
        fail(fetcher(), name)
    clock.sleep(HALF_AN_HOUR)
    done = fetcher().robot.run_due(lambda it, call: it.correlation_id)
    assert [(result.value, it.times) for it, result in done] == [("b", 1), ("c", 1), ("a", 2)]


def test_one_of_two_processes_takes_it_up(fetcher: Callable[[], Workshop], clock: FakeClock) -> None:
    fail(fetcher())
    clock.sleep(HALF_AN_HOUR)
    others: list[Any] = []

    def work(it: Deferred, call: Call) -> str:
        others.extend(fetcher().robot.run_due(nothing_due))
        assert fetcher().robot.deferrals.take(it.key) is None
        return "done"

    assert len(fetcher().robot.run_due(work)) == 1
    assert others == []


def test_work_whose_cause_a_script_has_fixed_is_due_after_a_minute_not_half_an_hour(clock: FakeClock) -> None:
    code = "ERR_BUSINESS_TECH_DOC_NOT_FOUND"
    shop = Workshop("NR.NSI.2", clock=clock)
    robot = Robot(shop.robot.policy, Ports(clock, lambda: 0.5, shop.sink, corrections={code: lambda data: None}))
    robot.run(shop.failing(code), correlation_id="doc-7")
    assert [(it.due_at - clock.now()).total_seconds() for it in robot.deferrals.all()] == [60]


def test_what_a_process_died_at_is_due_again_an_hour_later(fetcher: Callable[[], Workshop], clock: FakeClock) -> None:
    fail(fetcher())
    clock.sleep(HALF_AN_HOUR)
    robot = fetcher().robot
    assert robot.deferrals.take(robot.due()[0].key)
    clock.sleep(LEASE_S - 1)
    assert fetcher().robot.due() == []
    clock.sleep(1)
    assert len(fetcher().robot.run_due(lambda it, call: "done")) == 1


def test_work_that_takes_longer_than_an_hour_is_taken_by_no_other_process(
    fetcher: Callable[[], Workshop], clock: FakeClock
) -> None:
    fail(fetcher())
    clock.sleep(HALF_AN_HOUR)

    def work(it: Deferred, call: Call) -> str:
        clock.sleep(LEASE_S / 2)
        assert fetcher().robot.run_due(nothing_due) == []
        if call.attempt <= 5:
            raise RobotError(SLOW, "half an hour is over")
        return "done"

    ((_, result),) = fetcher().robot.run_due(work)
    assert (result.value, fetcher().robot.deferrals.all()) == ("done", [])


def test_no_other_process_takes_work_that_waits_for_hours_before_a_repeat(clock: FakeClock) -> None:
    policy = POLICIES["NR.NSI.2"]
    policy = policy._replace(breaker=None, retry=policy.retry._replace(backoff=Fixed(3 * LEASE_S)))
    states = MemoryStateStore()
    shop = Workshop(policy, states=states, clock=clock)
    fail(shop)
    clock.sleep(HALF_AN_HOUR)
    (due,) = shop.robot.due()
    assert shop.robot.deferrals.take(due.key)
    clock.sleep(3 * LEASE_S)
    assert Workshop(policy, states=states, clock=clock).robot.due() == []


def test_work_that_another_process_has_taken_over_is_not_repeated(
    fetcher: Callable[[], Workshop], clock: FakeClock
) -> None:
    """The call, or a wait for a breaker, may have taken longer than the hour. The next piece of work is done."""
    fail(fetcher(), "a")
    fail(fetcher(), "b")
    clock.sleep(HALF_AN_HOUR)
    calls: list[str] = []

    def work(it: Deferred, call: Call) -> str:
        calls.append(f"{it.correlation_id} {call.attempt}")
        if it.correlation_id == "a":
            clock.sleep(LEASE_S)
            assert fetcher().robot.deferrals.take(it.key)
            raise RobotError(SLOW, "an hour is over")
        return "done"

    assert [it.correlation_id for it, _ in fetcher().robot.run_due(work)] == ["b"]
    assert calls == ["a 1", "b 1"]
    assert [it.correlation_id for it in fetcher().robot.deferrals.all()] == ["a"]


def test_what_a_process_died_at_whose_clock_was_ahead_is_due_too(
    fetcher: Callable[[], Workshop], clock: FakeClock
) -> None:
    fail(fetcher())
    clock.sleep(365 * 24 * 3600)
    robot = fetcher().robot
    assert robot.deferrals.take(robot.due()[0].key)
    clock.moment -= timedelta(days=364)
    assert len(fetcher().robot.run_due(lambda it, call: "done")) == 1


def test_work_deferred_by_a_clock_that_was_ahead_is_due(fetcher: Callable[[], Workshop], clock: FakeClock) -> None:
    clock.sleep(30 * 24 * 3600)
    fail(fetcher())
    clock.moment -= timedelta(days=30)
    assert len(fetcher().robot.run_due(lambda it, call: "done")) == 1


@pytest.mark.parametrize("error", [Stopped("asked to"), ZeroDivisionError("a bug")])
def test_what_was_not_done_stays_due(fetcher: Callable[[], Workshop], clock: FakeClock, error: Exception) -> None:
    fail(fetcher())
    clock.sleep(HALF_AN_HOUR)

    def work(it: Deferred, call: Call) -> None:
        raise error

    with pytest.raises(type(error)):
        fetcher().robot.run_due(work)
    assert len(fetcher().robot.due()) == 1


def test_what_was_not_done_and_another_process_has_done_meanwhile_is_not_due_again(
    fetcher: Callable[[], Workshop], clock: FakeClock
) -> None:
    fail(fetcher())
    clock.sleep(HALF_AN_HOUR)

    def work(it: Deferred, call: Call) -> None:
        clock.sleep(LEASE_S)
        assert len(fetcher().robot.run_due(lambda it, call: "done")) == 1
        raise Stopped("asked to")

    with pytest.raises(Stopped):
        fetcher().robot.run_due(work)
    assert fetcher().robot.deferrals.all() == []


class FullStateStore(MemoryStateStore):
    def change(self, name: str, change: Any) -> Any:
        raise StorageError("the bucket is full")


@pytest.mark.parametrize(("states", "data"), [(FullStateStore(), {}), (MemoryStateStore(), {"event": object()})])
def test_what_cannot_be_kept_is_handed_in_anyway(states: StateStore, data: Mapping[str, Any]) -> None:
    shop = Workshop(POLICIES["NR.NSI.2"]._replace(breaker=None), states=states)
    shop.robot.run(shop.failing(SLOW), correlation_id="doc-7", input_data=data)
    assert shop.sink.done == [Do.DEFERRED_RETRY, Do.JOURNAL, Do.INCIDENT]


def test_an_id_that_is_not_text_is_refused_before_any_call(fetcher: Callable[[], Workshop]) -> None:
    """Deferring work under such an id would make all deferred work of the robot unreadable."""
    fail(fetcher())
    shop = fetcher()
    number: Any = 17
    with pytest.raises(ValueError, match="correlation_id: 17 is not text"):
        shop.robot.run(shop.failing(SLOW), correlation_id=number)
    assert (shop.calls, [it.correlation_id for it in shop.robot.deferrals.all()]) == ([], ["doc-7"])


def test_a_list_of_deferred_work_without_sense_is_named_and_left_as_it_is(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "robots").mkdir()
    path = tmp_path / "robots" / "NR.NSI.2.deferred.json"
    for text in ('{"a": 3}', '{"a": {"due_at": null}}', "[]"):
        path.write_text(text)
        states = BucketStateStore(DirectoryBucket(str(tmp_path)), "robots/", clock)
        with pytest.raises(RetakeError, match=r"robots/NR\.NSI\.2\.deferred\.json"):
            Workshop("NR.NSI.2", states=states, clock=clock).robot.due()
        assert path.read_text() == text
