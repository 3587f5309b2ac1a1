"""Background threads of a service, each of which repeats one task."""

from collections.abc import Callable
from logging import getLogger
from threading import Event, Thread
from typing import Protocol

from retake.errors import RetakeError

_log = getLogger(__name__)


class Background(Protocol):
    """A background activity of the service."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def join(self, timeout: float) -> None: ...


class Loop:
    """Calls `turn` in a thread until it is stopped. `turn` returns the seconds to pause; errors are logged."""

    def __init__(self, name: str, turn: Callable[[], float], *, error_pause_s: float = 5.0) -> None:
        self.name, self._turn, self._error_pause_s = name, turn, error_pause_s
        self._stopping, self._woken = Event(), Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._woken.set()

    def wake(self) -> None:
        """End the current pause."""
        self._woken.set()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                pause = self._turn()
            except RetakeError as error:
                _log.warning("%s: %s; retrying", self.name, error)
                pause = self._error_pause_s
            except Exception:  # noqa: BLE001  a bug in one turn must not end the service
                _log.exception("%s: this is a bug in Retake; continuing", self.name)
                pause = self._error_pause_s
            self._woken.wait(pause)
            self._woken.clear()
