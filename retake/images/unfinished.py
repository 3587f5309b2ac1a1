"""Work that a request left behind because a service was unreachable, retried in each cycle of the dispatcher."""

import threading
from collections.abc import Callable
from logging import getLogger

from retake.errors import RetakeError

MAX_PIECES = 10_000
"""Maximum number of pieces of work."""

_log = getLogger(__name__)


class Unfinished:
    """Work by name; each piece can be repeated. It is kept in memory: what a crash loses, the sweeper finds later."""

    def __init__(self) -> None:
        self._work: dict[str, Callable[[], object]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._work)

    def add(self, name: str, work: Callable[[], object]) -> None:
        """Do this later. If there is too much work, the oldest piece is forgotten."""
        with self._lock:
            self._work.pop(name, None)
            if len(self._work) >= MAX_PIECES:
                self._work.pop(next(iter(self._work)))
            self._work[name] = work

    def attempt(self, name: str, work: Callable[[], object]) -> bool:
        """Do this now, or otherwise later; return whether it is done."""
        try:
            work()
        except RetakeError as error:
            _log.info("%s: %s; retrying", name, error)
            self.add(name, work)
            return False
        return True

    def retry(self) -> None:
        """Do the remaining work until a piece fails, which then comes last."""
        for name in list(self._work):
            with self._lock:
                work = self._work.pop(name, None)
            if work is not None and not self.attempt(name, work):
                return
