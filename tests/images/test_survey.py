"""What `images status` counts while others work."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import pytest
from service_world import ServiceWorld
from worker_world import eventually

from retake.images.dead_messages import DeadMessages
from retake.images.messages import DEAD_QUEUE
from retake.images.settings import ImageJobSettings
from retake.images.survey import ImageSurvey, survey


def test_the_dead_messages_that_a_command_holds_are_counted(
    service_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, waits = service_world, Event()

    def pause(seconds: float) -> None:
        waits.set()
        time.sleep(seconds)

    def keep(body: bytes) -> bool:
        looks.append(pool.submit(survey, ImageJobSettings(), world.store, world.broker))
        assert waits.wait(60)
        return False

    world.broker.publish("DeadExchange", "", b"hello")
    eventually(lambda: world.broker.depth(DEAD_QUEUE) == 1)
    monkeypatch.setattr("retake.images.dead_messages.sleep", pause)
    looks: list[Future[ImageSurvey]] = []
    with ThreadPoolExecutor(1) as pool:
        assert DeadMessages(world.store, world.broker, None)._pull(keep) == []
        assert looks[0].result().dead_messages == 1
