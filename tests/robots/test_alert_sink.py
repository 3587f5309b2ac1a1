"""Actions in the policies of robots become alerts, which close when the robot works again."""

import threading
from collections.abc import Mapping

import pytest

from retake.alerts.message import Ending, Message, Sent
from retake.alerts.settings import ALERTS, AlertChannel, AlertSettings
from retake.alerts.store import BoardStore
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.errors import RobotError
from retake.retrying.dead_letters import DeadLetters
from retake.robots import Made, Ports, Robot, batch, creation, key_of, load_policies
from retake.robots.action_sink import ActionSink, DeadLetterSink, RecordingSink
from retake.robots.alert_sink import AlertPlace, AlertSink
from retake.robots.batch_plan import Answer
from retake.robots.follow_ups import Do, FollowUp
from retake.robots.sections import LastFailure
from retake.settings.schema import read_table


class Service:
    """A channel that keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, channel: AlertChannel, secret: str, message: Message, seconds: float, done: tuple[str, ...]) -> Sent:
        self.sent.append(message)
        return Sent(Ending.DELIVERED)


def settings() -> AlertSettings:
    faults: list[str] = []
    found: AlertSettings = read_table(ALERTS, {"channels": {"all": {"kind": "webhook"}}}, "ALERTS", faults)
    assert not faults
    return found


class World:
    def __init__(self) -> None:
        self.bucket, self.clock, self.service, self.others = MemoryBucket(), FakeClock(), Service(), RecordingSink()
        self.sink = self.opened()

    def opened(self, others: ActionSink | None = None) -> AlertSink:
        environ: Mapping[str, str] = {"ALERT_WEBHOOK_URL": "http://127.0.0.1:9/"}
        place = AlertPlace(self.bucket, settings(), self.clock, environ, self.service.send)
        return AlertSink(place, others or self.others)

    def run(self, robot_id: str, error: RobotError | None) -> None:
        robot = Robot(load_policies()[robot_id], Ports(self.clock, lambda: 0.5, self.sink))

        def work(call: object) -> str:
            if error:
                raise error
            return "done"

        robot.run(work, correlation_id="c-1", validate=lambda: None)
        assert self.sink.wait(60)

    @property
    def alerts(self) -> dict[str, tuple[str, str, int]]:
        board = BoardStore(self.bucket, self.clock).read()
        return {it.key: (it.level, it.state, it.occurrences) for it in board.alerts.values()}


FAILURE = RobotError("ERR_TEMPORARY_APPIUS_UNAVAILABLE", "APPIUS does not answer")


def test_a_failure_is_one_alert_with_all_that_the_policy_asks_for_and_ends_with_the_next_success() -> None:
    world = World()
    world.run("NR.NSI.1", FAILURE)
    assert world.alerts == {"robot_failed/NR.NSI.1": ("critical", "open", 1)}
    alert = BoardStore(world.bucket, world.clock).read().alerts["robot_failed/NR.NSI.1"]
    assert alert.pipelines == ["robot/NR.NSI.1"]
    assert "A notice by pagerduty. A notice by email. Escalate to human after 300 s without an answer." in alert.follows
    assert [it.do for it, _ in world.others.recorded] == [Do.DEAD_LETTER]
    world.clock.sleep(1)
    world.run("NR.NSI.1", FAILURE)
    assert world.alerts["robot_failed/NR.NSI.1"] == ("critical", "open", 2)
    world.run("NR.NSI.1", None)
    assert world.alerts["robot_failed/NR.NSI.1"] == ("critical", "resolved", 2)
    assert [it.event.value for it in world.service.sent] == ["trigger", "resolve"]


def test_another_process_closes_it_too_and_reads_the_bucket_once() -> None:
    world = World()
    world.run("NR.NSI.1", FAILURE)
    world.sink = world.opened()
    world.run("NR.NSI.1", None)
    assert world.alerts["robot_failed/NR.NSI.1"][1] == "resolved"


def test_another_process_closes_it_too_after_another_robot_has_failed_there() -> None:
    world = World()
    world.run("NR.NSI.1", FAILURE)
    world.sink = world.opened()
    world.run("NR.NSI.2", RobotError("ERR_TEMPORARY_API_TIMEOUT", "no answer"))
    world.run("NR.NSI.1", None)
    assert {key: state for key, (_, state, _) in world.alerts.items()} == {
        "robot_failed/NR.NSI.1": "resolved",
        "robot_failed/NR.NSI.2": "open",
    }


def test_a_process_that_lives_long_closes_what_another_one_has_raised_since() -> None:
    world = World()
    world.run("NR.NSI.1", None)
    long_lived, world.sink = world.sink, world.opened()
    world.run("NR.NSI.1", FAILURE)
    world.sink = long_lived
    world.clock.sleep(60)
    world.run("NR.NSI.1", None)
    assert world.alerts["robot_failed/NR.NSI.1"][1] == "resolved"


def test_a_process_that_lives_long_closes_at_once_what_it_has_raised_itself() -> None:
    world = World()
    for error in (None, FAILURE, None):
        world.run("NR.NSI.1", error)
    assert world.alerts["robot_failed/NR.NSI.1"][1] == "resolved"


def test_the_sinks_behind_are_told_of_a_success_too() -> None:
    class Desk(RecordingSink):
        recovered_robots: tuple[str, ...] = ()

        def recovered(self, robot_id: str) -> None:
            self.recovered_robots += (robot_id,)

    world, desk = World(), Desk()
    world.sink = world.opened(DeadLetterSink(DeadLetters(world.bucket, world.clock), desk))
    world.run("NR.NSI.1", FAILURE)
    world.run("NR.NSI.1", None)
    assert desk.recovered_robots == ("NR.NSI.1",)


def test_what_is_asked_for_while_a_channel_is_being_told_is_sent_too() -> None:
    world, all_asked = World(), threading.Event()
    at_once = world.service.send

    def slowly(channel: AlertChannel, secret: str, message: Message, seconds: float, done: tuple[str, ...]) -> Sent:
        assert all_asked.wait(60)
        return at_once(channel, secret, message, seconds, done)

    world.service.send = slowly  # type: ignore[method-assign]
    sink = world.opened()
    robot = Robot(load_policies()["NR.NSI.3"], Ports(world.clock, lambda: 0.5, sink))

    def fail(call: object) -> None:
        raise RobotError("ERR_BUSINESS_CATEGORY_MISSING", "it is missing")

    robot.run(fail, correlation_id="c-1")
    all_asked.set()
    assert sink.wait(60)
    assert [it.level for it in world.service.sent] == ["warning", "error"]


@pytest.mark.parametrize("robot_id", sorted(load_policies()))
def test_every_robot_whose_policy_tells_anybody_raises_an_alert(robot_id: str) -> None:
    world, policy = World(), load_policies()[robot_id]
    code = min(policy.errors, key=lambda it: not it.startswith("ERR_CRITICAL_"))
    world.run(robot_id, RobotError(code, "it fails"))
    told = {Do.NOTIFY, Do.TELL, Do.ESCALATE, Do.INCIDENT, Do.TICKET}
    assert not told.intersection(it.do for it, _ in world.others.recorded)
    assert set(world.alerts) <= {f"robot_failed/{robot_id}"}


class Erp:
    """Where items are created: it refuses everything until it is `mended`."""

    def __init__(self) -> None:
        self.items: dict[str, str] = {}
        self.mended = False

    def make(self, key: str) -> str:
        if not self.mended:
            raise RobotError("ERR_CRITICAL_MEMORY_OVERFLOW", "the ERP refuses it")
        return self.items.setdefault(key, key)

    def send(self, call: batch.BatchCall) -> dict[str, Answer[str]]:
        return {it.key: Made(self.make(it.key)) for it in call.items}


def test_a_robot_that_creates_items_ends_its_alert_when_it_creates_one_again() -> None:
    world, erp = World(), Erp()
    robot = Robot(load_policies()["NR.NSI.4"], Ports(world.clock, lambda: 0.5, world.sink))
    parts = creation.Parts(lambda key, data: erp.items.get(key), lambda key, data, call: erp.make(key))
    erp.items[key_of({"length": 1})] = "made by somebody else"
    assert not robot.create(parts, {"length": 2}, correlation_id="2").done
    assert robot.create(parts, {"length": 1}, correlation_id="1").done  # it was there already
    assert world.alerts["robot_failed/NR.NSI.4"][1] == "open"
    erp.mended = True
    assert robot.create(parts, {"length": 2}, correlation_id="2").done
    assert world.alerts["robot_failed/NR.NSI.4"][1] == "resolved"
    assert world.sink.wait(60)


def test_a_robot_that_creates_batches_ends_its_alert_with_a_batch_without_failures() -> None:
    world, erp = World(), Erp()
    policy = load_policies()["NR.NSI.5"]._replace(last_failure=LastFailure((FollowUp(Do.INCIDENT),)))
    robot = Robot(policy, Ports(world.clock, lambda: 0.5, world.sink))
    parts = batch.Parts(lambda item: erp.items.get(item.key), erp.send, lambda item, made: None)
    assert not robot.create_all(parts, [batch.Item("1", {})], correlation_id="1").done
    assert robot.create_all(parts, [], correlation_id="nothing").done
    assert world.alerts["robot_failed/NR.NSI.5"][1] == "open"
    erp.mended = True
    assert robot.create_all(parts, [batch.Item("1", {})], correlation_id="1").done
    assert world.alerts["robot_failed/NR.NSI.5"][1] == "resolved"
    assert world.sink.wait(60)
