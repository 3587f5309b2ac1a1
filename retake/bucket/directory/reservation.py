"""Room on the disk for one write, reserved in advance: what has been paid for must not be lost to a full disk."""

from collections.abc import Callable

from retake.bucket import Expect
from retake.bucket.directory.disk import Draft, discard, fill_draft, storage_errors


class ReservedFile:
    """A `Room` in a directory: the file at `path`, whose blocks are allocated already, is filled in place.

    `publish` gives the draft its name in the bucket, if what is there is what is expected, and returns its version.
    """

    def __init__(self, path: str, publish: Callable[[Draft, str | Expect], str]) -> None:
        self._path = path
        self._publish = publish

    def write(self, data: bytes, expect: str | Expect) -> str:
        """See `Room.write`. Data larger than the room is written all the same if the disk has space for the rest."""
        with storage_errors(f"write into the room set aside at {self._path}"):
            return self._publish(fill_draft(self._path, data), expect)

    def release(self) -> None:
        """Remove the file. After a write it is gone already, or is the object itself."""
        discard(self._path)
