"""Plays: a real robot on a test clock, against a world that fails as ordered."""

import logging
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_robots import POLICIES, PROTOCOL

from retake.alerts.settings import ALERTS, AlertSettings
from retake.clock import SystemClock
from retake.robots.play import OrderedFailure, PlayedEvent, play, read_failures
from retake.robots.play.performance import Played
from retake.settings.schema import read_table

ALERTED: AlertSettings = read_table(
    ALERTS,
    {"channels": {"team": {"kind": "slack"}, "on-call": {"kind": "pagerduty"}}},
    "ALERTS",
    [],
)


@pytest.fixture(autouse=True)
def _no_real_wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def sleep(self: SystemClock, seconds: float) -> None:
        raise AssertionError(seconds)

    monkeypatch.setattr(SystemClock, "sleep", sleep)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def played(robot: str, *orders: str, seed: int = 1) -> Played:
    policy = POLICIES[robot]
    return play(policy, read_failures(orders, policy), seed=seed, alerts=ALERTED)


def attempts(it: Played) -> list[PlayedEvent]:
    return [event for event in it.timeline if event.attempt is not None]


def waits(it: Played) -> list[float]:
    return [event.wait_s for event in it.timeline if event.wait_s is not None]


def actions(it: Played) -> list[str]:
    return [event.action for event in it.timeline if event.action is not None]


def words(it: Played) -> list[str]:
    return [event.what for event in it.timeline]


def class_a(robot: str) -> str:
    return next(code for code, error_class in PROTOCOL[robot].errors.items() if error_class == "A")


@pytest.mark.parametrize("robot", POLICIES)
def test_without_failures_the_work_is_done_at_once(robot: str) -> None:
    it = played(robot)
    assert (it.robot, it.ended) == (robot, "done")
    assert [(event.attempt, event.error_code, event.at_s) for event in attempts(it)] == [(1, None, 0)]
    assert (waits(it), actions(it)) == ([], [])


@pytest.mark.parametrize("robot", [it for it in POLICIES if not PROTOCOL[it].endless])
def test_a_temporary_failure_is_repeated_after_the_intervals_of_the_protocol(robot: str) -> None:
    protocol, code = PROTOCOL[robot], class_a(robot)
    it = played(robot, f"{code}x{len(protocol.waits_s) + 1}")
    failed = [event for event in attempts(it) if event.error_code]
    assert [event.attempt for event in failed] == [*range(1, len(protocol.waits_s) + 2)]
    found = waits(it)
    assert len(found) == len(protocol.waits_s)
    spread = protocol.jitter_percent / 100
    for wait_s, usual_s in zip(found, protocol.waits_s, strict=True):
        assert usual_s * (1 - spread) - 1e-3 <= wait_s <= usual_s * (1 + spread) + 1e-3
    between = [after.at_s - before.at_s for before, after in pairwise(failed)]
    assert between == pytest.approx(found, abs=0.002)
    done = {action["action"] for action in protocol.follow_ups[code]} - {"RETRY", "CONTINUE_WITH_REST"}
    assert done <= {name.upper() for name in actions(it)}


@pytest.mark.parametrize(("robot", "code"), [(robot, code) for robot in POLICIES for code in PROTOCOL[robot].errors])
def test_every_error_of_every_robot_is_played_to_its_end(robot: str, code: str) -> None:
    protocol = PROTOCOL[robot]
    it = played(robot, code)
    first = next(event for event in it.timeline if event.error_code)
    assert (first.error_code, first.at_s) == (code, 0)
    if code in protocol.repeated:
        assert it.ended == "done"
        assert attempts(it)[-1].attempt == 2
    elif "DUPLICATE" in code:
        assert (it.ended, actions(it)) == ("done", ["return_existing"])
    elif robot == "NR.NSI.5" and code == "ERR_CRITICAL_MEMORY_OVERFLOW":
        assert (it.ended, actions(it)) == ("done", ["split_batch"])
    else:
        assert it.ended == ("done" if robot == "NR.NSI.2" else "failed")
        told = [action["action"] for action in protocol.follow_ups[code]]
        own = [name for name in actions(it) if name not in ("roll_back", "deferred_retry")]
        partly = own[1:] if robot == "NR.NSI.6" else own  # the audit of the compensation
        assert [name.upper() for name in partly] == [name for name in told if name not in ("RETRY", "ROLL_BACK")]


def test_the_same_seed_makes_the_same_play_and_another_one_other_waits() -> None:
    order = "ERR_TEMPORARY_APPIUS_UNAVAILABLEx11"
    assert played("NR.NSI.1", order) == played("NR.NSI.1", order)
    assert waits(played("NR.NSI.1", order)) != waits(played("NR.NSI.1", order, seed=2))


@pytest.mark.parametrize(("robot", "code"), [("NR.NSI.1", "APPIUS_UNAVAILABLE"), ("NR.NSI.2", "API_TIMEOUT")])
def test_the_tenth_failure_opens_the_breaker_and_a_probe_closes_it(robot: str, code: str) -> None:
    it = played(robot, f"{code}x11")
    (opens, again), half_open = (
        [event.at_s for event in it.timeline if text in event.what] for text in (" opens for 60 s", " is half-open")
    )
    failed = [event.at_s for event in attempts(it) if event.error_code]
    assert (opens, again) == (failed[9], failed[10])
    assert half_open == pytest.approx([opens + 60, again + 60])
    assert words(it).count("the breaker appius closes") == 1
    assert it.ended == "done"


def test_deferred_work_is_resumed_after_thirty_minutes() -> None:
    it = played("NR.NSI.2", "API_TIMEOUTx6")
    (deferred,) = (event for event in it.timeline if event.action == "deferred_retry")
    (again,) = (event for event in it.timeline if event.what == "takes up the deferred work-1 again")
    assert again.at_s - deferred.at_s == pytest.approx(1800)
    assert (it.ended, it.timeline[-2].attempt, it.timeline[-2].at_s) == ("done", 1, again.at_s)
    assert "returns the result of 60 min ago from the cache, for reading only" in words(it)


def test_alerts_go_to_the_channels_of_the_settings_and_are_closed() -> None:
    told = [text for text in words(played("NR.NSI.2", "API_TIMEOUTx6")) if text.startswith("alert to")]
    assert told == [
        "alert to on-call (pagerduty): [CRITICAL] NR.NSI.2 failed for good",
        "alert to on-call (pagerduty): [CRITICAL] Resolved: NR.NSI.2 failed for good",
    ]


def test_an_alert_that_is_open_is_not_told_again_by_the_next_failure() -> None:
    told = [text for text in words(played("NR.NSI.4", "DB_CONFLICTx10")) if text.startswith("alert to")]
    assert [text.partition(": ")[2][:9] for text in told] == ["[WARNING]", "[ERROR] N"]


def test_after_five_items_that_failed_nothing_more_is_created() -> None:
    it = played("NR.NSI.4", "DB_CONFLICTx1000")
    assert len(attempts(it)) == 25
    assert [name for name in actions(it) if name == "read_only"] == ["read_only"]
    assert it.timeline[-1].error_code == "ERR_CRITICAL_READ_ONLY"


def test_an_item_that_is_not_finished_is_marked_and_rolled_back_after_a_day() -> None:
    it = played("NR.NSI.4", "INTEGRATION_ERROR@finishx5")
    assert actions(it) == ["mark", "incident", "backup_system", "escalate", "roll_back"]
    assert it.timeline[-1].at_s == 86400


def test_a_batch_is_rolled_back_where_more_than_half_of_it_failed() -> None:
    assert "ends the batch: 5 created, 5 failed" in words(played("NR.NSI.5", "INVALID_SCRAP_TYPEx5"))
    six = played("NR.NSI.5", "INVALID_SCRAP_TYPEx6")
    assert "ends the batch: 0 created, 6 failed, 4 rolled back" in words(six)


def test_an_item_of_a_batch_is_repeated_by_itself() -> None:
    it = played("NR.NSI.5", "BATCH_FAILURE@itemx6")
    assert waits(it) == [1, 3, 9, 27, 81]
    assert actions(it) == ["continue_with_rest", "journal"]


def test_locks_are_released_after_each_attempt_and_a_half_done_setup_is_rolled_back() -> None:
    it = played("NR.NSI.6", "INVALID_GRID_VALUEx4")
    locks = [text.partition(" the")[0] for text in words(it) if "the lock" in text]
    assert locks == ["takes", "releases"] * 4
    assert actions(it)[:3] == ["roll_back", "journal", "manual_mode"]


def test_a_saga_is_undone_and_its_message_delivered_once_it_is_done() -> None:
    it = played("NR.NSI.8", "REFERENCE_INTEGRITYx2")
    assert [text for text in words(it) if "saga is undone" in text or "validates" in text or "outbox" in text] == [
        *["releases them: the saga is undone"] * 2,
        "validates the data",
        "the outbox delivers: work-1 is linked",
    ]
    assert waits(it) == [0, 30]


def test_robot_9_goes_on_for_as_long_as_its_store_is_away() -> None:
    it = played("NR.NSI.9", "METRICS_STORAGE_UNAVAILABLEx1000")
    assert waits(it)[:12] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]
    assert (len(attempts(it)), it.ended, len(actions(it))) == (1001, "done", 3)
    assert words(it)[-1] == "1000 buffered values copied to the main store"


def test_a_value_that_is_not_on_the_grid_is_measured_once_in_each_work() -> None:
    it = played("NR.NSI.7", "STEP_VIOLATIONx2")
    assert [(event.attempt, event.error_code) for event in attempts(it)] == [(1, "ERR_BUSINESS_STEP_VIOLATION")] * 2


@given(st.data())
@settings(max_examples=60)
def test_any_failures_are_played_to_an_end_in_the_order_of_time(data: st.DataObject) -> None:
    robot = data.draw(st.sampled_from([*POLICIES]))
    orders = st.tuples(st.sampled_from([*POLICIES[robot].errors]), st.integers(1, 12))
    ordered = [f"{code}x{count}" for code, count in data.draw(st.lists(orders, max_size=4))]
    it = played(robot, *ordered, seed=data.draw(st.integers(0, 9)))
    times = [event.at_s for event in it.timeline]
    assert times == sorted(times)
    assert it.ended in ("done", "failed")


def test_orders_are_read() -> None:
    policy = POLICIES["NR.NSI.4"]
    code = "ERR_TEMPORARY_DB_CONFLICT"
    assert read_failures([f"{code}x2", "DB_CONFLICT@finish"], policy) == [
        OrderedFailure(code),
        OrderedFailure(code),
        OrderedFailure(code, "finish"),
    ]


@pytest.mark.parametrize(
    "order",
    [
        *("", "x3", "nonsense", "ERR_TEMPORARY_DB_CONFLICTx0", "DB_CONFLICTx1001", f"DB_CONFLICTx{'9' * 5000}"),
        *("A" * 10_000, "DB_CONFLICT@item", "DB_CONFLICTx-1", "DB_CONFLICT x3", "DB_CONFLICT\x1b[31m", "\ud800"),
    ],
)
def test_an_invalid_order_is_refused_in_one_short_line(order: str) -> None:
    with pytest.raises(ValueError, match=r"use CODE or CODExN|order fewer|no such place") as caught:
        read_failures([order], POLICIES["NR.NSI.4"])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def test_a_code_that_the_robot_does_not_have_is_answered_with_those_that_it_has() -> None:
    with pytest.raises(ValueError, match="did you mean ERR_TEMPORARY_DB_CONFLICT") as caught:
        read_failures(["ERR_TEMPORARY_DB_CONFLIT"], POLICIES["NR.NSI.4"])
    assert all(code in str(caught.value) for code in POLICIES["NR.NSI.4"].errors)
