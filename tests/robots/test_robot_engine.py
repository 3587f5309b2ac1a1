"""The engine carries out policies: a chain stops, values are validated, errors are corrected, and creation follows the
keys and conditions of [idempotency]."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from protocol_robots import POLICIES, Workshop

from retake.clock import FakeClock
from retake.errors import RobotError
from retake.retrying.guard import Call
from retake.robots import batch, creation
from retake.robots.batch_plan import Answer, Made
from retake.robots.chain import Link, Results, run_chain
from retake.robots.creation import How
from retake.robots.execution import Correction, Ports
from retake.robots.follow_ups import Do
from retake.robots.policies import RobotPolicy
from retake.robots.robot import Result, Robot
from retake.robots.sections import ValidationMode
from retake.robots.step_validation import StepFinding, grid

SLOW = "ERR_TEMPORARY_API_TIMEOUT"
AWAY = "ERR_TEMPORARY_1C_UNAVAILABLE"
OFF_GRID = "ERR_BUSINESS_STEP_VIOLATION"
OUT_OF_RANGE = "ERR_BUSINESS_OUT_OF_RANGE"
GRID = grid(100, 200, 10)


# --- chains ---------------------------------------------------------------------------------------------------------


def chained(*shops: Workshop, fail: Mapping[str, str]) -> tuple[list[Link], list[str]]:
    ran: list[str] = []

    def link(shop: Workshop) -> Link:
        robot_id = shop.robot.policy.id

        def work(robot: Robot, before: Results) -> Result[str]:
            assert list(before) == ran
            ran.append(robot_id)
            code = fail.get(robot_id)
            return robot.run(shop.failing(code or SLOW, times=None if code else 0), correlation_id="one")

        return Link(shop.robot, work)

    return [link(shop) for shop in shops], ran


def test_robot_3_stops_its_chain_and_no_robot_after_it_runs() -> None:
    """The chain stops at once (fail fast)."""
    shops = [Workshop(f"NR.NSI.{number}") for number in (1, 2, 3, 6, 9)]
    links, ran = chained(*shops, fail={"NR.NSI.3": AWAY})
    ended = run_chain(links)
    assert ran == list(ended.results) == ["NR.NSI.1", "NR.NSI.2", "NR.NSI.3"]
    assert (ended.stopped_by, ended.not_run, ended.done) == ("NR.NSI.3", ("NR.NSI.6", "NR.NSI.9"), False)
    assert ended.results["NR.NSI.3"].fails_fast
    assert shops[2].sink.done == [Do.FAIL_FAST, Do.TICKET, Do.TELL]
    assert shops[3].calls == shops[4].calls == []


def test_a_robot_that_fails_in_another_way_stops_no_chain() -> None:
    shops = [Workshop(f"NR.NSI.{number}") for number in (1, 3, 6)]
    links, ran = chained(*shops, fail={"NR.NSI.1": "ERR_BUSINESS_INVALID_EVENT"})
    ended = run_chain(links)
    assert ran == ["NR.NSI.1", "NR.NSI.3", "NR.NSI.6"]
    assert (ended.stopped_by, ended.not_run, ended.done) == (None, (), False)
    assert run_chain(chained(*shops, fail={})[0]).done


def test_a_robot_stands_in_a_chain_once() -> None:
    links, ran = chained(Workshop("NR.NSI.3"), Workshop("NR.NSI.3"), fail={})
    with pytest.raises(ValueError, match="stands twice"):
        run_chain(links)
    assert ran == []


# --- validation -----------------------------------------------------------------------------------------------------


def checker(**rules: Any) -> Workshop:
    validation = POLICIES["NR.NSI.7"].validation
    assert validation
    return Workshop(POLICIES["NR.NSI.7"]._replace(validation=validation._replace(**rules)))


def measured(shop: Workshop, value: Any) -> Result[Any]:
    return shop.robot.validate(lambda call: value, GRID, correlation_id="one", input_data={"value": str(value)})


def test_a_value_on_the_grid_is_fine() -> None:
    shop = checker()
    result = measured(shop, Decimal("120.0"))
    assert result.value
    assert (result.done, result.value.finding, result.value.value) == (True, StepFinding.FINE, 120)
    assert shop.sink.recorded == []


@pytest.mark.parametrize(
    ("value", "code", "nearest", "follows"),
    [(123, OFF_GRID, "120", [Do.REJECT, Do.TELL]), (260, OUT_OF_RANGE, "200", [Do.SUGGEST_NEAREST])],
)
def test_a_value_off_the_grid_is_refused_and_the_record_has_the_proposal(
    value: int, code: str, nearest: str, follows: list[Do]
) -> None:
    """The data are rejected and the technologist is notified; the nearest allowed value is suggested."""
    shop = checker()
    result = measured(shop, value)
    assert (result.value, result.failures[0].error.code, shop.sink.done) == (None, code, follows)
    context = shop.sink.recorded[0].record["details"]["system_context"]
    assert (context["value"], context["nearest"]) == (str(value), nearest)
    assert f"the nearest allowed value is {nearest}" in shop.sink.recorded[0].record["message"]


@pytest.mark.parametrize(
    ("rules", "value", "finding", "passes"),
    [
        ({"mode": ValidationMode.LIBERAL}, Decimal("120.2"), StepFinding.WARNED, Decimal("120.2")),
        ({"mode": ValidationMode.EMERGENCY}, 123, StepFinding.LOGGED, 123),
    ],
)
def test_what_is_let_pass_passes_as_it_is(rules: dict[str, Any], value: Any, finding: StepFinding, passes: Any) -> None:
    """± 2 % of the step passes with a warning; under critical load violations are logged only."""
    shop = checker(**rules)
    result = measured(shop, value)
    assert result.value
    assert (result.done, result.value.finding, result.value.value) == (True, finding, passes)
    assert shop.sink.recorded == []


def test_with_the_flag_the_nearest_value_replaces_it_and_the_sink_is_notified() -> None:
    """A value is corrected where the flag auto_correct is set."""
    shop = checker(auto_correct=True)
    result = measured(shop, 123)
    assert result.value
    assert (result.done, result.value.finding, result.value.value) == (True, StepFinding.CORRECTED, 120)
    (it,) = shop.sink.recorded
    assert (it.action.do, it.record["error_code"]) == (Do.AUTO_CORRECT, OFF_GRID)
    assert "123 is not on the grid; the nearest allowed value is 120" in it.record["message"]


def test_taking_the_measure_is_repeated_as_the_policy_says() -> None:
    """1 attempt for business errors, 3 for temporary ones."""
    shop = checker()
    calls: list[int] = []

    def measure(call: Call) -> int:
        calls.append(call.attempt)
        if len(calls) < 3:
            raise RobotError("ERR_TEMPORARY_CALCULATION_TIMEOUT", "too long")
        return 123

    result = shop.robot.validate(measure, GRID, correlation_id="one")
    assert (calls, result.attempts, result.failures[0].error.code) == ([1, 2, 3], 3, OFF_GRID)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "wide"])
def test_what_is_not_a_number_is_refused_too(value: Any) -> None:
    assert measured(checker(), value).failures[0].error.code == OUT_OF_RANGE


def test_a_robot_without_rules_validates_nothing() -> None:
    with pytest.raises(ValueError, match=r"NR\.NSI\.1 validates nothing"):
        Workshop("NR.NSI.1").robot.validate(lambda call: 1, GRID, correlation_id="one")


# --- the protocol for all robots ------------------------------------------------------------------------------------


def correcting(policy: RobotPolicy, script: Correction, code: str, clock: FakeClock) -> tuple[Robot, Workshop]:
    shop = Workshop(policy, clock=clock)
    return Robot(policy, Ports(clock, lambda: 0.5, shop.sink, corrections={code: script})), shop


def test_an_error_that_a_script_can_mend_is_mended_and_tried_again_a_minute_later(clock: FakeClock) -> None:
    """`if is_auto_correctable(error_code): execute_correction_script(); schedule_retry(robot_id, delay=60)`."""
    mended: list[Mapping[str, Any]] = []
    robot, shop = correcting(POLICIES["NR.NSI.7"], mended.append, OFF_GRID, clock)
    result = robot.run(shop.failing(OFF_GRID), correlation_id="one", input_data={"length": 123})
    assert mended == [{"length": 123}]
    assert shop.sink.done == [Do.REJECT, Do.TELL, Do.CORRECT, Do.DEFERRED_RETRY]
    assert result.failures[0].record["recovery_actions"][-1] == {"action": "RETRY", "delay_seconds": 60}
    clock.sleep(59)
    assert robot.due() == []
    clock.sleep(1)
    assert [result.done for _, result in robot.run_due(lambda it, call: it.input_data["length"])] == [True]


@pytest.mark.parametrize(
    ("mends", "expected"),
    [("ERR_BUSINESS_X", [Do.CORRECT, Do.DEFERRED_RETRY]), ("ERR_BUSINESS_OTHER", [Do.TICKET, Do.TELL])],
)
def test_an_error_without_actions_of_its_own_follows_the_protocol_for_all(
    clock: FakeClock, mends: str, expected: list[Do]
) -> None:
    robot, shop = correcting(POLICIES["NR.NSI.4"], lambda data: None, mends, clock)
    robot.run(shop.failing("ERR_BUSINESS_X"), correlation_id="one")
    assert shop.sink.done == expected


@pytest.mark.parametrize("error", [RobotError("ERR_TEMPORARY_X", "not now"), OSError("no such file")])
def test_a_script_that_fails_leaves_it_to_the_people(clock: FakeClock, error: Exception) -> None:
    def script(data: Mapping[str, Any]) -> None:
        raise error

    robot, shop = correcting(POLICIES["NR.NSI.4"], script, "ERR_BUSINESS_X", clock)
    robot.run(shop.failing("ERR_BUSINESS_X"), correlation_id="one")
    assert shop.sink.done == [Do.TICKET, Do.TELL]
    assert robot.deferrals.all() == []


@pytest.mark.parametrize("code", ["ERR_CRITICAL_X", "ERR_TEMPORARY_X"])
def test_no_script_is_run_for_errors_of_other_classes(clock: FakeClock, code: str) -> None:
    ran: list[Mapping[str, Any]] = []
    robot, shop = correcting(POLICIES["NR.NSI.1"], ran.append, code, clock)
    robot.run(shop.failing(code), correlation_id="one")
    assert ran == []


# --- idempotency ----------------------------------------------------------------------------------------------------


class Erp:
    """Where things are created; each call carries out what it says, and its answer is lost as often as planned."""

    def __init__(self, lost: int = 0) -> None:
        self.lost = lost
        self.looks = 0
        self.headers: list[str | None] = []
        self.keys: list[str] = []

    def find(self, key: str, data: Mapping[str, Any]) -> str | None:
        self.looks += 1
        return key if key in self.keys else None

    def make(self, key: str, data: Mapping[str, Any], call: Call) -> str:
        self.headers.append(call.if_none_match)
        if call.if_none_match and key in self.keys:
            raise RobotError("ERR_BUSINESS_DUPLICATE_ITEM", "412 Precondition Failed")
        self.keys.append(key)
        if len(self.headers) <= self.lost:
            raise RobotError("ERR_TEMPORARY_DB_CONFLICT", "no answer")
        return key

    @property
    def parts(self) -> creation.Parts[str]:
        return creation.Parts(self.find, self.make)


def creating(**idempotency: Any) -> Workshop:
    policy = POLICIES["NR.NSI.4"]
    assert policy.idempotency
    return Workshop(policy._replace(idempotency=policy.idempotency._replace(**idempotency)))


@pytest.mark.parametrize(("if_none_match", "header"), [(True, "*"), (False, None)])
def test_a_request_carries_if_none_match_where_the_policy_says_so(if_none_match: bool, header: str | None) -> None:
    """Conditional HTTP headers are used (If-None-Match)."""
    erp = Erp()
    creating(if_none_match=if_none_match).robot.create(erp.parts, {"length": 10}, correlation_id="a")
    assert erp.headers == [header]


@pytest.mark.parametrize(("check", "looks", "how"), [(True, 2, How.MADE), (False, 2, How.DUPLICATE)])
def test_before_a_repeat_it_is_looked_for_where_the_policy_says_so(check: bool, looks: int, how: How) -> None:
    """Without a look the repeat is made, and refused, since the header forbids a second creation."""
    erp = Erp(lost=1)
    result = creating(check_before_retry=check).robot.create(erp.parts, {"length": 10}, correlation_id="a")
    assert result.value
    assert (result.value.how, len(erp.keys), erp.looks) == (how, 1, looks)
    assert len(erp.headers) == (1 if check else 2)


def test_the_key_is_made_from_the_data_or_is_the_items_own_as_the_policy_says() -> None:
    erp = Erp()
    from_data, own = creating(key_from="data").robot, creating(key_from="item").robot
    made = from_data.create(erp.parts, {"length": 10}, correlation_id="a").value
    assert made
    assert len(made.key) == 64
    given = own.create(erp.parts, {"length": 10}, correlation_id="a", key="item-7").value
    assert given
    assert (given.key, erp.keys) == ("item-7", [made.key, "item-7"])
    with pytest.raises(ValueError, match="from the data, and one was given"):
        from_data.create(erp.parts, {}, correlation_id="a", key="item-7")
    with pytest.raises(ValueError, match="from the item, and none was given"):
        own.create(erp.parts, {}, correlation_id="a")


def scrap(**idempotency: Any) -> tuple[Workshop, list[str], batch.Parts[str]]:
    """Return robot 5 with a sink that answers nothing the first time, the list of what it was asked, and its parts."""
    policy = POLICIES["NR.NSI.5"]
    assert policy.idempotency
    asked: list[str] = []

    def find(item: batch.Item) -> None:
        asked.append(item.key)

    def send(sending: batch.BatchCall) -> Mapping[str, Answer[str]]:
        asked.append("send")
        if asked.count("send") == 1:
            raise RobotError("ERR_TEMPORARY_BATCH_FAILURE", "no answer")
        return {item.key: Made(item.key) for item in sending.items}

    shop = Workshop(policy._replace(idempotency=policy.idempotency._replace(**idempotency)))
    return shop, asked, batch.Parts(find, send, lambda item, made: None)


@pytest.mark.parametrize(
    ("check", "expected"), [(True, ["a", "b", "send", "a", "b", "send"]), (False, ["a", "b", "send", "send"])]
)
def test_items_are_looked_for_before_a_repeat_where_the_policy_says_so(check: bool, expected: list[str]) -> None:
    """The present state is checked before a repeat, and always before the first call."""
    shop, asked, parts = scrap(check_before_retry=check)
    result = shop.robot.create_all(parts, [batch.Item("a", {}), batch.Item("b", {})], correlation_id="scrap")
    assert (result.done, asked) == (True, expected)


def test_items_have_their_own_keys_or_keys_of_their_data_as_the_policy_says() -> None:
    """Each item is handled with a key of its own."""
    items = [batch.Item("a", {"length": 1}), batch.Item("b", {"length": 1.0}), batch.Item("", {"length": 2})]
    shop, _, parts = scrap(key_from="data")
    report = shop.robot.create_all(parts, items, correlation_id="scrap").value
    assert report
    assert [len(key) for key in report.ended] == [64, 64]
    shop, asked, parts = scrap()
    with pytest.raises(ValueError, match="one of the items has none"):
        shop.robot.create_all(parts, items, correlation_id="scrap")
    assert asked == []
