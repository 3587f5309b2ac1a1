"""The clock of Redis: wrong clocks of machines delete no result early, and keep none for ever."""

import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from local_servers import RunningServer
from service_world import NOWHERE, SETTINGS, ServiceWorld

from retake.clock import FakeClock, SystemClock
from retake.images import redis_calls, redis_clock
from retake.images.cleanup import CleanUp
from retake.images.jobs import iso
from retake.images.redis_calls import RedisAway, open_redis
from retake.images.redis_clock import RedisClock
from retake.images.settings import ImagesSettings
from retake.images.start import open_services
from retake.images.store import JobStore
from retake.images.sweeper import Sweeper


def machine(world: ServiceWorld, off: timedelta = timedelta(0)) -> ServiceWorld:
    """Return the world of a machine whose clock is wrong by `off`."""
    client = world.store.client
    world.store = JobStore(client, RedisClock(client, FakeClock(datetime.now(UTC) + off)))
    return world


def sweep(world: ServiceWorld, ttl_s: float = 1000) -> None:
    services = world.services(SETTINGS._replace(result_ttl_seconds=ttl_s))
    Sweeper(services, CleanUp(world.store, world.bucket, world.table), world.store.clock).sweep()


@pytest.mark.parametrize("off", [timedelta(days=365), timedelta(days=-365)], ids=["ahead", "behind"])
def test_a_machine_with_a_wrong_clock_cleans_up_nothing_before_its_time(
    service_world: ServiceWorld, off: timedelta
) -> None:
    world = machine(service_world)
    before = world.ready()
    sweep(machine(world, off))
    meanwhile = machine(world, off).ready()
    sweep(machine(world))
    assert [world.status(it) for it in (before, meanwhile)] == ["ready", "ready"]
    sweep(machine(world, off), ttl_s=0.0)  # their time is over
    assert world.keys() == []


@pytest.mark.parametrize("off", [timedelta(days=1), timedelta(days=-1)], ids=["ahead", "behind"])
def test_the_rows_of_jobs2_have_the_time_of_redis_too(table_world: ServiceWorld, off: timedelta) -> None:
    settings, clock = ImagesSettings(images=SETTINGS, places=table_world.places), FakeClock(datetime.now(UTC) + off)
    with closing(open_services(settings, "test", with_table=True, clock=clock)) as services:
        table_world.table, now = services.table, services.store.clock.now()
        job_id = table_world.row()
        for since, old in ((-60, False), (60, True)):
            [row] = services.table.open_rows(iso(now + timedelta(seconds=since)))
            assert (row.job_id, row.old) == (job_id, old)


class Suspended(SystemClock):
    """The clock of a machine that was suspended for a while."""

    for_ = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.for_


def test_redis_is_asked_again_after_a_suspension_and_its_last_answer_counts_while_it_is_away(
    redis_server: RunningServer,
) -> None:
    machine, client = Suspended(), open_redis(redis_server.url)
    client.config_resetstat()
    clock = RedisClock(client, machine)
    for hours, asked in ((0, 1), (0, 1), (1, 2)):
        machine.for_ = timedelta(hours=hours)
        assert abs(clock.now().timestamp() - time.time()) < 60
        assert client.info("commandstats")["cmdstat_time"]["calls"] == asked
    redis_server.stop()
    machine.for_ = timedelta(hours=2)
    assert abs(clock.now().timestamp() - time.time()) < 60


def test_while_redis_is_away_it_is_asked_once_a_minute(
    redis_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, client, asked = Suspended(), open_redis(redis_server.url), list[float]()
    ask = client.time

    def counted() -> object:
        asked.append(machine.for_.total_seconds())
        return ask()

    monkeypatch.setattr(client, "time", counted)
    monkeypatch.setattr(redis_calls, "COOLDOWN_S", 0.0)
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + machine.for_.total_seconds())
    monkeypatch.setattr(redis_clock, "time", later)
    clock = RedisClock(client, machine)
    clock.now()
    redis_server.stop()
    for seconds in (61, 62, 120, 123, 124):
        machine.for_ = timedelta(seconds=seconds)
        assert abs(clock.now().timestamp() - time.time() - seconds) < 60
    assert asked == [0, 61, 123]


def test_before_redis_has_answered_there_is_no_time() -> None:
    with pytest.raises(RedisAway):
        RedisClock(open_redis(NOWHERE.redis), FakeClock()).now()
