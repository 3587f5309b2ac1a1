"""A time limit for calls that have none of their own, or exceed it.

Python cannot stop a call that hangs in a library. So a call with a limit runs in a thread of its own and is abandoned
when its time is over: the caller continues, and a late result is discarded. Abandoned threads do not keep the process
from exiting. While `MAX_ABANDONED` of them are still running, calls with a limit are refused.
"""

import threading
from collections.abc import Callable
from contextvars import copy_context
from logging import getLogger
from time import monotonic
from typing import Any, Generic, TypeVar, cast

from retake.errors import Code, CodedError, OutcomeUnknown, Refused

MAX_ABANDONED = 32
"""Maximum number of abandoned calls that may still be running when another call with a limit is made."""

_log = getLogger(__name__)
_abandoned: set["_TimedCall[Any]"] = set()
_lock = threading.Lock()
T = TypeVar("T")


class Overrun(OutcomeUnknown):
    """The call exceeded its time limit and was abandoned. It may still be carried out."""


class OutOfTime(Exception):
    """The call took longer than `timeout_s` seconds and was abandoned."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"no result within {timeout_s:g} s, and the call was abandoned")
        self.timeout_s = timeout_s

    def as_error(self, code: str | None) -> CodedError:
        """Return the error to ask a policy about: one with `code`, or Overrun (outcome unknown) if that is None."""
        if code is None:
            return Overrun(Code.TIMEOUT, f"{self}: nobody can tell whether it was, or still will be, carried out")
        return CodedError(code, str(self))


def within(timeout_s: float | None, work: Callable[[], T], what: str = "a call") -> T:
    """Return what `work()` returns, or raise what it raises. With a limit it runs in another thread.

    `timeout_s` is in seconds of real time; None means no limit. `what` names the call in the log. Raises OutOfTime when
    the time is over, and Refused, without calling `work`, while too many abandoned calls are still running or if no
    thread can be started.
    """
    if timeout_s is None:
        return work()
    if (running := abandoned()) >= MAX_ABANDONED:
        raise Refused(
            Code.UNAVAILABLE, f"{running} abandoned calls are still running: no other is made before one ends"
        )
    attempt = _TimedCall(work)
    attempt.start()
    try:
        attempt.ended.wait(min(timeout_s, threading.TIMEOUT_MAX))
    except BaseException:  # raised by a signal handler
        attempt.abandon()
        raise
    if attempt.abandon():
        _log.warning("%s had no result within %g s and was abandoned", what, timeout_s)
        raise OutOfTime(timeout_s)
    return attempt.outcome()


def abandoned() -> int:
    """Return how many abandoned calls are still running."""
    with _lock:
        return len(_abandoned)


class _TimedCall(Generic[T]):
    """One call in a thread of its own."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.ended = threading.Event()
        self._work = work
        self._value: T | None = None
        self._error: BaseException | None = None
        self._began = monotonic()

    def start(self) -> None:
        context = copy_context()  # the log context of the caller
        thread = threading.Thread(target=lambda: context.run(self._run), name="a call with a limit", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise Refused(Code.UNAVAILABLE, f"this process cannot start another thread: {error}") from error

    def abandon(self) -> bool:
        """Abandon the call and return True, or return False if it has already ended."""
        with _lock:
            if self.ended.is_set():
                return False
            _abandoned.add(self)
            return True

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def _run(self) -> None:
        value, error = None, None
        try:
            value = self._work()
        except BaseException as raised:  # noqa: BLE001  the waiting caller raises it
            error = raised
        with _lock:
            late = self in _abandoned
            _abandoned.discard(self)
            if not late:
                self._value, self._error = value, error
            self.ended.set()
        if late:
            took = monotonic() - self._began
            _log.warning("an abandoned call ended after %.0f s; what it came to is discarded", took)
