"""Deaths of a worker before and after each of its calls of Redis, ComfyUI, the bucket and RabbitMQ, one by one.

A death raises `Died`, which no code of the package catches: the worker's thread ends on the spot, its claim expires,
and RabbitMQ takes its message back.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread, get_ident
from typing import Any

import pytest
from worker_world import LONG_S, WorkerWorld

from retake.images.redis_calls import RedisCalls
from retake.images.worker import QueueWorker
from retake.rabbit.broker import Delivery
from retake.testing.vendors import Died
from retake.vendors import comfyui, http


class WorkerFate:
    """Counts the points at which the worker's own thread can die, and dies at the planned one."""

    def __init__(self) -> None:
        self.count, self.planned, self._thread = 0, -1, 0

    def plan(self, point: int) -> None:
        self.count, self.planned = 0, point

    def point(self) -> None:
        if get_ident() == self._thread:
            self.count += 1
            if self.count - 1 == self.planned:
                raise Died

    def mortal(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call, with a possible death before and after it."""

        def done(*arguments: Any, **named: Any) -> Any:
            self.point()
            result = call(*arguments, **named)
            self.point()
            return result

        return done

    def run(self, worker: QueueWorker) -> Thread:
        """Run the worker in a thread until it dies or is stopped."""

        def work() -> None:
            self._thread = get_ident()
            with suppress(Died):
                worker.run()

        thread = Thread(target=work, daemon=True)
        thread.start()
        return thread


@contextmanager
def mortal(world: WorkerWorld, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerFate]:
    """Let workers die before and after each call during the block."""
    fate = WorkerFate()
    with monkeypatch.context() as patch:
        patch.setattr(RedisCalls, "ask", fate.mortal(RedisCalls.ask))
        patch.setattr(comfyui, "exchange", fate.mortal(http.exchange))
        patch.setattr(Delivery, "ack", fate.mortal(Delivery.ack))
        for method in ("read", "write"):
            patch.setattr(world.bucket, method, fate.mortal(getattr(world.bucket, method)))
        yield fate


def ended(thread: Thread) -> None:
    """Wait for the end of a worker's thread."""
    thread.join(LONG_S)
    assert not thread.is_alive()
