"""The numbers of docs/protocol.md other than those of the repeats: breaker, cache, creation, batches, locks …"""

from typing import Any

import pytest
from protocol_robots import POLICIES

from retake.errors import ErrorClass, RobotError
from retake.robots.follow_ups import FIELDS_OF, Channel, Do, FollowUp, Level
from retake.robots.policies import RobotPolicy
from retake.robots.protocol import batch_policy, creation_policy
from retake.robots.recovery import steps_after
from retake.robots.sections import ValidationMode
from retake.robots.wording import action_in_words

OPTIONAL = [name for name, default in RobotPolicy._field_defaults.items() if name != "validate_before_repeat"]

SECTIONS: dict[str, set[str]] = {
    "NR.NSI.1": {"recovery", "breaker"},
    "NR.NSI.2": {"cache", "breaker"},
    "NR.NSI.3": {"recovery"},
    "NR.NSI.4": {"idempotency", "compensation"},
    "NR.NSI.5": {"item_retry", "batch", "idempotency"},
    "NR.NSI.6": {"locks", "compensation"},
    "NR.NSI.7": {"validation", "escalation"},
    "NR.NSI.8": {"consistency", "recovery"},
    "NR.NSI.9": {"stores", "snapshots"},
}


@pytest.mark.parametrize("robot", SECTIONS)
def test_a_robot_has_the_sections_that_its_protocol_names_and_no_other(robot: str) -> None:
    assert {name for name in OPTIONAL if getattr(POLICIES[robot], name) is not None} == SECTIONS[robot]


def numbers(section: Any) -> dict[str, Any]:
    assert section is not None
    return dict(section._asdict())


@pytest.mark.parametrize("robot", ["NR.NSI.1", "NR.NSI.2"])
def test_ten_failures_in_five_minutes_open_the_breaker_of_appius_for_a_minute(robot: str) -> None:
    """It is half-open after 10 failures within 5 minutes and 60 seconds open. Robot 1's recovery mentions a circuit
    breaker without numbers: both call APPIUS, so it is the same one."""
    breaker = POLICIES[robot].breaker
    assert breaker is not None
    assert (breaker.name, *breaker.policy[:3]) == ("appius", 10, 300, 60)


def test_robot_2_reads_results_of_the_last_24_hours_while_there_are_no_new_ones() -> None:
    """Earlier payloads are cached for 24 hours, and used while APPIUS is unavailable, for reading only."""
    cache = numbers(POLICIES["NR.NSI.2"].cache)
    assert cache == {"ttl_s": 24 * 3600, "classes": (ErrorClass.TEMPORARY,), "read_only": True}


def test_robot_4_makes_a_key_from_the_data_looks_before_it_creates_and_goes_read_only_after_five() -> None:
    """A key made from the data, a look before creation and before each repeat, If-None-Match; read-only after 5
    failures in a row, rolled back after 24 hours."""
    assert numbers(POLICIES["NR.NSI.4"].idempotency) == {
        "key_from": "data",
        "check_before_create": True,
        "check_before_retry": True,
        "if_none_match": True,
    }
    policy = creation_policy(POLICIES["NR.NSI.4"])
    assert policy.duplicate_codes == {"ERR_BUSINESS_DUPLICATE_ITEM"}
    assert policy.read_only_after == 5
    assert policy.confirm_within_s == 24 * 3600


def test_robot_4_marks_what_it_could_not_finish_and_undoes_it_unless_it_is_confirmed() -> None:
    """The item is marked as incorrect, and rolled back after 24 hours unless it is confirmed."""
    compensation = POLICIES["NR.NSI.4"].compensation
    assert compensation is not None
    assert compensation.after == "creation"
    assert [action.as_recovery_action() for action in compensation.actions] == [
        {"action": "MARK", "what": "incorrect"},
        {"action": "ROLL_BACK", "delay_seconds": 86400, "unless": "confirmed"},
    ]


def test_robot_5_makes_ten_at_a_time_and_takes_all_of_it_back_above_half() -> None:
    """At most 10 items; partial success is allowed; above 50 % of failures the whole batch is rolled back; it is split
    after MEMORY_OVERFLOW; 3 repeats of the batch, 5 of an item, after 1, 3, 9, 27, 81 s."""
    section = POLICIES["NR.NSI.5"].batch
    assert section is not None
    assert section.partial_success
    policy = batch_policy(POLICIES["NR.NSI.5"])
    assert (policy.size, policy.roll_back_above_percent) == (10, 50)
    assert policy.split_codes == {"ERR_CRITICAL_MEMORY_OVERFLOW"}
    assert (policy.batch.max_retries, policy.item.max_retries) == (3, 5)
    assert [policy.batch.backoff.delay_s(n) for n in range(1, 4)] == [5, 25, 125]
    assert [policy.item.backoff.delay_s(n) for n in range(1, 6)] == [1, 3, 9, 27, 81]
    assert policy.item.jitter_percent == 0
    assert policy.item.retry_if.classes == {ErrorClass.TEMPORARY}


def test_robot_5_has_a_key_for_each_item_and_looks_before_each_repeat() -> None:
    """Each item has a key of its own, and its state is checked before a repeat."""
    assert numbers(POLICIES["NR.NSI.5"].idempotency) == {
        "key_from": "item",
        "check_before_create": False,
        "check_before_retry": True,
        "if_none_match": False,
    }


def test_robot_6_waits_for_a_lock_for_a_minute_and_breaks_it_after_one_and_a_half_for_reads() -> None:
    """Up to 60 seconds; after 90 seconds for reads only; optimistic locks with versions."""
    assert numbers(POLICIES["NR.NSI.6"].locks) == {
        "wait_s": 60,
        "break_after_s": 90,
        "break_for": "reads",
        "optimistic_versions": True,
    }


def test_robot_6_takes_a_partial_setup_back_at_once_and_keeps_a_journal() -> None:
    """A setup that failed in part is rolled back completely; a journal of all operations is kept for audit."""
    compensation = POLICIES["NR.NSI.6"].compensation
    assert compensation is not None
    assert compensation.after == "partial_setup"
    assert [action.as_recovery_action() for action in compensation.actions] == [
        {"action": "ROLL_BACK", "delay_seconds": 0},
        {"action": "JOURNAL", "what": "audit of every operation"},
    ]


def test_robot_7_is_strict_unless_told_otherwise_and_liberal_means_two_percent() -> None:
    """Strict: any violation is an error; liberal: ± 2 % of the step; corrected only with the flag auto_correct."""
    validation = {"mode": ValidationMode.STRICT, "tolerance_percent": 2, "auto_correct": False}
    assert numbers(POLICIES["NR.NSI.7"].validation) == validation
    assert set(ValidationMode) == {"strict", "liberal", "emergency"}


def test_robot_7_notifies_three_recipients() -> None:
    """The operator is warned, the shift supervisor notified, and critical violations stop the production line."""
    escalation = POLICIES["NR.NSI.7"].escalation
    assert escalation is not None
    assert [action.as_recovery_action() for action in escalation.path] == [
        {"action": "TELL", "recipient": "operator", "level": "warning"},
        {"action": "TELL", "recipient": "shift supervisor", "level": "error"},
        {"action": "STOP_LINE"},
    ]
    critical, business = RobotError("ERR_CRITICAL_X", ""), RobotError("ERR_BUSINESS_STEP_VIOLATION", "")
    assert [len([it for it in escalation.path if it.when.holds_for(error)]) for error in (critical, business)] == [3, 2]


def test_robot_7_corrects_by_itself_only_where_the_flag_says_so() -> None:
    corrections = [it for it in POLICIES["NR.NSI.7"].last_failure.actions if it.do is Do.AUTO_CORRECT]
    assert [it.when.codes for it in corrections] == [{"ERR_BUSINESS_STEP_VIOLATION", "ERR_BUSINESS_OUT_OF_RANGE"}]


def test_robot_8_sends_messages_in_transactions_through_an_outbox_and_works_in_sagas() -> None:
    """Transactional messages, an outbox for guaranteed delivery, sagas; the second repeat comes after a validation."""
    assert set(numbers(POLICIES["NR.NSI.8"].consistency).items()) == {
        ("transactional_messages", True),
        ("outbox", True),
        ("saga", True),
    }
    assert POLICIES["NR.NSI.8"].validate_before_repeat == 2
    assert {policy.validate_before_repeat for robot, policy in POLICIES.items() if robot != "NR.NSI.8"} == {None}


def test_robot_9_has_three_stores_and_a_snapshot_every_five_minutes() -> None:
    """InfluxDB or ClickHouse, else Redis, else JSON files, synchronized when the main store is back; a snapshot every
    5 minutes, the last valid one is restored, metrics are replicated to another data centre; at most 10 minutes."""
    assert numbers(POLICIES["NR.NSI.9"].stores) == {
        "primary": "InfluxDB/ClickHouse",
        "secondary": "Redis",
        "emergency": "JSON files",
        "sync_back": True,
    }
    stores = POLICIES["NR.NSI.9"].stores
    assert stores
    assert stores.order == ("InfluxDB/ClickHouse", "Redis", "JSON files")
    snapshots = {"every_s": 300, "restore_last_valid": True, "replicate_elsewhere": True}
    assert numbers(POLICIES["NR.NSI.9"].snapshots) == snapshots
    assert (POLICIES["NR.NSI.9"].retry.max_retries, POLICIES["NR.NSI.9"].retry.ceiling_s) == (None, 600)
    assert {policy.retry.ceiling_s for robot, policy in POLICIES.items() if robot != "NR.NSI.9"} == {None}


@pytest.mark.parametrize(
    ("robot", "code", "steps"),
    [
        # `if error_code == "ERR_TEMPORARY_APPIUS_UNAVAILABLE": … else: escalate_to_human()`
        ("NR.NSI.1", "ERR_TEMPORARY_APPIUS_UNAVAILABLE", ["wait_for_health_check", "retry_with_circuit_breaker"]),
        ("NR.NSI.1", "ERR_BUSINESS_INVALID_EVENT", ["escalate_to_human"]),
        ("NR.NSI.1", "ERR_CRITICAL_PARSE_ERROR", ["escalate_to_human"]),
        # «1. Проверка зависимостей», «2. Автоматический запуск скриптов», «3. При критических ошибках - ручное …»
        ("NR.NSI.3", "ERR_TEMPORARY_1C_UNAVAILABLE", ["check_dependencies", "run_setup_scripts"]),
        ("NR.NSI.3", "ERR_CRITICAL_CONFIG_MISMATCH", ["check_dependencies", "run_setup_scripts", "mend_by_hand"]),
        # «1. Проверка всех зависимостей», «2. … из snapshot», «3. Перестроение индексов», «4. Валидация целостности»
        (
            "NR.NSI.8",
            "ERR_TEMPORARY_REFERENCE_INTEGRITY",
            ["check_dependencies", "restore_snapshot", "rebuild_indexes", "validate_integrity"],
        ),
    ],
)
def test_the_steps_of_a_recovery_match_the_protocol(robot: str, code: str, steps: list[str]) -> None:
    recovery = POLICIES[robot].recovery
    assert recovery is not None
    assert [step.step for step in steps_after(RobotError(code, ""), recovery.steps)] == steps


def test_setup_scripts_run_only_where_the_operator_allows_it() -> None:
    """Setup scripts run automatically, if that is allowed."""
    recovery = POLICIES["NR.NSI.3"].recovery
    assert recovery is not None
    assert {step.step: step.allowed for step in recovery.steps} == {
        "check_dependencies": True,
        "run_setup_scripts": False,
        "mend_by_hand": True,
    }


@pytest.mark.parametrize("do", Do)
def test_each_action_is_reported_in_words_also_with_the_least_that_its_keys_may_have(do: Do) -> None:
    least: dict[str, Any] = {"after_s": 0, "failures_in_a_row": 1, "channel": Channel.SMS, "level": Level.ERROR}
    least |= {"recipient": "operator", "what": "links"}
    action = FollowUp(do, **{name: least[name] for name in FIELDS_OF[do] if name in least})
    assert action_in_words(action).isprintable()
    if do is Do.DEFERRED_RETRY:
        assert action_in_words(action) == "defers the work: all of it again when deferred work is next taken up"
