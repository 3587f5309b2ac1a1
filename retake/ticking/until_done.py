"""Runs ticks, one after another, until the generation under way has ended."""

from collections.abc import Callable
from logging import getLogger

from retake.clock import Clock, wait
from retake.errors import LeaseHeld, StorageError
from retake.exit_codes import ExitCode
from retake.ticking.process import SIGNAL_CHECK_S
from retake.ticking.tick import NO_ORDERS, Orders, Tick

_log = getLogger(__name__)

_MAX_STORAGE_FAILURES = 20  # ticks in a row during which the bucket may be unreachable
_FINAL = (ExitCode.BAD_STATE, ExitCode.FAILED, ExitCode.BUG, ExitCode.CONFIG)


def until_done(
    run_tick: Callable[[Orders], Tick], orders: Orders, interval_s: float, clock: Clock, stopping: Callable[[], bool]
) -> int:
    """Run ticks until the generation under way has ended, and return the exit code of the last one.

    That is 0 if it is done (or there was nothing to do), 69 if it failed, 75 if it was stopped or is held back, 65 or
    78. `interval_s` is the shortest pause between two ticks, in seconds.
    """
    tick, failures = _first(run_tick, orders, interval_s, clock, stopping), 0
    while not (tick.ended or tick.resting or stopping() or tick.exit_code in _FINAL):
        until_due = (tick.until - clock.now()).total_seconds() if tick.until else 0.0
        wait(clock, max(interval_s, until_due), stopping, ask_every_s=SIGNAL_CHECK_S)
        if stopping():
            return ExitCode.TRY_LATER
        try:
            tick, failures = run_tick(NO_ORDERS), 0
        except StorageError as error:
            failures += 1
            if failures > _MAX_STORAGE_FAILURES:
                raise
            _log.warning("%s", error)
            tick = Tick(ExitCode.TRY_LATER, str(error))
    held = tick.resting and tick.generation_id is not None  # by a degraded mode; the tick itself ends with 0
    over = tick.ended or (tick.resting and not held) or tick.exit_code
    return tick.exit_code if over else ExitCode.TRY_LATER  # held or stopped by a signal, with work left to do


def _first(
    run_tick: Callable[[Orders], Tick], orders: Orders, interval_s: float, clock: Clock, stopping: Callable[[], bool]
) -> Tick:
    """Wait for the lease, and run the tick that carries out the orders. Raises LeaseHeld if stopped before that."""
    while True:
        try:
            return run_tick(orders)
        except LeaseHeld as held:
            _log.info("%s", held.__cause__ or held)
            wait(clock, interval_s, stopping, ask_every_s=SIGNAL_CHECK_S)
            if stopping():
                raise
