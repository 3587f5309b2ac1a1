"""Room for one write in a store without a disk of its own that could fill up."""

from collections.abc import Callable

from retake.bucket import Expect


class UnlimitedRoom:
    """A `Room` that reserves nothing. `write` writes to the room's key in the bucket."""

    def __init__(self, write: Callable[[bytes, str | Expect], str]) -> None:
        self.write = write

    def release(self) -> None:
        """Do nothing: nothing was reserved."""
