"""The end of the loop: everything that runs is cancelled, and tasks begun by that may finish, within a second."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from threading import Event
from typing import Any, TypeVar

import pytest

from retake.rabbit.loop_thread import LoopEnded, LoopThread

T = TypeVar("T")


def test_what_a_task_begins_at_its_end_is_let_finish() -> None:
    """The library closes a connection in a task of its own, which begins once its reader has ended."""
    loop = LoopThread("test")
    loop.start()
    closed: list[str] = []
    closing: list[asyncio.Task[None]] = []

    async def close() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        closed.append("connection")

    async def read() -> None:
        await asyncio.Event().wait()

    async def begin() -> None:
        reader = asyncio.create_task(read())
        reader.add_done_callback(lambda _: closing.append(reader.get_loop().create_task(close())))

    loop.call(begin(), 5.0)
    loop.stop()
    assert closed == ["connection"]
    assert closing[0].done()


def test_what_is_begun_meanwhile_is_cancelled_only_once_it_has_begun() -> None:
    """A connection that is made just as the loop ends: its writer closes the socket, if it ever runs."""
    loop = LoopThread("test")
    loop.start()
    closed: list[int] = []
    tasks: list[asyncio.Task[None]] = []

    async def write(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closed.append(number)

    async def connect(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(number):
                await asyncio.sleep(0)
            tasks.append(asyncio.create_task(write(number)))

    async def begin() -> None:
        tasks.extend(asyncio.create_task(connect(number)) for number in range(9))

    loop.call(begin(), 5.0)
    loop.stop()
    assert sorted(closed) == [*range(9)]


def test_a_task_that_does_not_end_is_not_waited_for_without_end() -> None:
    loop = LoopThread("test")
    loop.start()
    cancelled: list[None] = []

    async def stay() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(None)

    loop.submit(stay())
    loop.stop()
    assert cancelled


def test_what_takes_too_long_is_cancelled_and_the_loop_goes_on() -> None:
    """Otherwise a message might be sent after its sender was told that it was not."""
    begun, cancelled = Event(), Event()

    class Begun(LoopThread):
        def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
            future = super().submit(work)
            assert begun.wait(60)
            return future

    async def stay() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    loop = Begun("test")
    loop.start()
    with pytest.raises(LoopEnded):
        loop.call(stay(), -1.0)
    assert cancelled.wait(60)
    assert loop.call(asyncio.sleep(0, "done"), 5.0) == "done"
    loop.stop()
    with pytest.raises(LoopEnded):
        loop.call(asyncio.sleep(0), 5.0)
