"""Ticks one after another, until the generation under way has ended."""

from collections.abc import Callable
from logging import getLogger

from retake.clock import Clock
from retake.errors import StorageError
from retake.story.manager import Manager
from retake.story.shift import NO_ORDERS, Orders, Tick

_log = getLogger(__name__)

_STORAGE_PATIENCE = 20  # ticks in a row that the bucket may be away


def until_done(manager: Manager, orders: Orders, interval_s: float, clock: Clock, stopping: Callable[[], bool]) -> int:
    """The exit code of the tick that ended it: 0 done (or nothing to do), 69 failed, 75 stopped or held, 65, 78."""
    tick = manager.tick(orders)
    away = 0
    while not (tick.ended or tick.resting or stopping() or tick.exit_code in (65, 69, 70, 78)):
        until_due = (tick.until - clock.now()).total_seconds() if tick.until else 0.0
        _wait(clock, max(interval_s, until_due), stopping)
        if stopping():
            return 75
        try:
            tick, away = manager.tick(NO_ORDERS), 0
        except StorageError as error:
            away += 1
            if away > _STORAGE_PATIENCE:
                raise
            _log.warning("%s", error)
            tick = Tick(75, str(error))
    over = tick.ended or tick.resting or tick.exit_code
    return tick.exit_code if over else 75  # stopped by a signal, with work left to do


def _wait(clock: Clock, seconds: float, stopping: Callable[[], bool]) -> None:
    """In short pieces: a signal is answered within a quarter of a second."""
    while seconds > 0 and not stopping():
        clock.sleep(min(seconds, 0.25))
        seconds -= 0.25
