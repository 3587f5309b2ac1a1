"""Ticks one after another, until the generation under way has ended."""

from collections.abc import Callable
from logging import getLogger

from retake.clock import Clock, wait
from retake.errors import LeaseHeld, StorageError
from retake.exit_codes import ExitCode
from retake.ticking.process import PIECE_S
from retake.ticking.tick import NO_ORDERS, Orders, Tick

_log = getLogger(__name__)

_STORAGE_PATIENCE = 20  # ticks in a row that the bucket may be unreachable
_FINAL = (ExitCode.BAD_STATE, ExitCode.FAILED, ExitCode.BUG, ExitCode.CONFIG)


def until_done(
    run_tick: Callable[[Orders], Tick], orders: Orders, interval_s: float, clock: Clock, stopping: Callable[[], bool]
) -> int:
    """Run ticks until the generation under way has ended; return the exit code of the last one: 0 done (or nothing to
    do), 69 failed, 75 stopped or held, 65, 78."""
    tick, away = _first(run_tick, orders, interval_s, clock, stopping), 0
    while not (tick.ended or tick.resting or stopping() or tick.exit_code in _FINAL):
        until_due = (tick.until - clock.now()).total_seconds() if tick.until else 0.0
        wait(clock, max(interval_s, until_due), stopping, ask_every_s=PIECE_S)
        if stopping():
            return ExitCode.TRY_LATER
        try:
            tick, away = run_tick(NO_ORDERS), 0
        except StorageError as error:
            away += 1
            if away > _STORAGE_PATIENCE:
                raise
            _log.warning("%s", error)
            tick = Tick(ExitCode.TRY_LATER, str(error))
    held = tick.resting and tick.generation_id is not None  # by a degraded mode, where the tick itself ends with 0
    over = tick.ended or (tick.resting and not held) or tick.exit_code
    return tick.exit_code if over else ExitCode.TRY_LATER  # held or stopped by a signal, with work left to do


def _first(
    run_tick: Callable[[Orders], Tick], orders: Orders, interval_s: float, clock: Clock, stopping: Callable[[], bool]
) -> Tick:
    """Run the tick that carries the orders out, once nobody else is at work. Raises LeaseHeld where a signal came
    before that."""
    while True:
        try:
            return run_tick(orders)
        except LeaseHeld as held:
            _log.info("%s", held.__cause__ or held)
            wait(clock, interval_s, stopping, ask_every_s=PIECE_S)
            if stopping():
                raise
