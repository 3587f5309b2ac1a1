"""Concurrent commands on the dead messages: what one of them holds, the others wait for."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Semaphore, Timer
from typing import Any

import pytest
from service_world import ServiceWorld
from test_images_console import dead, wait_for_dead

from retake.images.dead_messages import DeadMessages
from retake.images.messages import TOPOLOGY
from retake.rabbit.broker import Broker, BrokerAway
from retake.rabbit.browsing import held


def test_two_simultaneous_commands_each_find_their_message(service_world: ServiceWorld) -> None:
    world, second = service_world, Broker(service_world.places.rabbitmq, TOPOLOGY, name="second")
    jobs = [world.failed("no luck") for _ in range(12)]
    for it in jobs:
        dead(world, it)
    wait_for_dead(world, len(jobs))
    second.start()
    first_letters, second_letters = (DeadMessages(world.store, it, None) for it in (world.broker, second))
    together = Barrier(2, timeout=60)

    def requeue(letters: DeadMessages, names: list[str]) -> None:
        for name in names:
            together.wait()
            letters.requeue(letters.find(name))

    def drop(letters: DeadMessages, names: list[str]) -> list[int]:
        return [letters.drop(letters.find(name)) for name in names if together.wait() >= 0]

    with ThreadPoolExecutor(2) as pool:
        requeued, dropped = pool.submit(requeue, first_letters, jobs[:6]), pool.submit(drop, second_letters, jobs[6:])
        assert (requeued.result(), dropped.result()) == (None, [1] * 6)
    second.close()
    assert sorted(world.sent()) == sorted(jobs[:6])
    wait_for_dead(world, 0)


def test_only_the_job_that_is_named_is_looked_up(service_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world, looked_up = service_world, list[str]()
    jobs = [world.failed() for _ in range(3)]
    for it in jobs:
        dead(world, it)
    wait_for_dead(world, len(jobs))
    get = world.store.get
    monkeypatch.setattr(world.store, "get", lambda job_id: looked_up.append(job_id) or get(job_id))
    found = DeadMessages(world.store, world.broker, None).find(jobs[1][:13])
    assert (found.name, found.job and found.job.status) == (jobs[1], "failed")
    assert looked_up == [jobs[1]]


@pytest.mark.parametrize("work", [DeadMessages.all, DeadMessages.drop_gone])
def test_the_dead_messages_stay_held_while_they_take_long_to_arrive(
    service_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch, work: Callable[[DeadMessages], object]
) -> None:
    world, renew, renewed = service_world, service_world.store.renew_lock, Semaphore(0)

    def noted(what: str, seconds: float) -> None:
        renew(what, seconds)
        renewed.release()

    async def slow(*given: Any) -> Any:
        for _ in range(2):
            assert await asyncio.to_thread(renewed.acquire, timeout=60)
        return await held(*given)

    monkeypatch.setattr("retake.images.dead_messages._LOCK_S", 0.3)
    monkeypatch.setattr(world.store, "renew_lock", noted)
    monkeypatch.setattr("retake.rabbit.broker.held", slow)
    work(DeadMessages(world.store, world.broker, None))


def test_no_renewal_is_left_behind_when_the_command_ends(
    service_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, renew, begun, answered = service_world, service_world.store.renew_lock, Event(), Event()
    ends: list[bool] = []

    def slow(what: str, seconds: float) -> None:
        begun.set()
        answered.wait(60)
        ends.append(renew(what, seconds))

    def refuse(*_: object) -> list[Any]:
        assert begun.wait(60)
        Timer(0.2, answered.set).start()
        raise BrokerAway("RabbitMQ refuses the password")

    monkeypatch.setattr(world.store, "renew_lock", slow)
    monkeypatch.setattr(world.broker, "browse", refuse)
    with pytest.raises(BrokerAway):
        DeadMessages(world.store, world.broker, None).all()
    assert ends == [True], "its Redis client is closed next"
