"""Room for one write, set aside before it is needed: what has been paid for must not get lost to a full disk."""

from collections.abc import Callable

from retake.bucket import Expect
from retake.bucket.directory.disk import Draft, discard, fill_draft, in_words


class ReservedFile:
    """A `Room` in a directory: the file at `path`, whose blocks are on the disk (`disk.reserve`), written in place.

    `publish` gives the draft its name in the bucket, if what is there is what is expected, and returns its version.
    """

    def __init__(self, path: str, publish: Callable[[Draft, str | Expect], str]) -> None:
        self._path = path
        self._publish = publish

    def write(self, data: bytes, expect: str | Expect) -> str:
        """See `Room.write`. What is larger than the room is written all the same, if the disk has the rest."""
        with in_words(f"write into the room set aside at {self._path}"):
            return self._publish(fill_draft(self._path, data), expect)

    def release(self) -> None:
        """Remove the file. It is gone already, or is the object itself by now, once it was written."""
        discard(self._path)
