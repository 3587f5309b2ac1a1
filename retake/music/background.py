"""What the service does besides answering requests: threads that end when they are asked to."""

import threading
from collections.abc import Callable
from logging import getLogger
from typing import Protocol

from retake.errors import RetakeError, Stopped

_log = getLogger(__name__)


class Background(Protocol):
    """Work that goes on while the service runs."""

    name: str

    def start(self) -> None:
        """Begin, in threads of its own."""

    def stop(self) -> None:
        """Ask it to end soon, without waiting."""

    def join(self, timeout_s: float) -> bool:
        """Wait until it has ended, at most so long; return whether it has."""
        ...


class BackgroundLoop:
    """A thread that takes one turn after another.

    `turn` returns whether the next one should follow at once; else it follows after `pause_s`, or when `wake` is
    called. What a turn raises is logged, and the next one follows after the pause.
    """

    def __init__(self, name: str, turn: Callable[[], bool], *, pause_s: float) -> None:
        self.name, self._turn, self._pause_s = name, turn, pause_s
        self._woken, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Take the next turn at once."""
        self._woken.set()

    def stop(self) -> None:
        self._stopped.set()
        self._woken.set()

    def join(self, timeout_s: float) -> bool:
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._woken.clear()
            if not self._take_turn() and not self._stopped.is_set():
                self._woken.wait(self._pause_s)

    def _take_turn(self) -> bool:
        try:
            return self._turn()
        except Stopped:
            return False
        except RetakeError as error:
            _log.warning("%s: %s", self.name, error)
        except Exception:  # noqa: BLE001 (whatever it is goes into the log, with its traceback)
            _log.exception("%s: this is a bug in Retake; it goes on with its next turn", self.name)
        return False
