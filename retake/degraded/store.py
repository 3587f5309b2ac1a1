"""Where the mode is kept: `mode/state.json` at the bucket's root, repeated in the alerts' document.

A tick reads the alerts' document anyway, and an idle one nothing else. The mode itself is written first: a crash before
it is repeated leaves an older copy, which the next change, or the next tick that is not idle, brings in line. A copy by
which ticks are held back is not taken at its word: they read the mode itself.
"""

from collections.abc import Callable

from retake.alerts.board import Board
from retake.alerts.store import BoardStore
from retake.bucket import Bucket
from retake.clock import Clock
from retake.degraded.mode import ModeState, decoded, encoded
from retake.retrying.state_store import BucketStateStore, StateCell

FOLDER = "mode/"
"""The folder of a bucket that holds the mode."""


class ModeStore:
    """The mode of a bucket, `bucket` being all of it. Every method may raise StateError and StorageError."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._cell = StateCell(BucketStateStore(bucket, FOLDER, clock), "state", decoded, encoded)
        self._board = BoardStore(bucket, clock)

    def read(self) -> ModeState:
        return self._cell.get()

    def change(self, step: Callable[[ModeState], ModeState]) -> ModeState:
        """Replace the state by what `step` makes of it, and return it."""
        self._cell.update(step)
        return self.repeat()

    def repeat(self) -> ModeState:
        """Bring the copy in the alerts' document in line, and return the state. The state is read after that document:
        of two who do so at once, the second copies what the first may have missed."""

        def copied(board: Board) -> tuple[Board, ModeState]:
            state = self.read()
            return board._replace(mode=encoded(state) if state != ModeState() else None), state

        return self._board.change(copied)
