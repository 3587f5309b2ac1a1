"""Calls with a time limit that hang until a test lets them go on.

Nothing waits for a fixed time: the limit begins once a call hangs, however late its thread has started, and a call that
does not hang has ended before it.
"""

from threading import Event

import pytest
from waiting import LONG_S, eventually

from retake.operations import read_limit
from retake.retrying.time_limit import _TimedCall, abandoned

LIMIT_S = 0.05


class Hanging:
    """What the calls of a test wait for."""

    def __init__(self) -> None:
        self._go_on = Event()
        self._hanging = 0

    def here(self) -> None:
        """Hang until `end`. Returns at once after that."""
        if not self._go_on.is_set():
            self._hanging += 1
            assert self._go_on.wait(LONG_S)

    def begin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Limit reads of own pipelines to LIMIT_S from now on."""
        start = _TimedCall.start

        def started(call: "_TimedCall[object]") -> None:
            before = self._hanging
            start(call)
            eventually(lambda: call.ended.is_set() or self._hanging > before)

        monkeypatch.setattr(_TimedCall, "start", started)
        monkeypatch.setattr(read_limit, "READ_S", LIMIT_S)
        self._go_on.clear()

    def end(self) -> None:
        """Let what hangs go on, and wait until it has ended."""
        self._go_on.set()
        eventually(lambda: abandoned() == 0)
