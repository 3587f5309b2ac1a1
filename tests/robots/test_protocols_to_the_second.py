"""Each robot's whole protocol on a test clock: what happens in which second, from the first call to the last action."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from protocol_day import Day, at, calls
from protocol_robots import POLICIES

from retake.bucket import ABSENT, Conflict
from retake.bucket.memory import MemoryBucket
from retake.errors import CodedError, RobotError
from retake.retrying.guard import Call
from retake.robots import batch, creation
from retake.robots.batch_plan import Answer, Made
from retake.robots.chain import Link, run_chain
from retake.robots.execution import Ports
from retake.robots.fallback import Stores
from retake.robots.locks import Locks
from retake.robots.outbox import Outbox
from retake.robots.robot import Robot
from retake.robots.saga import Saga, Step
from retake.robots.sections import ValidationMode
from retake.robots.snapshots import Snapshots
from retake.robots.step_validation import grid

A_DAY = 24 * 3600


A_PERSON = ("ticket find out why this fails, and fix it", "tell operator")
THE_MANAGEMENT = ("incident", "backup_system", "escalate management see to the incident")


def test_robot_1_detects() -> None:
    """Four calls within 42 seconds, a dead letter, two notices, and a person five minutes later."""
    away = "ERR_TEMPORARY_APPIUS_UNAVAILABLE"
    follow = (
        "dead_letter",
        "notify pagerduty",
        "notify email",
        "escalate human see to the dead letter after 300 s",
    )
    day = Day("NR.NSI.1")
    result = day.robot.run(day.work(away), correlation_id="event-1")
    assert day.take() == [*calls(0, 2, 10, 42), *at(42, *follow)]
    context = result.failures[0].record["details"]["system_context"]
    assert context["recovery"] == ["wait_for_health_check", "retry_with_circuit_breaker"]
    # 4 failures so far; the 10th in five minutes opens the breaker for a minute, which uses up no attempt
    day.robot.run(day.work(away), correlation_id="event-2")
    day.robot.run(day.work(away, away, None), correlation_id="event-3")
    assert day.take() == [*calls(42, 44, 52, 84), *at(84, *follow), *calls(84, 86, 146)]
    for code in ("ERR_BUSINESS_INVALID_EVENT", "ERR_CRITICAL_PARSE_ERROR"):
        day.robot.run(day.work(code), correlation_id="event-4")
        assert day.take() == [(146, "call 1"), *at(146, *follow)]


def test_robot_2_fetches() -> None:
    """Six calls within 12 seconds, the payload of an hour ago for reading, and everything again after 30 minutes."""
    slow = "ERR_TEMPORARY_API_TIMEOUT"
    follow = ("deferred_retry after 1800 s", "journal documents not synchronised", "incident ServiceNow")
    day = Day("NR.NSI.2", breaker=None)
    assert day.robot.run(day.work(None), correlation_id="doc", cache_key="document-7").value == "result"
    day.until(3600)
    day.take()
    result = day.robot.run(day.work(slow), correlation_id="doc", input_data={"document": 7}, cache_key="document-7")
    assert day.take() == [*calls(3600, 3601, 3602, 3604, 3607, 3612), *at(3612, *follow)]
    assert (result.value, result.cached_age_s, result.done) == ("result", 3612, False)
    day.until(5411)
    assert day.robot.run_due(lambda it, call: "too early") == []
    day.until(5412)
    ((deferred, again),) = day.robot.run_due(lambda it, call: f"document {it.input_data['document']}")
    assert (deferred.code, again.value) == (slow, "document 7")
    day.until(A_DAY - 13)
    result = day.robot.run(day.work(slow), correlation_id="doc", cache_key="document-7")
    assert (result.value, result.cached_age_s) == ("result", A_DAY - 1)
    result = day.robot.run(day.work(slow), correlation_id="doc", cache_key="document-7")
    assert (result.value, result.cached_age_s) == (None, None)
    day.take()
    day.robot.run(day.work("ERR_BUSINESS_TECH_DOC_NOT_FOUND"), correlation_id="doc", cache_key="document-7")
    assert [what for _, what in day.take()] == ["call 1", *follow]


def test_robots_1_and_2_share_a_breaker() -> None:
    day, other = Day("NR.NSI.2"), Day("NR.NSI.1")
    day.robot.run(day.work("ERR_TEMPORARY_API_TIMEOUT"), correlation_id="doc")
    day.robot.run(day.work("ERR_TEMPORARY_API_TIMEOUT"), correlation_id="doc")
    # the 10th failure within 5 minutes is the 4th call of the second, at 16 s; probes follow each minute
    assert [second for second, what in day.take() if "call" in what] == [0, 1, 2, 4, 7, 12, 12, 13, 14, 16, 76, 136]
    other.clock, other.states = day.clock, day.states
    other.robot = Robot(other.robot.policy, Ports(day.clock, lambda: 0.5, other, day.states))
    other.robot.run(other.work(None), correlation_id="event")
    assert other.take() == [(196, "call 1")]


def test_robot_3_stops_the_chain() -> None:
    """Three calls of 15 seconds each at most, within 40 seconds, and no robot after it runs."""
    away = "ERR_TEMPORARY_1C_UNAVAILABLE"
    day, next_one = Day("NR.NSI.3"), Day("NR.NSI.4")
    limits: list[float | None] = []

    def work(call: Call) -> None:
        limits.append(call.timeout_s)
        day.work(away)(call)

    ended = run_chain(
        [
            Link(day.robot, lambda robot, before: robot.run(work, correlation_id="chain")),
            Link(next_one.robot, lambda robot, before: robot.run(next_one.work(None), correlation_id="chain")),
        ]
    )
    follow = ("fail_fast", "ticket ITSM mend by hand", "tell 1C administrator")
    assert day.take() == [*calls(0, 10, 40), *at(40, *follow)]
    assert (limits, ended.stopped_by, ended.not_run, next_one.take()) == ([15] * 3, "NR.NSI.3", ("NR.NSI.4",), [])
    for code in ("ERR_BUSINESS_MISSING_CHARACTERISTIC", "ERR_CRITICAL_CONFIG_MISMATCH"):
        day.robot.run(day.work(code), correlation_id="chain")
        assert day.take() == [(40, "call 1"), *at(40, *follow)]


class Erp:
    """Where robot 4 creates items. Calls fail with the codes of `plan`, one after another."""

    def __init__(self, day: Day) -> None:
        self.day, self.items, self.plan = day, dict[str, Any](), list[str | None]()

    def _act(self, what: str) -> None:
        self.day.note(what)
        if self.plan and (code := self.plan.pop(0)):
            raise RobotError(code, "failed")

    def find(self, key: str, data: Mapping[str, Any]) -> str | None:
        self.day.note("look")
        return key if key in self.items else None

    def make(self, key: str, data: Mapping[str, Any], call: Call) -> str:
        assert call.if_none_match == "*"
        self._act("make")
        self.items[key] = data
        return key

    def finish(self, item: str, data: Mapping[str, Any]) -> None:
        self._act("finish")

    def parts(self, *, finish: bool = False) -> creation.Parts[str]:
        def mark(item: str, error: CodedError) -> None:
            self.day.note("mark")

        return creation.Parts(self.find, self.make, self.finish if finish else None, mark)


def test_robot_4_creates_once_and_reads_only_after_five_failures() -> None:
    """Five calls within two minutes each time, each after a look; after the fifth failure items are only looked up."""
    conflict = "ERR_TEMPORARY_DB_CONFLICT"
    day = Day("NR.NSI.4")
    erp = Erp(day)
    assert day.robot.create(erp.parts(), {"length": 1}, correlation_id="one").done
    assert day.robot.create(erp.parts(), {"length": 1.0}, correlation_id="one").done
    assert day.take() == at(0, "look", "make", "look")
    erp.plan = [conflict] * 25
    for number in range(5):
        day.robot.create(erp.parts(), {"length": 10 + number}, correlation_id="one")
        tries = [event for wait in (0, 3, 12, 39, 120) for event in at(120 * number + wait, "look", "make")]
        follow = A_PERSON if number < 4 else ("read_only",)
        assert day.take() == [*tries, *at(120 * (number + 1), *follow)]
    known = day.robot.create(erp.parts(), {"length": 1}, correlation_id="one")
    refused = day.robot.create(erp.parts(), {"length": 99}, correlation_id="one")
    assert day.take() == at(600, "look", "look")
    assert (known.done, refused.failures[0].error.code) == (True, "ERR_CRITICAL_READ_ONLY")
    day.robot.creator(erp.parts()).probe()
    assert day.robot.create(erp.parts(), {"length": 99}, correlation_id="one").done
    assert day.robot.create(erp.parts(), {"length": 100}, correlation_id="one").done
    assert day.take() == at(600, "look", "look", "make", "look", "make")


def test_robot_4_rolls_back_after_a_day_what_was_not_confirmed() -> None:
    day = Day("NR.NSI.4")
    erp = Erp(day)
    erp.plan = [None, *["ERR_CRITICAL_INTEGRATION_ERROR"] * 5]
    day.robot.create(erp.parts(finish=True), {"length": 1}, correlation_id="one")
    tries = [(second, "finish") for second in (0, 3, 12, 39, 120)]
    assert day.take() == [*at(0, "look", "make"), *tries, *at(120, "mark", *THE_MANAGEMENT)]
    unconfirmed = day.robot.creator(erp.parts()).unconfirmed
    day.until(A_DAY - 1)
    assert unconfirmed.roll_back_due(lambda key: day.note("roll back")) == []
    day.until(A_DAY)
    unconfirmed.roll_back_due(lambda key: day.note("roll back"))
    unconfirmed.roll_back_due(lambda key: day.note("roll back"))
    assert day.take() == [(A_DAY, "roll back")]


def sending(day: Day, plan: Mapping[str, list[str]], whole: list[str | None]) -> batch.Parts[str]:
    """Return robot 5's other side: calls fail as a whole with the codes of `whole`, items with those of `plan`."""

    def send(load: batch.BatchCall) -> Mapping[str, Answer[str]]:
        day.note("send " + "".join(item.key for item in load.items))
        if whole and (code := whole.pop(0)):
            raise RobotError(code, "failed")

        def answer(key: str) -> Answer[str]:
            return RobotError(codes.pop(0), "failed") if (codes := plan.get(key)) else Made(key)

        return {item.key: answer(item.key) for item in load.items}

    return batch.Parts(lambda item: None, send, lambda item, made: day.note(f"undo {item.key}"))


def items(keys: str) -> list[batch.Item]:
    return [batch.Item(key, {"name": key}) for key in keys]


def test_robot_5_creates_in_batches() -> None:
    """Ten at a time; a batch is repeated after 5, 25 and 125 s, an item after 1, 3, 9, 27 and 81 s."""
    failed, invalid = "ERR_TEMPORARY_BATCH_FAILURE", "ERR_BUSINESS_INVALID_SCRAP_TYPE"
    day = Day("NR.NSI.5")
    day.robot.create_all(sending(day, {}, []), items("abcdefghijkl"), correlation_id="scrap")
    assert day.take() == at(0, "send abcdefghij", "send kl")

    day.robot.create_all(sending(day, {}, [failed] * 4), items("ab"), correlation_id="scrap")
    assert day.take() == [
        *[(second, "send ab") for second in (0, 5, 30, 155)],
        (155, "journal successes and failures"),
    ]

    day.robot.create_all(sending(day, {"a": [failed] * 6}, []), items("ab"), correlation_id="scrap")
    tries = [(155 + second, "send a") for second in (1, 4, 13, 40, 121)]
    assert day.take() == [(155, "send ab"), *tries, (276, "journal successes and failures")]

    report = day.robot.create_all(sending(day, {"a": [invalid]}, []), items("ab"), correlation_id="scrap").value
    assert day.take() == at(276, "send ab", "journal successes and failures")  # half of them: the other stays
    assert report
    assert report.statistics.created == 1

    plan = {"a": [invalid], "b": [invalid]}
    day.robot.create_all(sending(day, plan, []), items("abc"), correlation_id="scrap")
    assert day.take() == at(276, "send abc", "undo c", "journal successes and failures")  # more than half

    overflow: list[str | None] = ["ERR_CRITICAL_MEMORY_OVERFLOW"]
    assert day.robot.create_all(sending(day, {}, overflow), items("abcd"), correlation_id="scrap").done
    assert day.take() == at(276, "send abcd", "send ab", "send cd")


def test_robot_6_waits_for_locks() -> None:
    """Each call waits a minute for the lock and is repeated after 15, 30 and 45 s; a read gets through after 90 s."""
    day = Day("NR.NSI.6")
    rules = day.robot.policy.locks
    assert rules
    locks = Locks(day.states, day.clock, wait_s=rules.wait_s, break_after_s=rules.break_after_s)
    day.bucket.write("grid", b"1", (version := day.bucket.write("grid", b"0", ABSENT)))

    def write(call: Call) -> None:
        day.note(f"call {call.attempt}")
        with locks.write("length", "robot 6"):
            day.bucket.write("grid", b"2", version)  # what it read before others wrote

    def read(call: Call) -> bytes:
        day.note(f"call {call.attempt}")
        with locks.read("length", "robot 6"):
            return day.bucket.read("grid")[0]

    holder = Locks(day.states, day.clock).write("length", "a program that hangs")
    holder.__enter__()
    day.until(10)
    assert day.robot.run(read, correlation_id="one").value == b"1"
    assert (day.take(), day.second) == (calls(10, 85), 90)  # waits 60 s, rests 15 s, waits 5 s

    follow = (
        "manual_mode configuration",
        "ticket mend the characteristics",
        "buffer values until they are mended",
    )
    result = day.robot.run(write, correlation_id="one", partly_done=lambda: True)
    began = [90, 90 + 75, 90 + 75 + 90, 90 + 75 + 90 + 105]
    ended = began[-1] + 60
    undo = ("roll_back", "journal audit of every operation")
    assert day.take() == [*calls(*began), *at(ended, *undo, *follow)]
    assert result.failures[0].error.code == "ERR_TEMPORARY_LOCK_TIMEOUT"

    holder.__exit__(None, None, None)
    with pytest.raises(Conflict):
        day.robot.run(write, correlation_id="one")
    assert day.take() == [(ended, "call 1")]  # the lock is free; the version has changed
    day.robot.run(day.work("ERR_CRITICAL_TEMPLATE_MISSING"), correlation_id="one")
    assert day.take() == [(ended, "call 1"), *at(ended, *follow)]


@pytest.mark.parametrize(
    ("rules", "value", "passes", "follow"),
    [
        ({}, 120, 120, ()),
        ({}, 120.2, None, ("reject", "tell technologist")),
        ({}, 200.1, None, ("suggest_nearest",)),
        ({"mode": ValidationMode.LIBERAL}, 120.2, 120.2, ()),  # 2 % of a step of 10
        ({"mode": ValidationMode.LIBERAL}, 119.8, 119.8, ()),
        ({"mode": ValidationMode.LIBERAL}, 120.21, None, ("reject", "tell technologist")),
        ({"mode": ValidationMode.LIBERAL}, 200.2, 200.2, ()),
        ({"mode": ValidationMode.EMERGENCY}, 999, 999, ()),
        ({"auto_correct": True}, 126, 130, ("auto_correct",)),
        ({"auto_correct": True}, 999, 200, ("auto_correct",)),
    ],
)
def test_robot_7_validates(
    rules: dict[str, Any], value: float, passes: float | None, follow: tuple[str, ...], logged: list[str]
) -> None:
    """A slow calculation is repeated after 2, 4 and 8 s; a wrong value is not measured again."""
    slow = "ERR_TEMPORARY_CALCULATION_TIMEOUT"
    day = Day("NR.NSI.7", validation=rules)
    measuring = day.work(slow, slow, slow, None)

    def measure(call: Call) -> float:
        measuring(call)
        return value

    result = day.robot.validate(measure, grid(100, 200, 10), correlation_id="one")
    assert day.take() == [*calls(0, 2, 6, 14), *at(14, *follow)]
    if passes is None:
        assert result.failures[0].record["details"]["system_context"]["nearest"] == ("200" if value > 200 else "120")
    else:
        assert result.value
        assert float(result.value.value) == passes
        assert len(logged) == (value != 120)  # a wrong value that passes is logged


def test_robot_7_gives_up_on_a_calculation_that_is_always_too_slow() -> None:
    day = Day("NR.NSI.7")
    measure: Any = day.work("ERR_TEMPORARY_CALCULATION_TIMEOUT")
    day.robot.validate(measure, grid(100, 200, 10), correlation_id="one")
    assert day.take() == [*calls(0, 2, 6, 14), *at(14, *A_PERSON)]


def test_robot_8_links() -> None:
    """One repeat at once, another after a validation 30 s later; a saga undoes, an outbox notifies, a snapshot
    restores."""
    broken = "ERR_TEMPORARY_REFERENCE_INTEGRITY"
    day = Day("NR.NSI.8")
    links: set[str] = set()
    saga, outbox = Saga(day.states, day.clock), Outbox(day.states, day.clock)
    snapshots = Snapshots(day.bucket, "links/", day.clock)
    assert snapshots.take(sorted(links))

    def linking(name: str, *codes: str | None) -> Callable[[Call], None]:
        fails = day.work(*codes)

        def add() -> None:
            links.add(name)
            day.note("reserve")

        def drop() -> None:
            links.discard(name)
            day.note("release")

        def work(call: Call) -> None:
            saga.run(name, [Step("reserve", add, drop), Step("link", lambda: fails(call), lambda: day.note("unlink"))])
            outbox.put(name, {"linked": name})

        return work

    def validate() -> None:
        day.note("validate")

    day.robot.run(linking("a", broken, broken, None), correlation_id="a", validate=validate)
    once = ["reserve", "call 1", "release"], ["reserve", "call 2", "release"], ["validate", "reserve", "call 3"]
    assert day.take() == [*at(0, *once[0], *once[1]), *at(30, *once[2])]
    assert outbox.deliver(lambda message: day.note(f"send {message}")) == 1
    assert outbox.deliver(lambda message: day.note(f"send {message}")) == 0
    assert day.take() == [(30, "send {'linked': 'a'}")]
    day.until(300)
    assert snapshots.take(sorted(links))

    follow = ("manual_queue links to be settled by hand", "incident", "backup state of the links")
    day.robot.run(linking("b", broken), correlation_id="b", validate=validate)
    assert day.take() == [
        *at(300, *once[0], *once[1]),
        *at(330, "validate", "reserve", "call 3", "release", *follow),
    ]
    day.robot.run(linking("c", "ERR_BUSINESS_CIRCULAR_REFERENCE"), correlation_id="c", validate=validate)
    assert day.take() == at(330, *once[0], *follow)
    assert outbox.deliver(lambda message: day.note("send")) == 0  # what was undone is reported to nobody
    assert snapshots.restore() == sorted(links) == ["a"]


def test_robot_9_collects() -> None:
    """It never gives up; values go to the next store and later back; a snapshot is taken every five minutes."""
    away = "ERR_TEMPORARY_METRICS_STORAGE_UNAVAILABLE"
    day = Day("NR.NSI.9")
    order, rules = day.robot.policy.stores, day.robot.policy.snapshots
    assert order
    assert rules
    places: dict[str, dict[str, Any]] = {name: {} for name in order.order}
    out: set[str] = {order.primary, order.secondary}
    replica = MemoryBucket()
    snapshots = Snapshots(day.bucket, "kpi/", day.clock, every_s=rules.every_s, replicas=[replica])

    def at_place(name: str) -> Callable[[str, Any], None]:
        def put(key: str, value: Any) -> None:
            if name in out:
                raise RobotError(away, f"{name} is away")
            places[name][key] = value

        return put

    stores = Stores([(name, at_place(name)) for name in order.order], buffer=day.states, clock=day.clock)
    back_at = 1023 + 600 + 600  # after 12 repeats

    def store_in_main(call: Call) -> None:
        day.note(f"call {call.attempt}")
        if snapshots.take({"made": call.attempt}):
            day.note("snapshot")
        if day.second < back_at:
            day.note(stores.put(f"m{call.attempt}", call.attempt))
            raise RobotError(away, "only the emergency store took it")
        out.clear()
        stores.put(f"m{call.attempt}", call.attempt)

    result = day.robot.run(store_in_main, correlation_id="metrics")
    seconds = [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 1623, 2223]
    follow = ("degrade collect metrics only", "buffer metrics until the store is back")
    events = day.take()
    assert [event for event in events if event[1].startswith("call")] == calls(*seconds)
    assert events[:6] == at(0, "call 1", "snapshot", "JSON files", *follow, "flush_to_disk metrics at the memory limit")
    assert [second for second, what in events if what == "snapshot"] == [0, 511, 1023, 1623, 2223]
    assert (result.done, result.attempts) == (True, 13)
    assert places["InfluxDB/ClickHouse"] == {"m13": 13}
    assert stores.sync() == 12
    assert places["InfluxDB/ClickHouse"] == {f"m{number}": number for number in range(1, 14)}
    assert stores.sync() == 0
    for entry in day.bucket.list("kpi/"):
        day.bucket.delete(entry.key)  # the data centre is lost
    assert snapshots.restore() == {"made": 13}

    for code, then in (("ERR_CRITICAL_DATA_LOSS", 2223), ("ERR_BUSINESS_KPI_CALCULATION_ERROR", 2223)):
        day.robot.run(day.work(code), correlation_id="metrics")
        assert day.take() == [(then, "call 1"), *at(then, *follow, "flush_to_disk metrics at the memory limit")]


@pytest.mark.parametrize(("mode", "running"), [(0, "123456789"), (1, "1239"), (2, "19"), (3, "")])
def test_in_a_degraded_mode_the_others_rest(mode: int, running: str) -> None:
    """Level 1: robots 1, 2, 3, 9; level 2: 1, 9; level 3: none."""
    for robot in POLICIES:
        day = Day(robot, mode=lambda: mode)

        def run(day: Day = day) -> None:
            day.robot.run(day.work(None), correlation_id="one", validate=lambda: None)

        if robot[-1] in running:
            run()
            assert day.take() == [(0, "call 1")]
        else:
            with pytest.raises(RobotError) as caught:
                run()
            assert (caught.value.code, day.take()) == ("ERR_TEMPORARY_DEGRADED", [])
