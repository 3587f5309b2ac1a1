"""Calls to a backend that may be slow or unreachable, with a limit on how long a request waits for them."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from time import monotonic
from typing import TypeVar

from retake.errors import RetakeError
from retake.exit_codes import ExitCode

COOLDOWN_S = 1.0
"""Seconds for which further calls fail at once after one that was too slow."""

_T = TypeVar("_T")


class NotInTime(RetakeError):
    """The backend did not answer in time. The outcome of the call is unknown."""

    exit_code = ExitCode.TRY_LATER


class BoundedCalls:
    """Runs calls in threads of their own and waits at most `seconds` for each. `what` names the backend in messages.

    An abandoned call continues in its thread, so the number of concurrent calls is limited to `max_calls`. After a call
    that was too slow, further calls fail at once for COOLDOWN_S seconds: otherwise requests that wait for a thread
    would wait many times as long as one call takes.
    """

    def __init__(self, what: str, *, seconds: float, max_calls: int) -> None:
        self._what, self._seconds = what, seconds
        self._free = threading.BoundedSemaphore(max_calls)
        self._cooldown_until = 0.0

    def run(self, work: Callable[[], _T], seconds: float | None = None) -> _T:
        """Return or raise what `work` returns or raises. Raises NotInTime."""
        seconds = self._seconds if seconds is None else seconds
        until = monotonic() + seconds
        if monotonic() < self._cooldown_until:
            raise NotInTime(f"{self._what} did not answer a moment ago; try again")
        if not self._free.acquire(timeout=seconds):
            raise self._too_slow(seconds)
        outcome: Future[_T] = Future()
        context = copy_context()
        thread = threading.Thread(target=context.run, args=(self._do, work, outcome), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the machine cannot start another thread
            self._free.release()
            raise self._too_slow(seconds) from None
        try:
            return outcome.result(max(0.0, until - monotonic()))
        except TimeoutError:
            if outcome.done():  # `work` itself raised TimeoutError, or ended just now
                return outcome.result()
            raise self._too_slow(seconds) from None

    def _do(self, work: Callable[[], _T], outcome: "Future[_T]") -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001  raised in the caller
            outcome.set_exception(error)
        finally:
            self._free.release()

    def _too_slow(self, seconds: float) -> NotInTime:
        self._cooldown_until = monotonic() + COOLDOWN_S
        return NotInTime(f"{self._what} did not answer within {seconds:g} s; try again")
