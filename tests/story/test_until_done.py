"""Successive ticks: when they stop, with which exit code, and what they tolerate."""

from collections.abc import Callable

import pytest
from story_ticks import fill
from story_world import World
from watched_world import WatchedWorld

from retake.bucket.failing import FailingBucket, Fault
from retake.bucket.memory import MemoryBucket
from retake.errors import LeaseHeld, StateError, StorageError
from retake.ticking.tick import NO_ORDERS, Orders, Tick
from retake.ticking.until_done import until_done


def run(
    world: World, interval_s: float = 30.0, stopping: Callable[[], bool] = lambda: False, orders: Orders = NO_ORDERS
) -> int:
    return until_done(world.manager().tick, orders, interval_s, world.clock, stopping)


def elapsed(world: World) -> float:
    return (world.clock.now() - World().clock.now()).total_seconds()


class Told:
    """A manager whose ticks end with the given results, the last one repeatedly."""

    def __init__(self, *ticks: Tick | Exception) -> None:
        self.ticks = list(ticks)
        self.orders: list[Orders] = []

    def tick(self, orders: Orders) -> Tick:
        self.orders.append(orders)
        tick = self.ticks.pop(0) if len(self.ticks) > 1 else self.ticks[0]
        if isinstance(tick, Exception):
            raise tick
        return tick


DONE, AGAIN, FAILING = Tick(0, "done", "done"), Tick(0, "waiting"), Tick(75, "failed once")


def test_a_generation_is_ticked_to_its_end() -> None:
    world = World()
    world.vendors.plan("fetch", "running", "running", "ok", "running")
    assert run(world) == 0
    assert f"666/20260101-0000.{'mp4'}" in world.keys_of()
    assert world.vendors.asked["fetch"] == 5
    assert elapsed(world) == 90


def test_failed_steps_are_waited_out() -> None:
    world = World()
    world.vendors.plan("upscale", "refused", "unknown")
    assert run(world) == 0
    assert world.vendors.asked["upscale"] == 3


def test_a_generation_that_fails_ends_with_69_and_no_other_is_begun() -> None:
    world = World()
    world.vendors.plan("imagine", *["refused"] * 99)
    assert run(world) == 69
    assert world.vendors.asked["write"] == 1


def test_nothing_to_do_ends_at_once() -> None:
    world = World()
    fill(world)
    assert run(world) == 0
    assert elapsed(world) == 0


def test_a_refused_key_ends_with_78() -> None:
    world = World()
    world.vendors.plan("imagine", "key")
    assert run(world) == 78
    assert world.vendors.asked["imagine"] == 1


def test_a_held_call_ends_with_75() -> None:
    world = World(on_unknown_outcome="hold")
    world.vendors.plan("imagine", "unknown")
    assert run(world) == 75
    assert world.vendors.asked["imagine"] == 1


def test_too_many_failures_end_with_69_before_anything_is_begun() -> None:
    world = World()
    world.put("config/config_gen.json", {"failed_in_a_row": 3})
    assert run(world) == 69
    assert not world.vendors.asked
    assert run(world, orders=Orders(resume=True)) == 0


def test_an_unreadable_document_is_raised() -> None:
    world = World()
    world.put("config/config_gen.json", b"{")
    with pytest.raises(StateError):
        run(world)


@pytest.mark.parametrize("code", [65, 69, 70, 78])
def test_exit_codes_that_need_a_person_end_it(code: int) -> None:
    told = Told(AGAIN, Tick(code, "no"))
    assert until_done(told.tick, NO_ORDERS, 1, World().clock, lambda: False) == code
    assert len(told.orders) == 2


def test_a_degraded_mode_that_holds_the_generation_back_ends_it_with_75() -> None:
    world = WatchedWorld()
    world.vendors.plan("fetch", "running")
    world.tick()
    world.panel.set(1, None, "a test")
    assert until_done(world.tick, NO_ORDERS, 30, world.clock, lambda: False) == 75
    assert world.generation_id, "it is not done"
    assert not world.vendors.asked["create"]


def test_orders_are_given_once() -> None:
    told = Told(AGAIN, FAILING, DONE)
    orders = Orders(resume=True)
    assert until_done(told.tick, orders, 1, World().clock, lambda: False) == 0
    assert told.orders == [orders, NO_ORDERS, NO_ORDERS]


def hold_for_a_minute(world: World) -> None:
    """Let another process hold the lease."""
    lease = world.bucket.lease("story", "other")
    sleep = world.clock.sleep

    def release_later(seconds: float) -> None:
        sleep(seconds)
        if elapsed(world) >= 60:
            lease.release()

    world.clock.sleep = release_later  # type: ignore[method-assign]


def test_a_lease_held_elsewhere_is_waited_for() -> None:
    world = World()
    hold_for_a_minute(world)
    assert run(world) == 0
    assert world.vendors.billed["create"] == 1


@pytest.mark.parametrize(("fetches", "upscale", "code"), [(2, "ok", 0), (1, "rejected", 69)])
@pytest.mark.parametrize("begins", [False, True])
def test_where_another_tick_ends_the_generation_no_other_is_begun(
    fetches: int, upscale: str, code: int, begins: bool
) -> None:
    world = World()
    world.vendors.plan("fetch", "running", *["ok"] * fetches, "running")
    world.vendors.plan("upscale", upscale)
    runner = world.manager(one_generation=True)
    sleep = world.clock.sleep

    def meanwhile(seconds: float) -> None:
        world.clock.sleep = sleep  # type: ignore[method-assign]
        while not world.ended or (begins and not world.generation_id):
            world.tick()

    world.clock.sleep = meanwhile  # type: ignore[method-assign]
    assert until_done(runner.tick, NO_ORDERS, 30, world.clock, lambda: False) == code
    assert (len(world.ended), world.vendors.billed["imagine"]) == (1, 1 + begins)


def test_an_order_is_carried_out_once_nobody_else_holds_the_lease() -> None:
    world = World()
    world.put("config/config_gen.json", {"failed_in_a_row": 3})
    hold_for_a_minute(world)
    assert run(world, orders=Orders(resume=True)) == 0
    assert world.vendors.billed["create"] == 1


def test_a_signal_while_the_lease_is_waited_for_leaves_the_order_undone_and_says_so() -> None:
    world = World()
    world.put("config/config_gen.json", {"failed_in_a_row": 3})
    hold_for_a_minute(world)
    with pytest.raises(LeaseHeld, match="give the order again"):
        run(world, stopping=lambda: elapsed(world) >= 1, orders=Orders(resume=True))
    assert world.documents.gen.failed_in_a_row == 3


def test_a_bucket_that_is_away_for_a_while_is_waited_for() -> None:
    world = World(FailingBucket(MemoryBucket(), Fault(operation="lease", number=2, times=20)))
    world.vendors.plan("fetch", "running")
    assert run(world) == 0
    assert elapsed(world) == 21 * 30


def test_a_bucket_that_stays_away_is_raised_in_the_end() -> None:
    world = World(FailingBucket(MemoryBucket(), Fault(operation="lease", number=2, times=999)))
    world.vendors.plan("fetch", "running")
    with pytest.raises(StorageError):
        run(world)
    assert elapsed(world) == 21 * 30


def test_a_bucket_that_is_away_at_the_first_tick_is_raised_at_once() -> None:
    world = World(FailingBucket(MemoryBucket(), Fault(operation="lease")))
    with pytest.raises(StorageError):
        run(world)
    assert elapsed(world) == 0


def test_outages_with_good_ticks_in_between_are_borne_for_ever() -> None:
    away = StorageError("away")
    told = Told(*[AGAIN, *[away] * 20] * 5, DONE)
    assert until_done(told.tick, NO_ORDERS, 1, World().clock, lambda: False) == 0


def test_a_signal_while_waiting_ends_it_within_a_moment_with_75() -> None:
    world = World()
    world.vendors.plan("fetch", *["running"] * 9)
    assert run(world, 3600, lambda: elapsed(world) >= 1) == 75
    assert elapsed(world) < 1.5


def test_a_signal_in_a_tick_that_leaves_work_to_do_ends_it_with_75() -> None:
    told = Told(AGAIN)
    assert until_done(told.tick, NO_ORDERS, 1, World().clock, lambda: bool(told.orders)) == 75
    assert len(told.orders) == 1
    later = Told(AGAIN, AGAIN)
    assert until_done(later.tick, NO_ORDERS, 1, World().clock, lambda: len(later.orders) == 2) == 75


@pytest.mark.parametrize("tick", [DONE, Tick(69, "failed", "failed"), Tick(0, "nothing to do", resting=True)])
def test_a_signal_in_the_tick_that_ended_it_changes_nothing(tick: Tick) -> None:
    told = Told(tick)
    assert until_done(told.tick, NO_ORDERS, 1, World().clock, lambda: bool(told.orders)) == tick.exit_code


@pytest.mark.parametrize("interval", [0.0, 0.1, 1.0, 7.3])
def test_the_interval_is_kept(interval: float) -> None:
    world = World()
    world.vendors.plan("fetch", "running")
    assert run(world, interval) == 0
    assert elapsed(world) == pytest.approx(interval)
