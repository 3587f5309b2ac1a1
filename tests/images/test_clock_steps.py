"""A corrected clock removes no result before its time."""

from datetime import timedelta

import pytest
from service_world import ServiceWorld

from retake.images import scripts
from retake.images.redis_calls import RedisAway
from retake.images.store import JobSummary


@pytest.mark.parametrize("off", [timedelta(days=-20000), timedelta(days=3650)], ids=["without a battery", "ahead"])
def test_a_result_stays_its_whole_time_after_a_clock_that_was_wrong_is_put_right(
    service_world: ServiceWorld, off: timedelta
) -> None:
    world, right = service_world, service_world.clock.moment
    before = world.ready()
    sweeper = world.sweeper()
    world.clock.moment += off
    sweeper.sweep()
    meanwhile = world.ready()
    world.clock.moment = right
    for _ in range(2):
        sweeper.sweep()
    assert [world.status(it) for it in (before, meanwhile)] == ["ready", "ready"]
    world.clock.sleep(1000)
    sweeper.sweep()
    assert world.keys() == []


def test_a_pass_that_ends_early_after_the_clock_was_set_is_made_up_for(
    service_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, sweeper = service_world, service_world.sweeper()
    job_id, touch = world.ready(), world.store.touch
    world.clock.moment += timedelta(days=3650)

    def away(summary: JobSummary) -> bool:
        raise RedisAway("Redis does not answer")

    monkeypatch.setattr(world.store, "touch", away)
    sweeper.sweep()
    monkeypatch.setattr(world.store, "touch", touch)
    sweeper.sweep()
    assert world.status(job_id) == "ready"


def test_what_is_not_a_job_holds_up_no_clean_up_after_a_step(service_world: ServiceWorld) -> None:
    world, sweeper = service_world, service_world.sweeper()
    world.store.client.rpush("a list", "x")
    world.store.client.sadd(scripts.READY, "a list", "nothing")
    world.clock.moment += timedelta(days=3650)
    sweeper.sweep()
    job_id = world.ready()
    world.clock.sleep(1000)
    sweeper.sweep()
    assert world.status(job_id) == ""
