"""A time limit for calls that have none of their own, or do not keep it.

Nothing in Python can end a call that hangs in somebody else's code. So a call with a limit is made in a thread of its
own, and abandoned when its time is over: whoever waited goes on, and what the call comes to later is discarded.
Abandoned threads do not keep the process from ending, and there are never more than `MOST_ABANDONED` of them.
"""

import threading
from collections.abc import Callable
from contextvars import copy_context
from logging import getLogger
from time import monotonic
from typing import Generic, TypeVar, cast

from retake.errors import Code, CodedError, OutcomeUnknown, Refused

MOST_ABANDONED = 32
"""Abandoned calls of this process that may still be running; with as many, no other call with a limit is made."""

_log = getLogger(__name__)
_abandoned: set["_Attempt[object]"] = set()
_lock = threading.Lock()
T = TypeVar("T")


class Overrun(OutcomeUnknown):
    """The call took longer than it may, and was abandoned. It may still be carried out."""


class OutOfTime(Exception):
    """The call took longer than `timeout_s` seconds, and was abandoned."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"no result within {timeout_s:g} s, and the call was abandoned")
        self.timeout_s = timeout_s

    def as_error(self, code: str | None) -> CodedError:
        """What it means for a policy: the error `code`, or, without one, that nobody knows the outcome."""
        if code is None:
            return Overrun(Code.TIMEOUT, f"{self}: nobody can tell whether it was, or still will be, carried out")
        return CodedError(code, str(self))


def within(timeout_s: float | None, work: Callable[[], T]) -> T:
    """Return what `work()` returns, or raise what it raises; with a limit it is called in another thread.

    `timeout_s` is in seconds of real time; None is no limit. Raises OutOfTime when they are over, and Refused, with
    nothing called, while too many abandoned calls are still running.
    """
    if timeout_s is None:
        return work()
    if (running := abandoned()) >= MOST_ABANDONED:
        raise Refused(
            Code.UNAVAILABLE, f"{running} abandoned calls are still running: no other is made before one ends"
        )
    attempt = _Attempt(work)
    attempt.start()
    try:
        attempt.ended.wait(min(timeout_s, threading.TIMEOUT_MAX))
    except BaseException:  # a signal's handler
        attempt.abandon()
        raise
    if attempt.abandon():
        _log.warning("a call had no result within %g s and was abandoned", timeout_s)
        raise OutOfTime(timeout_s)
    return attempt.outcome()


def abandoned() -> int:
    """How many abandoned calls are still running."""
    with _lock:
        return len(_abandoned)


class _Attempt(Generic[T]):
    """One call in a thread of its own."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.ended = threading.Event()
        self._work = work
        self._value: T | None = None
        self._error: BaseException | None = None
        self._began = monotonic()

    def start(self) -> None:
        context = copy_context()  # log lines of the call carry what those of its caller do
        thread = threading.Thread(target=lambda: context.run(self._run), name="a call with a limit", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise Refused(Code.UNAVAILABLE, f"this process cannot start another thread: {error}") from error

    def abandon(self) -> bool:
        """Give it up; False if it has ended by now."""
        with _lock:
            if self.ended.is_set():
                return False
            _abandoned.add(cast("_Attempt[object]", self))
            return True

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def _run(self) -> None:
        value, error = None, None
        try:
            value = self._work()
        except BaseException as raised:  # noqa: BLE001  it belongs to who waits
            error = raised
        with _lock:
            late = cast("_Attempt[object]", self) in _abandoned
            _abandoned.discard(cast("_Attempt[object]", self))
            if not late:
                self._value, self._error = value, error
            self.ended.set()
        if late:
            took = monotonic() - self._began
            _log.warning("an abandoned call ended after %.0f s; what it came to is discarded", took)
