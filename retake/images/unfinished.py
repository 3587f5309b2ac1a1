"""What a request left to be done because a service was unreachable, tried again in each cycle of the dispatcher."""

import threading
from collections.abc import Callable
from logging import getLogger

from retake.errors import RetakeError

MOST = 10_000

_log = getLogger(__name__)


class Unfinished:
    """Work by name; each piece can be repeated. It is kept in memory: what a crash loses, the sweeper finds later."""

    def __init__(self) -> None:
        self._work: dict[str, Callable[[], object]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._work)

    def add(self, name: str, work: Callable[[], object]) -> None:
        """Do this later. The oldest is forgotten if there is too much."""
        with self._lock:
            self._work.pop(name, None)
            if len(self._work) >= MOST:
                self._work.pop(next(iter(self._work)))
            self._work[name] = work

    def attempt(self, name: str, work: Callable[[], object]) -> bool:
        """Do this now, or else later; return whether it is done."""
        try:
            work()
        except RetakeError as error:
            _log.info("%s: %s; it is tried again", name, error)
            self.add(name, work)
            return False
        return True

    def retry(self) -> None:
        """Do what is left, until something fails: that comes last the next time."""
        for name in list(self._work):
            with self._lock:
                work = self._work.pop(name, None)
            if work is not None and not self.attempt(name, work):
                return
