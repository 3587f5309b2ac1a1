"""A vendor that keeps failing is left alone for a while by all channels, and then tried once."""

from typing import Any

import pytest
from advised import commands_in, take
from story_ticks import PICTURES, Scripted, at
from story_world import KEYS, World

from retake.bucket import ANY
from retake.bucket.failing import FailingBucket
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock
from retake.console.command_context import CommandContext
from retake.degraded.mode import Mode
from retake.operations.after_work import after_work
from retake.operations.status import status_report
from retake.retrying.breaker import Breaker, BreakerState, breakers_of
from retake.settings.shared import BreakerSettings
from retake.story.operations import open_operations
from retake.ticking.tick import Orders, ScriptResult, Tick
from retake.ticking.until_done import until_done
from retake.ticking.vendor_breakers import VendorBreakers, vendor_policy


def protected(world: World, **breaker: Any) -> World:
    """Return a world with a breaker that 3 failures open for ten minutes. No attempt is ever the last."""
    chosen = BreakerSettings(**{"failures": 3, "window_seconds": 3600, "open_seconds": 600, **breaker})
    workflow = world.settings.workflow._replace(max_retries=50)
    world.settings = world.settings._replace(breaker=chosen, workflow=workflow)
    return world


def upscaling(**breaker: Any) -> World:
    """Return a world whose upscale is refused whenever it is ordered."""
    world = protected(at(midjourney_results=PICTURES), **breaker)
    world.vendors.plan("upscale", *["refused"] * 99)
    return world


def breaker_of(world: World, vendor: str) -> Breaker:
    register = breakers_of(world.bucket, world.clock)
    return Breaker(
        vendor,
        register,
        vendor_policy(world.settings.breaker, world.settings.workflow.script_timeout_seconds),
        clock=world.clock,
        owner="operator",
    )


def state_of(world: World, vendor: str) -> BreakerState:
    return breaker_of(world, vendor).state()


def opened() -> tuple[World, Tick]:
    """Return a world whose Midjourney has just failed for the third time, and the tick that rested because of it."""
    world = upscaling()
    while world.vendors.asked["upscale"] < 3:
        world.tick()
    assert world.status == "upscale_trigger_failed"
    world.tick()  # the attempt is counted, which calls nobody
    return world, world.tick()


def test_without_the_setting_there_is_none() -> None:
    world = upscaling(failures=None)
    world.ticks(20)
    assert world.keys_of("breakers/") == []
    assert world.vendors.asked["upscale"] == 10


def test_while_it_is_open_ticks_rest_and_say_until_when_and_what_to_do() -> None:
    world, rest = opened()
    assert (rest.exit_code, rest.resting) == (75, False)
    assert "open until 2026-01-01T00:14:00Z" in rest.why
    assert "python -m retake breaker probe midjourney" in rest.why
    assert rest.until == world.clock.moment.replace(minute=14, second=0)


def test_no_script_runs_and_no_attempt_is_counted_while_it_is_open() -> None:
    world, _ = opened()
    before = world.doc
    world.ticks(5)
    assert world.doc == before
    assert world.vendors.asked["upscale"] == 3


def test_a_tick_that_rests_for_it_writes_nothing() -> None:
    world, _ = opened()
    bucket = FailingBucket(world.bucket)
    world.bucket = bucket  # type: ignore[assignment]
    world.manager().tick()
    assert {operation for operation, _ in bucket.operations} <= {"lease", "read", "list"}


def test_after_its_time_one_call_tries_and_its_failure_opens_it_again() -> None:
    world, _ = opened()
    world.later(minutes=10)
    assert world.tick().exit_code == 75
    assert world.vendors.asked["upscale"] == 4
    world.ticks(2)
    assert world.vendors.asked["upscale"] == 4


def test_after_its_time_one_call_tries_and_its_success_closes_it() -> None:
    world, _ = opened()
    world.later(minutes=10)
    world.vendors.plans.clear()
    assert world.tick().ended == "done"
    assert state_of(world, "midjourney") == BreakerState()


def test_the_operator_orders_a_probe_while_it_is_open() -> None:
    world, _ = opened()
    breaker_of(world, "midjourney").probe()
    world.vendors.plans.clear()
    assert world.tick().ended == "done"


@pytest.mark.parametrize("phase", ["open", "half-open", "unreadable"])
def test_the_command_of_its_alert_is_accepted(phase: str) -> None:
    world, _ = opened()
    if phase == "half-open":
        world.later(minutes=10)
    elif phase == "unreadable":
        [key] = world.keys_of("breakers/")
        world.bucket.write(key, b"{", ANY)
    context = CommandContext({}, clock=world.clock, bucket=world.bucket, settings=world.settings, keys=KEYS)
    [alert] = after_work(context.operations, Mode()).found[0].found
    assert ("cannot be read" in alert.title) == (phase == "unreadable")
    [words] = commands_in(alert.command)
    take(words, context)


def test_tasks_that_are_paid_for_are_not_asked_about_either() -> None:
    world = protected(World(), failures=1)
    world.vendors.plan("fetch", "running", "error")
    world.ticks(2)
    assert world.status == "mj_fetch_failed"
    world.tick()
    assert world.tick().exit_code == 75
    assert world.vendors.asked["fetch"] == 2


def test_other_vendors_are_asked_meanwhile() -> None:
    world, _ = opened()
    for generation in ("gen", "midjourney"):
        world.bucket.delete(f"config/config_{generation}.json")
    world.vendors.plan("write", "refused")
    world.tick()
    assert world.vendors.asked["write"] == 1
    assert len(state_of(world, "openai").failures) == 1


def test_what_is_not_the_vendors_fault_does_not_count() -> None:
    world = protected(Scripted(), failures=1)
    world.vendors.plan("poll", *["running"] * 40)
    while world.status != "runway_poll_timeout":
        world.tick()
    assert isinstance(world, Scripted)
    world.endings.append(ScriptResult(-9))
    world.ticks(2)
    assert world.status == "runway_poll_failed", "the script died"
    assert world.keys_of("breakers/") == []


@pytest.mark.parametrize("outcome", ["rejected", "key"])
def test_neither_does_what_another_try_cannot_mend(outcome: str) -> None:
    world = protected(World(), failures=1)
    world.vendors.plan("imagine", outcome)
    world.tick()
    assert world.keys_of("breakers/") == []


def test_finding_out_about_an_old_call_is_not_a_failure_of_the_vendor() -> None:
    world = protected(World(), failures=1)
    world.vendors.plan("imagine", "dies")
    world.ticks(2)
    assert world.status == "imagine_trigger_failed"
    assert world.keys_of("breakers/") == []


def test_a_probe_that_was_stopped_lets_another_one_try() -> None:
    world, _ = opened()
    world.later(minutes=10)
    assert isinstance(world, Scripted)
    world.endings.append(ScriptResult(75, stopped=True))
    world.tick()
    world.vendors.plans.clear()
    assert world.tick().ended == "done"


def test_ticks_one_after_another_wait_for_it() -> None:
    world, _ = opened()
    world.vendors.plans.clear()
    before = world.clock.now()
    assert until_done(world.manager().tick, Orders(), 1.0, world.clock, lambda: False) == 0
    assert (world.clock.now() - before).total_seconds() > 400


def test_status_and_dry_run_say_that_the_vendor_is_not_called() -> None:
    world, rested = opened()
    before = world.everything()
    [seen] = status_report(open_operations(world.settings, world.clock, bucket=world.bucket), None).pipelines
    assert seen.state.words == "it is waiting"
    [line] = world.manager().dry_run()
    assert "would wait (midjourney has failed too often: open until" in line
    assert world.everything() == before
    idle = protected(World(), failures=1)
    idle.vendors.plan("write", "refused")
    idle.tick()
    idle.put("config/config_gen.json", {})
    assert "would begin 20260101-0001, then wait (openai has failed" in idle.manager().dry_run()[-1]
    assert rested.exit_code == 75


def test_channels_share_it() -> None:
    world, _ = opened()
    clock, other = FakeClock(world.clock.now()), MemoryBucket(world.bucket.store)
    breakers = VendorBreakers(world.settings.breaker, other, clock, "another machine", 900)
    shut = breakers.permit("midjourney")
    assert shut is not None
    assert "midjourney" in getattr(shut, "why", "")
    assert (
        VendorBreakers(world.settings.breaker, MemoryBucket(MemoryStore()), clock, "x", 900).permit("midjourney")
        is not shut
    )
