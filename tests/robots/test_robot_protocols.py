"""Each robot follows its protocol: attempts, waits, jitter, conditions, and the actions after the last failure."""

from collections.abc import Callable
from threading import Event, current_thread

import pytest
from protocol_robots import POLICIES, PROTOCOL, RobotProtocol, Workshop, seeds

from retake.clock import stamp
from retake.errors import CodedError, ErrorClass, RobotError
from retake.retrying.guard import Call
from retake.robots.follow_ups import Do, FollowUp, When
from retake.robots.policies import ROBOTS
from retake.robots.sections import LastFailure

CODES = [(robot, code) for robot, protocol in PROTOCOL.items() for code in protocol.errors]
REPEATED = [(robot, code) for robot, code in CODES if code in PROTOCOL[robot].repeated]
ENDING = [(robot, code) for robot, code in REPEATED if not PROTOCOL[robot].endless]
NEVER_REPEATED = [(robot, code) for robot, code in CODES if code not in PROTOCOL[robot].repeated]

every_robot = pytest.mark.parametrize(("robot", "protocol"), PROTOCOL.items(), ids=PROTOCOL)


def worked(robot: str, code: str, draw: Callable[[], float] = lambda: 0.5) -> Workshop:
    """Return the robot after work that always failed."""
    shop = Workshop(robot, draw=draw)
    validate = (lambda: None) if POLICIES[robot].validate_before_repeat else None
    shop.robot.run(shop.failing(code), correlation_id="one", input_data={"id": 7}, validate=validate)
    return shop


def test_the_nine_robots_are_there() -> None:
    assert list(POLICIES) == list(PROTOCOL) == list(ROBOTS)


@every_robot
def test_its_errors_match_the_protocol_with_the_class_of_their_prefix(robot: str, protocol: RobotProtocol) -> None:
    policy = POLICIES[robot]
    assert policy.name == protocol.name
    assert {code: RobotError(code, "").error_class.value for code in policy.errors} == protocol.errors
    for error_class, prefix in (("A", "ERR_TEMPORARY_"), ("B", "ERR_BUSINESS_"), ("C", "ERR_CRITICAL_")):
        expected = [code for code, it in protocol.errors.items() if it == error_class]
        assert [code for code in policy.errors if code.startswith(prefix)] == expected
    assert all(policy.errors.values())


@pytest.mark.parametrize(("robot", "code"), ENDING)
def test_it_makes_one_call_and_as_many_repeats_as_the_protocol_has_intervals(robot: str, code: str) -> None:
    waits = PROTOCOL[robot].waits_s
    shop = worked(robot, code)
    assert [call.attempt for call in shop.calls] == list(range(1, len(waits) + 2))
    assert shop.waits_s == list(waits)
    assert POLICIES[robot].retry.max_retries == len(waits)


@pytest.mark.parametrize(("robot", "code"), NEVER_REPEATED)
def test_what_the_protocol_excepts_is_not_repeated(robot: str, code: str) -> None:
    shop = worked(robot, code)
    assert len(shop.calls) == 1
    assert shop.clock.now() == shop.began


@pytest.mark.slow
@pytest.mark.parametrize(("robot", "code"), ENDING)
def test_each_wait_stays_within_the_jitter_and_uses_all_of_it(robot: str, code: str) -> None:
    spread = PROTOCOL[robot].jitter_percent / 100
    many = [worked(robot, code, draw).waits_s for draw in seeds(300)]
    for wait, drawn in zip(PROTOCOL[robot].waits_s, zip(*many, strict=True), strict=True):
        low, high = wait * (1 - spread), wait * (1 + spread)
        assert all(low - 1e-5 <= it <= high + 1e-5 for it in drawn)  # a clock counts microseconds
        assert min(drawn) <= low + (high - low) * 0.05
        assert max(drawn) >= high - (high - low) * 0.05


@pytest.mark.parametrize(("robot", "code"), ENDING)
def test_the_ends_of_the_jitter_are_the_percentage_of_the_protocol(robot: str, code: str) -> None:
    spread = PROTOCOL[robot].jitter_percent / 100
    assert worked(robot, code, lambda: 0.0).waits_s == pytest.approx(
        [it * (1 - spread) for it in PROTOCOL[robot].waits_s]
    )
    assert worked(robot, code, lambda: 1.0).waits_s == pytest.approx(
        [it * (1 + spread) for it in PROTOCOL[robot].waits_s]
    )


@pytest.mark.parametrize(("robot", "code"), [it for it in CODES if it not in REPEATED or it in ENDING])
def test_what_follows_on_the_last_failure_goes_to_the_sink_in_the_order_of_the_protocol(robot: str, code: str) -> None:
    shop = worked(robot, code)
    expected = PROTOCOL[robot].follow_ups[code]
    assert [it.action.as_recovery_action() for it in shop.sink.recorded] == expected
    record = shop.sink.recorded[-1].record
    assert record["recovery_actions"] == expected
    assert (record["robot_id"], record["correlation_id"], record["error_code"]) == (robot, "one", code)
    assert record["error_class"] == PROTOCOL[robot].errors[code]
    assert record["details"]["retry_count"] == len(shop.calls) - 1
    assert record["details"]["input_data"] == {"id": 7}
    assert record["timestamp"] == stamp(shop.clock.now())


@pytest.mark.parametrize(("robot", "code"), ENDING)
def test_each_repeat_is_reported_with_its_delay(robot: str, code: str) -> None:
    """`{"action": "RETRY", "delay_seconds": 5}` of the standard record."""
    shop = worked(robot, code)
    expected = [[{"action": "RETRY", "delay_seconds": wait}] for wait in PROTOCOL[robot].waits_s]
    assert [record["recovery_actions"] for record in shop.noted] == expected
    assert [record["details"]["retry_count"] for record in shop.noted] == list(range(len(expected)))


@pytest.mark.parametrize(("robot", "code"), CODES)
def test_a_success_on_the_way_ends_it_and_nothing_follows(robot: str, code: str) -> None:
    if code not in PROTOCOL[robot].repeated or PROTOCOL[robot].endless:
        return
    shop = Workshop(robot)
    validate = (lambda: None) if POLICIES[robot].validate_before_repeat else None
    result = shop.robot.run(shop.failing(code, times=2), correlation_id="one", validate=validate)
    assert (result.done, result.value, result.attempts) == (True, "result", 3)
    assert shop.sink.recorded == []


# --- specific to one robot ---


@pytest.mark.parametrize(
    ("code", "attempts"),
    [
        ("ERR_TEMPORARY_ANYTHING", 6),
        ("ERR_BUSINESS_ANYTHING", 6),
        ("ERR_BUSINESS_TECH_DOC_NOT_FOUND", 1),
        ("ERR_CRITICAL_ANYTHING", 1),
    ],
)
def test_robot_2_repeats_business_errors_too_but_for_the_document_that_is_not_there(code: str, attempts: int) -> None:
    assert len(worked("NR.NSI.2", code).calls) == attempts


def test_robot_3_repeats_no_other_temporary_error_and_gives_each_call_15_seconds() -> None:
    assert len(worked("NR.NSI.3", "ERR_TEMPORARY_NETWORK").calls) == 1
    assert [call.timeout_s for call in worked("NR.NSI.3", "ERR_TEMPORARY_1C_UNAVAILABLE").calls] == [15, 15, 15]
    assert {policy.retry.timeout_s for robot, policy in POLICIES.items() if robot != "NR.NSI.3"} == {None}


@pytest.mark.parametrize("robot", ["NR.NSI.4", "NR.NSI.6"])
@pytest.mark.parametrize("kind", ["TEMPORARY", "BUSINESS", "CRITICAL"])
def test_robots_4_and_6_repeat_every_other_error(robot: str, kind: str) -> None:
    assert len(worked(robot, f"ERR_{kind}_ANYTHING").calls) == 1 + len(PROTOCOL[robot].waits_s)


def test_robot_8_validates_before_its_second_repeat_and_a_failed_validation_is_its_failure() -> None:
    shop = Workshop("NR.NSI.8")
    validated: list[int] = []

    def validate() -> None:
        validated.append(len(shop.calls))
        raise RobotError("ERR_BUSINESS_CIRCULAR_REFERENCE", "a → b → a")

    result = shop.robot.run(shop.failing("ERR_TEMPORARY_REFERENCE_INTEGRITY"), correlation_id="x", validate=validate)
    assert validated == [2]  # after the first call and the immediate repeat
    assert shop.times_s == [0, 0]
    assert (shop.clock.now() - shop.began).total_seconds() == 30
    assert result.failures[0].error.code == "ERR_BUSINESS_CIRCULAR_REFERENCE"


def test_robot_8_does_not_begin_without_a_validation() -> None:
    with pytest.raises(ValueError, match=r"NR\.NSI\.8 validates before retry 2: with what\?"):
        Workshop("NR.NSI.8").robot.run(lambda call: None, correlation_id="x")


@pytest.mark.slow
def test_robot_9_goes_on_for_ever_never_waiting_longer_than_ten_minutes() -> None:
    shop = Workshop("NR.NSI.9")
    work = shop.failing("ERR_TEMPORARY_METRICS_STORAGE_UNAVAILABLE", times=2000)
    result = shop.robot.run(work, correlation_id="metrics")
    assert (result.value, result.attempts) == ("result", 2001)
    assert shop.waits_s[:10] == list(PROTOCOL["NR.NSI.9"].waits_s)
    assert set(shop.waits_s[10:]) == {600}


def test_robot_9_has_no_last_failure_so_what_follows_follows_once_on_the_first() -> None:
    shop = Workshop("NR.NSI.9")
    code = "ERR_TEMPORARY_METRICS_STORAGE_UNAVAILABLE"
    told_at = []

    def work(call: Call) -> None:
        told_at.append(len(shop.sink.recorded))
        raise RobotError(code if call.attempt < 4 else "ERR_CRITICAL_DATA_LOSS", "")

    result = shop.robot.run(work, correlation_id="metrics")
    assert told_at == [0, 3, 3, 3]
    assert [it.action.as_recovery_action() for it in shop.sink.recorded] == PROTOCOL["NR.NSI.9"].follow_ups[code]
    first = shop.sink.recorded[0].record
    assert first["recovery_actions"] == [
        {"action": "RETRY", "delay_seconds": 1},
        *PROTOCOL["NR.NSI.9"].follow_ups[code],
    ]
    assert isinstance(result.failures[0].error, CodedError)
    assert result.failures[0].follow_ups == ()


def test_what_ends_repeats_without_end_is_followed_by_what_did_not_follow_the_first_failure() -> None:
    critical = FollowUp(Do.INCIDENT, When(frozenset({ErrorClass.CRITICAL})))
    actions = (*POLICIES["NR.NSI.9"].last_failure.actions, critical)
    shop = Workshop(POLICIES["NR.NSI.9"]._replace(last_failure=LastFailure(actions)))

    def work(call: Call) -> None:
        raise RobotError("ERR_TEMPORARY_LATE" if call.attempt < 4 else "ERR_CRITICAL_DATA_LOSS", "")

    result = shop.robot.run(work, correlation_id="metrics")
    assert shop.sink.done == [Do.DEGRADE, Do.BUFFER, Do.FLUSH_TO_DISK, Do.INCIDENT]
    assert result.failures[0].follow_ups == (critical,)


def test_work_that_is_repeated_without_end_is_not_deferred_as_well() -> None:
    """Otherwise it would be done twice: by this call, and when the deferred work is due."""
    deferral = FollowUp(Do.DEFERRED_RETRY, after_s=60)
    actions = (deferral, FollowUp(Do.REJECT))
    shop = Workshop(POLICIES["NR.NSI.9"]._replace(last_failure=LastFailure(actions)))
    result = shop.robot.run(shop.failing("ERR_TEMPORARY_LATE", times=2), correlation_id="metrics")
    assert (result.done, shop.sink.done, shop.robot.deferrals.all()) == (True, [Do.REJECT], [])
    result = shop.robot.run(shop.failing("ERR_CRITICAL_DATA_LOSS"), correlation_id="metrics")
    assert (result.failures[0].follow_ups, len(shop.robot.deferrals.all())) == (actions, 1)


@pytest.mark.slow
def test_a_call_of_robot_3_that_takes_longer_is_1c_that_does_not_answer_and_is_asked_again() -> None:
    """A timeout of 15 seconds for a request to each catalogue; half a second in this test."""
    policy = POLICIES["NR.NSI.3"]
    shop = Workshop(policy._replace(retry=policy.retry._replace(timeout_s=0.5)))
    over, hung = Event(), []

    def work(call: Call) -> str:
        shop.calls.append(call)
        hung.append(current_thread())
        over.wait(30)
        return "late"

    result = shop.robot.run(work, correlation_id="one")
    over.set()
    for thread in hung:
        thread.join(30)
    assert (len(shop.calls), result.done, result.value) == (3, False, None)
    assert (shop.clock.now() - shop.began).total_seconds() == 10 + 30
    assert result.failures[0].error.code == "ERR_TEMPORARY_1C_UNAVAILABLE"
