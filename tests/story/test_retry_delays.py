"""How long a failed step waits before its retry, over several ticks."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from story_ticks import PICTURES, UPSCALED, at
from story_world import World

from retake.clock import parse_stamp
from retake.errors import Code, Refused
from retake.settings.shared import RetryingSettings
from retake.story.decision import Act, Action
from retake.story.documents import MidjourneyDocument, Step
from retake.story.pipeline import _until_given_up
from retake.story.retry_policy import MAX_RETRY_AFTER_S, StepFailure, given_up_at, retry_delay, step_policy
from retake.story.settings import Settings
from retake.ticking.tick import Orders, Tick
from retake.ticking.until_done import until_done

REFUSED = Refused(Code.UNAVAILABLE, "HTTP 500")


def wait_s(chosen: Settings, error: Refused, retries: int, since_s: float, random: Callable[[], float]) -> int | None:
    chosen = chosen._replace(workflow=chosen.workflow._replace(max_retries=99))
    at = datetime(2026, 1, 1, microsecond=round(since_s * 1e6), tzinfo=UTC)
    return retry_delay(chosen, StepFailure(Step.IMAGINE, error, retries, at), random)


def settings(**retrying: Any) -> Settings:
    return Settings(retrying=RetryingSettings(**{"jitter_percent": 0, **retrying}))


def waiting(world: World, **retrying: Any) -> World:
    world.settings = world.settings._replace(retrying=settings(**retrying).retrying)
    return world


def failing(**retrying: Any) -> World:
    """Return a world whose upscale fails whenever it is ordered."""
    world = waiting(at(midjourney_results=PICTURES), **retrying)
    world.vendors.plan("upscale", *["refused"] * 99)
    return world


# --- the settings as a policy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("none", [0, 0, 0, 0, 0]),
        ("fixed", [60, 60, 60, 60, 60]),
        ("linear", [60, 120, 180, 240, 300]),
        ("exponential", [60, 180, 540, 1620, 3600]),
        ("fibonacci", [60, 60, 120, 180, 300]),
    ],
)
def test_each_strategy_waits_as_its_name_says_up_to_the_longest(strategy: str, expected: list[float]) -> None:
    chosen = settings(strategy=strategy, first_seconds=60, factor=3)
    assert [wait_s(chosen, REFUSED, retries, 0.0, lambda: 0.5) for retries in range(5)] == expected


@given(st.floats(0, 1), st.integers(0, 3))
def test_jitter_keeps_within_its_percent(random: float, retries: int) -> None:
    chosen = settings(strategy="exponential", jitter_percent=25)
    wait = wait_s(chosen, REFUSED, retries, 0.0, lambda: random)
    assert 45 * 2**retries <= wait <= min(75 * 2**retries + 1, 3600)


def test_no_wait_is_shorter_for_the_part_of_a_second_that_a_stamp_leaves_out() -> None:
    assert wait_s(settings(strategy="fixed", first_seconds=2), REFUSED, 0, 0.4, lambda: 0.5) == 3


def test_the_policy_has_the_attempts_of_the_workflow() -> None:
    assert step_policy(settings().workflow, Step.IMAGINE).max_retries == Settings().workflow.max_retries


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, 60), (5, 60), (90, 90), (90.2, 91), (MAX_RETRY_AFTER_S, 3600), (1e9, 3600)]
)
def test_what_the_vendor_asks_for_is_waited_for_up_to_an_hour(asked: float | None, expected: int) -> None:
    error = Refused(Code.RATE_LIMIT, "HTTP 429", retry_after_s=asked)
    assert wait_s(settings(strategy="fixed"), error, 0, 0.0, lambda: 0.5) == expected


def test_what_the_vendor_asks_for_is_waited_for_under_the_default_too() -> None:
    assert wait_s(Settings(), Refused(Code.RATE_LIMIT, "HTTP 429", retry_after_s=600), 0, 0.0, lambda: 0.5) == 600


@pytest.mark.parametrize("strategy", ["none", "fixed"])
def test_nothing_waits_for_a_time_that_a_clock_set_back_since_had_written(strategy: str) -> None:
    world = failing(strategy=strategy)
    world.later(days=365)
    world.tick()
    assert world.status == "upscale_trigger_failed"
    world.later(days=-365)
    assert "attempt 1/3" in world.tick().why
    assert world.doc.retries == {"upscale": 1}


def test_nor_does_a_refused_key() -> None:
    world = at(midjourney_results=PICTURES)
    world.vendors.plan("upscale", "key")
    world.later(days=365)
    assert world.tick().exit_code == 78
    world.later(days=-365)
    assert world.tick().ended == "done"


def test_a_machine_whose_clock_is_a_little_behind_keeps_the_wait() -> None:
    world = failing(strategy="fixed", first_seconds=120)
    world.tick()
    world.later(seconds=-100)
    assert "is due at" in world.tick().why


@pytest.mark.parametrize(("kind", "status"), [("fetch", "timed_out_mock_needed"), ("poll", "task_failed_max_retries")])
def test_a_task_that_was_ordered_by_a_clock_that_was_ahead_is_given_up_in_its_time(kind: str, status: str) -> None:
    world = at(midjourney_results=PICTURES if kind == "fetch" else UPSCALED, workflow={"max_retries": 100})
    world.vendors.plan(kind, *["running"] * 999)
    world.later(days=365)
    world.tick()
    world.later(days=-365)
    world.media.broken = True  # no mock is made
    for _ in range(20):
        world.tick()
        world.later(minutes=30)
    assert world.ended == ["failed"] if kind == "poll" else world.status == status


# --- when it is due --------------------------------------------------------------------------------------------------


def test_a_record_says_when_its_step_is_due_again() -> None:
    error = {"timestamp": "2026-01-01T00:00:10Z", "recovery_actions": [{"action": "RETRY", "delay_seconds": 50}]}
    assert MidjourneyDocument({"last_error": error}).error.retry_at == parse_stamp("2026-01-01T00:01:00Z")


@pytest.mark.parametrize(
    "change",
    [
        {"timestamp": None},
        {"timestamp": "yesterday"},
        {"recovery_actions": None},
        {"recovery_actions": []},
        {"recovery_actions": "RETRY"},
        {"recovery_actions": ["RETRY"]},
        {"recovery_actions": [{"action": "ESCALATE"}]},
        {"recovery_actions": [{"action": "RETRY"}]},
        {"recovery_actions": [{"action": "RETRY", "delay_seconds": "soon"}]},
        {"recovery_actions": [{"action": "RETRY", "delay_seconds": 1e300}]},
        {"recovery_actions": [{"action": "RETRY", "delay_seconds": float("nan")}]},
    ],
)
def test_a_record_that_does_not_say_it_says_nothing(change: dict[str, Any]) -> None:
    error = {"timestamp": "2026-01-01T00:00:10Z", "recovery_actions": [{"action": "RETRY", "delay_seconds": 50}]}
    assert MidjourneyDocument({"last_error": {**error, **change}}).error.retry_at is None


# --- over ticks ------------------------------------------------------------------------------------------------------


def test_ticks_rest_until_the_wait_is_over_and_no_attempt_is_counted_meanwhile() -> None:
    world = failing(strategy="fixed", first_seconds=150)
    world.tick()  # at 0 s; a tick every 60 s
    rests = world.ticks(2)
    assert [(rest.exit_code, rest.resting) for rest in rests] == [(0, False)] * 2
    assert rests[0].until == parse_stamp("2026-01-01T00:02:30Z")
    assert rests[0].why == "attempt 1/3 for status upscale_trigger_failed is due at 2026-01-01 00:02:30 UTC"
    assert (world.status, world.doc.retries) == ("upscale_trigger_failed", {})
    world.tick()
    assert (world.status, world.doc.retries) == (None, {"upscale": 1})
    world.tick()
    assert world.vendors.asked["upscale"] == 2


def test_the_record_of_a_failure_says_how_long_it_waits_and_after_the_last_one_what_a_person_can_do() -> None:
    world = failing(strategy="linear", first_seconds=30)
    seen: list[dict[str, Any]] = []
    while not world.ended:
        world.tick()
        error = world.doc.raw.get("last_error")
        if error and (not seen or error["error_id"] != seen[-1]["error_id"]):
            seen.append(error)
    actions = [error["recovery_actions"][0] for error in seen]
    assert [action.get("delay_seconds") for action in actions] == [30, 60, 90, None]
    assert (actions[-1]["action"], actions[-1]["recipient"]) == ("ESCALATE", "operator")
    assert world.vendors.asked["upscale"] == 4


def test_a_task_that_ended_as_failed_waits_by_the_attempts_of_the_step_that_ordered_it() -> None:
    world = waiting(World(), strategy="linear", first_seconds=30)
    world.vendors.plan("fetch", "failed", "failed")
    world.tick()
    assert world.doc.raw.get("last_error")
    assert world.doc.raw.get("last_error")["robot_id"] == "story.imagine"
    world.ticks(2)
    assert world.doc.raw.get("last_error")["recovery_actions"] == [{"action": "RETRY", "delay_seconds": 60}]


def test_the_operator_ends_a_wait_by_resume() -> None:
    world = failing(strategy="fixed", first_seconds=3600)
    world.tick()
    assert world.tick(Orders(resume=True)).exit_code == 0
    assert (world.status, world.doc.retries) == (None, {"upscale": 1})


def test_ticks_one_after_another_wait_no_shorter_and_hardly_longer_than_they_have_to() -> None:
    world = failing(strategy="fixed", first_seconds=600)
    world.vendors.plans["upscale"].clear()
    world.vendors.plan("upscale", "refused")
    began = world.clock.now()
    assert until_done(world.manager().tick, Orders(), 30.0, world.clock, lambda: False) == 0
    assert timedelta(seconds=600) <= world.clock.now() - began <= timedelta(seconds=700)


def test_a_wait_ends_where_the_task_is_given_up_before_the_retry_is_due() -> None:
    asked = datetime(2026, 1, 1, 9, 0, tzinfo=UTC)
    doc = MidjourneyDocument({"runway_task": {"task_id": "t", "requested_at_utc": "2026-01-01T09:00:00Z"}})
    limits = Settings().workflow
    assert given_up_at(doc, Step.RUNWAY_POLL, limits) == asked + timedelta(seconds=limits.runway_timeout_seconds)
    assert given_up_at(doc, Step.UPSCALE, limits) is None
    assert given_up_at(MidjourneyDocument({}), Step.RUNWAY_POLL, limits) is None
    waits = Action(Act.WAIT, Step.RUNWAY_POLL, "due later", until=asked + timedelta(days=1))
    tick = Tick(0, waits.why, until=waits.until)
    assert _until_given_up(tick, waits, doc, limits).until == asked + timedelta(seconds=limits.runway_timeout_seconds)
    assert _until_given_up(tick, waits._replace(step=Step.UPSCALE), doc, limits).until == waits.until
