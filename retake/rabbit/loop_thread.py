"""An event loop in a thread of its own, and calls into it from other threads."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from logging import getLogger
from threading import Lock, Thread
from typing import Any, TypeVar

T = TypeVar("T")

_GRACE_S = 1.0
_CLOSING_S = 0.1  # how long tasks started by a cancelled task may run before they are cancelled too
_log = getLogger(__name__)


class LoopEnded(Exception):
    """The loop is not running, or did not answer."""


class LoopThread:
    """Runs coroutines until `stop`. Safe to use from any thread except its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the thread; a second call does nothing."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Schedule `work` and return its future. Raises LoopEnded."""
        with self._lock:
            if self._loop is None:
                work.close()
                raise LoopEnded
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run `work` and return its result, waiting at most `timeout_s` and a second. Raises LoopEnded."""
        future = self.submit(work)
        try:
            return future.result(timeout_s + _GRACE_S)
        except (CancelledError, TimeoutError):
            raise LoopEnded from None
        finally:
            future.cancel()

    def stop(self) -> None:
        """Cancel all tasks, and end the loop and its threads."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        pool = ThreadPoolExecutor(2, thread_name_prefix=self._name)  # for DNS lookups
        loop.set_default_executor(pool)
        loop.set_exception_handler(_note)
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(_cancel_all())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            pool.shutdown(wait=False, cancel_futures=True)  # does not wait for a DNS server that does not answer
            loop.close()


async def _cancel_all() -> None:
    """Cancel each running task once, and let the tasks that these start end on their own.

    A library closes its sockets in separate tasks. No task is cancelled before its first step: it would not close the
    socket that it was given.
    """
    ends_at = asyncio.get_running_loop().time() + _GRACE_S
    cancelled: set[asyncio.Task[Any]] = set()
    patience_s = 0.0
    while (left := asyncio.all_tasks() - {asyncio.current_task()}) and asyncio.get_running_loop().time() < ends_at:
        _, pending = await asyncio.wait(left, timeout=patience_s)
        for task in pending - cancelled:
            task.cancel()
        cancelled |= pending
        patience_s = _CLOSING_S


def _note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log errors that nobody awaits: the library leaves such errors behind when a connection is lost."""
    error = context.get("exception")
    _log.debug("left behind in the loop: %s (%s)", context.get("message"), type(error).__name__)
