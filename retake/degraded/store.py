"""Stores the mode in `mode/state.json` at the bucket's root, with a copy in the alerts' document.

A tick reads the alerts' document anyway, and an idle one reads nothing else. The mode itself is written first, so a
crash leaves at most an outdated copy. Ticks that are about to pay, or that the copy would hold back, read the mode
itself first. The copy is updated by them, by every tick that does something, and by the next change of the mode.
"""

from collections.abc import Callable

from retake.alerts.board import Board
from retake.alerts.store import BoardStore
from retake.bucket import Bucket
from retake.clock import Clock
from retake.degraded.mode import Mode, ModeState, decoded, encoded, mode_at
from retake.degraded.settings import ModeSettings
from retake.retrying.state_store import BucketStateStore, StateCell

FOLDER = "mode/"
"""The folder of a bucket that holds the mode."""

_REMEDY = "fix it, or remove it and run `retake mode set` again: the mode that was set is lost with it"


class ModeStore:
    """The mode of `bucket`, which is the whole bucket. Every method may raise StateError and StorageError."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        store = BucketStateStore(bucket, FOLDER, clock, remedy=_REMEDY)
        self._cell = StateCell(store, "state", decoded, encoded, remedy=_REMEDY)
        self._board = BoardStore(bucket, clock)
        self._clock = clock

    def read(self) -> ModeState:
        return self._cell.get()

    def mode(self, settings: ModeSettings, timezone: str) -> Mode:
        """Return the mode in force now."""
        return mode_at(self.read(), settings, timezone, self._clock.now())

    def change(self, step: Callable[[ModeState], ModeState]) -> ModeState:
        """Replace the state by what `step` makes of it, and return it."""
        self._cell.update(step)
        return self.repeat()

    def repeat(self) -> ModeState:
        """Update the copy in the alerts' document, and return the state.

        The state is read after that document, so that the second of two concurrent updates copies what the first may
        have missed.
        """

        def copied(board: Board) -> tuple[Board, ModeState]:
            state = self.read()
            return board._replace(mode=encoded(state) if state != ModeState() else None), state

        return self._board.change(copied)
