"""A time limit for reads of foreign code: a method that hangs is abandoned and named, with the line where it hangs."""

import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from logging import getLogger
from traceback import walk_stack
from typing import TypeVar

from retake.errors import Refused, naming_thread_shortage
from retake.operations.foreign_calls import PipelineFault, place_in
from retake.retrying.time_limit import OutOfTime, within

READ_S = 30.0
"""Seconds after which a method that only reads is abandoned, and after which a slow one that writes is logged."""

_T = TypeVar("_T")

_log = getLogger(__name__)


class _Read:
    """A call in a thread of its own."""

    def __init__(self) -> None:
        self.thread: int | None = None
        self.ended = False

    def run(self, call: Callable[[], _T]) -> _T:
        self.thread = threading.get_ident()
        try:
            return call()
        finally:
            self.ended = True

    @property
    def place(self) -> str:
        """The line that it has come to, for a message; "" if that is not known."""
        frame = sys._current_frames().get(self.thread or 0)
        return "" if frame is None or self.ended else place_in([*walk_stack(frame)][::-1])


_hanging: dict[Hashable, _Read] = {}  # the last abandoned call of each pipeline


def read_within(pipeline: Hashable, where: str, call: Callable[[], _T]) -> _T:
    """Return or raise what `call` returns or raises. It runs in another thread, for at most READ_S seconds.

    Python cannot end a call that hangs. So while an abandoned one of the same `pipeline` is running no other is made:
    however often a pipeline is asked, it occupies few threads. `where` names the method. Raises PipelineFault.
    """
    before = _hanging.get(pipeline)
    if before and not before.ended:
        raise PipelineFault(f"{where} was not called: an earlier call has not returned yet{before.place}")
    read = _Read()
    try:
        return within(READ_S, lambda: read.run(call), where)
    except OutOfTime:
        if read.ended:  # `call` has raised it
            raise
        _hanging[pipeline] = read
        raise PipelineFault(f"{where} has not returned within {READ_S:g} s{read.place}") from None
    except Refused as error:
        if read.thread is not None:
            raise
        raise PipelineFault(f"{where} was not called: {error}") from error


@contextmanager
def told_if_slow(where: str) -> Iterator[None]:
    """Log if the block, which may write, takes longer than READ_S seconds. It is never abandoned, because the end of
    the process would then cut it off half-way."""

    def tell() -> None:
        _log.warning(
            "%s has not returned within %g s. It may be changing something, so it is waited for. If you end this "
            "process, look at what it has changed",
            where,
            READ_S,
        )

    timer = threading.Timer(READ_S, tell)
    timer.daemon = True
    with naming_thread_shortage():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
