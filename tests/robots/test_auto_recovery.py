"""What follows any robot's error by its class (docs/protocol.md, section "Automatic recovery")."""

from typing import Any

import pytest
from protocol_robots import A_PERSON, POLICIES, PROTOCOL, THE_MANAGEMENT, seeds

from retake.errors import RobotError
from retake.robots.recovery import auto_recovery_protocol, follow_ups_of


def protocol(robot: str, code: str, **given: Any) -> list[dict[str, Any]]:
    given = {"repeat": 1, "random": lambda: 0.5, **given}
    found = auto_recovery_protocol(RobotError(code, ""), POLICIES[robot].retry, **given)
    return [action.as_recovery_action() for action in found]


@pytest.mark.parametrize("robot", PROTOCOL)
def test_a_temporary_error_is_tried_again_after_the_robots_own_wait(robot: str) -> None:
    """`schedule_retry(robot_id, delay=calculate_backoff())`."""
    for repeat, wait in enumerate(PROTOCOL[robot].waits_s, 1):
        assert protocol(robot, "ERR_TEMPORARY_X", repeat=repeat) == [{"action": "RETRY", "delay_seconds": wait}]


def test_its_wait_has_the_jitter_of_the_robot() -> None:
    drawn = [protocol("NR.NSI.1", "ERR_TEMPORARY_X", repeat=3, random=draw)[0]["delay_seconds"] for draw in seeds(100)]
    assert 24 <= min(drawn) < 26
    assert 38 < max(drawn) <= 40


def test_a_business_error_with_a_correction_is_corrected_and_tried_again_after_a_minute() -> None:
    """`if is_auto_correctable(error_code): execute_correction_script(); schedule_retry(robot_id, delay=60)`."""
    found = protocol(
        "NR.NSI.7", "ERR_BUSINESS_STEP_VIOLATION", is_auto_correctable={"ERR_BUSINESS_STEP_VIOLATION"}.__contains__
    )
    assert found == [{"action": "CORRECT"}, {"action": "RETRY", "delay_seconds": 60}]


def test_any_other_business_error_is_a_ticket_and_a_person_is_told() -> None:
    """`create_support_ticket(); notify_human_operator()`."""
    assert protocol("NR.NSI.7", "ERR_BUSINESS_OUT_OF_RANGE") == A_PERSON


def test_a_critical_error_is_an_incident_goes_to_the_backup_system_and_to_the_management() -> None:
    """`trigger_incident_response(); switch_to_backup_system(); escalate_to_management()`."""
    assert protocol("NR.NSI.5", "ERR_CRITICAL_MEMORY_OVERFLOW") == THE_MANAGEMENT


@pytest.mark.parametrize(
    ("kind", "expected"), [("TEMPORARY", A_PERSON), ("BUSINESS", A_PERSON), ("CRITICAL", THE_MANAGEMENT)]
)
def test_an_error_for_which_a_robot_has_no_action_does_not_vanish(kind: str, expected: list[dict[str, Any]]) -> None:
    found = follow_ups_of(RobotError(f"ERR_{kind}_NEW", ""), POLICIES["NR.NSI.7"].last_failure.actions)
    assert [action.as_recovery_action() for action in found] == expected
