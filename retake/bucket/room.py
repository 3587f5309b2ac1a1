"""Room for one write in a store without a disk of its own that could fill up."""

from collections.abc import Callable

from retake.bucket import Expect


class NoLimit:
    """A `Room` in a store without a disk of its own that could fill up; `write` is the bucket's, for the room's key."""

    def __init__(self, write: Callable[[bytes, str | Expect], str]) -> None:
        self.write = write

    def release(self) -> None:
        """Do nothing: nothing was taken."""
