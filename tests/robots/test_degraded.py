"""Degraded modes: which robot runs in which one, and that the others make no call."""

from collections.abc import Callable
from typing import Any

import pytest
from protocol_robots import POLICIES, Workshop

from retake.clock import FakeClock
from retake.errors import ErrorClass, RobotError
from retake.retrying.state_store import MemoryStateStore
from retake.robots import batch, creation
from retake.robots.action_sink import RecordingSink
from retake.robots.chain import Link, run_chain
from retake.robots.degraded import RobotDegraded, may_run
from retake.robots.execution import Ports
from retake.robots.robot import Robot
from retake.robots.step_validation import grid

RUNNING = {0: {1, 2, 3, 4, 5, 6, 7, 8, 9}, 1: {1, 2, 3, 9}, 2: {1, 9}, 3: set[int]()}


def no_call(*given: object) -> Any:
    pytest.fail(f"called with {given}")


def robot_in(mode: int, robot: str = "NR.NSI.4", **ports: Any) -> Robot:
    return Robot(POLICIES[robot], Ports(FakeClock(), lambda: 0.5, RecordingSink(), mode=lambda: mode, **ports))


@pytest.mark.parametrize("robot", POLICIES)
@pytest.mark.parametrize("mode", RUNNING)
def test_each_robot_runs_in_the_modes_of_the_protocol(robot: str, mode: int) -> None:
    runs = int(robot.rpartition(".")[2]) in RUNNING[mode]
    assert may_run(robot, mode) is runs
    validate = (lambda: None) if POLICIES[robot].validate_before_repeat else None
    if runs:
        result = robot_in(mode, robot).run(lambda call: "done", correlation_id="one", validate=validate)
        assert (result.value, result.done) == ("done", True)
        return
    with pytest.raises(RobotDegraded, match=rf"^{robot} does not run in mode {mode}; it made no call\. Have it") as it:
        robot_in(mode, robot).run(no_call, correlation_id="one", validate=validate)
    assert isinstance(it.value, RobotError)
    assert (it.value.code, it.value.error_class) == ("ERR_TEMPORARY_DEGRADED", ErrorClass.TEMPORARY)


@pytest.mark.parametrize("mode", RUNNING)
def test_a_robot_that_the_protocol_does_not_know_runs_in_full_mode_only(mode: int) -> None:
    assert may_run("NR.NSI.10", mode) is (mode == 0)


@pytest.mark.parametrize("mode", [-1, 4, 1.5])
def test_another_mode_is_refused(mode: Any) -> None:
    with pytest.raises(ValueError, match="is not a mode: allowed are 0 to 3"):
        may_run("NR.NSI.1", mode)


ITEMS = [batch.Item("a", {})]


@pytest.mark.parametrize(
    ("robot", "work"),
    [
        ("NR.NSI.7", lambda robot: robot.validate(no_call, grid(0, 1, 1), correlation_id="one")),
        ("NR.NSI.4", lambda robot: robot.create(creation.Parts(no_call, no_call), {}, correlation_id="one")),
        ("NR.NSI.5", lambda robot: robot.create_all(batch.Parts(no_call, no_call, no_call), ITEMS, correlation_id="1")),
        ("NR.NSI.2", lambda robot: robot.run_due(no_call)),
    ],
)
def test_whatever_it_is_asked_to_do_it_makes_no_call(robot: str, work: Callable[[Robot], object]) -> None:
    refused = robot_in(3, robot)
    with pytest.raises(RobotDegraded):
        work(refused)


def test_it_is_asked_again_for_each_piece_of_work_and_no_work_is_lost() -> None:
    states, clock, mode = MemoryStateStore(), FakeClock(), [0]
    shop = Workshop(POLICIES["NR.NSI.2"]._replace(breaker=None), states=states, clock=clock)
    shop.robot.run(shop.failing("ERR_TEMPORARY_API_TIMEOUT"), correlation_id="document-7")
    clock.sleep(1800)
    ports = Ports(clock, lambda: 0.5, RecordingSink(), states, mode=lambda: mode[0])
    robot = Robot(POLICIES["NR.NSI.2"]._replace(breaker=None), ports)
    mode[0] = 2
    with pytest.raises(RobotDegraded):
        robot.run_due(no_call)
    mode[0] = 1
    assert [result.value for _, result in robot.run_due(lambda it, call: "done")] == ["done"]


def test_a_chain_ends_at_a_robot_that_may_not_run() -> None:
    ran: list[str] = []

    def link(robot: Robot) -> Link:
        return Link(
            robot, lambda it, before: it.run(lambda call: ran.append(it.policy.id), correlation_id="a", validate=int)
        )

    with pytest.raises(RobotDegraded, match=r"NR\.NSI\.4 does not run in mode 1"):
        run_chain([link(robot_in(1, f"NR.NSI.{number}")) for number in (1, 2, 3, 4, 9)])
    assert ran == ["NR.NSI.1", "NR.NSI.2", "NR.NSI.3"]


def test_without_a_mode_every_robot_runs() -> None:
    assert Ports(FakeClock(), lambda: 0.5, RecordingSink()).mode() == 0
