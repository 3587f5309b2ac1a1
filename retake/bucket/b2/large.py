"""Large files on B2: a file above the recommended part size is sent in parts and appears once it is finished.

A part whose answer is lost is sent again, alone. An upload that fails is cancelled at once, and one that a crash left
behind is cancelled after a day: unfinished files cost storage, though no reader sees them.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from io import SEEK_CUR, SEEK_END, SEEK_SET, RawIOBase
from typing import Any, BinaryIO, NamedTuple

from retake.bucket.b2.connection import PAUSES_S, B2Connection, Gone
from retake.bucket.contract import CHUNK_SIZE
from retake.errors import StorageError

LEFTOVER_S = 24 * 3600.0  # the writer of an unfinished file this old is gone

LARGE_FILE_SHA1 = "large_file_sha1"
"""The name in file_info of the SHA-1 of a large file, for which B2 itself keeps none (b2_start_large_file)."""

_PAUSES_S = (0.0, *PAUSES_S[:-1])  # a busy pod of B2 answers 503; another upload URL leads to another pod


class FilePart(RawIOBase):
    """`size` bytes of `file` from `start` on, as a file of its own. It moves the position of `file`."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._start, self._size = file, start, size
        self._at = 0

    def __len__(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        self._at = {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._size}[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._start + self._at)
        piece = self._file.read(max(0, min(len(buffer), self._size - self._at)))
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


def size_of(file: BinaryIO) -> int:
    """Return the number of bytes in `file`."""
    return file.seek(0, os.SEEK_END)


def sha1_of(file: BinaryIO) -> str:
    """Return the SHA-1 of the content of `file`, read `CHUNK_SIZE` bytes at a time."""
    from hashlib import sha1

    digest = sha1(usedforsecurity=False)
    file.seek(0)
    while piece := file.read(CHUNK_SIZE):
        digest.update(piece)
    return digest.hexdigest()


def upload_large(
    connection: B2Connection, name: str, file: BinaryIO, info: dict[str, str], part_size: int
) -> dict[str, Any]:
    """Store one more version of `name` as a large file, and return B2's answer. Raises StorageError."""
    cancel_abandoned(connection, name)
    info = {**info, LARGE_FILE_SHA1: sha1_of(file)}

    def start(session: Any) -> Any:
        return session.start_large_file(connection.bucket_id, name, "application/octet-stream", info)

    file_id: str = connection.call(f"begin to store {name}", start)["fileId"]
    try:
        sums = [_send_part(connection, name, file_id, number, part) for number, part in _parts(file, part_size)]
        return _finish(connection, name, file_id, sums)
    except BaseException:
        with suppress(StorageError):
            _cancel(connection, name, file_id)
        raise


def _parts(file: BinaryIO, part_size: int) -> Iterator[tuple[int, FilePart]]:
    """Yield the parts of `file`, counted from 1."""
    size = size_of(file)
    for number, start in enumerate(range(0, size, part_size), 1):
        yield number, FilePart(file, start, min(part_size, size - start))


def _send_part(connection: B2Connection, name: str, file_id: str, number: int, part: FilePart) -> str:
    """Send one part and return its SHA-1, which B2 has checked against what arrived."""
    digest = sha1_of(part)  # type: ignore[arg-type]  # this raw file never reads less than it could

    def call(session: Any) -> Any:
        return session.upload_part(file_id, number, len(part), digest, part)

    try:
        connection.call(f"store part {number} of {name}", call, pauses=_PAUSES_S)
    except Gone:
        raise _given_up_error(name) from None
    return digest


def _finish(connection: B2Connection, name: str, file_id: str, sums: list[str]) -> dict[str, Any]:
    """Make the file appear. If the answer is lost and B2 refuses the second attempt, check whether it exists."""
    try:
        answer: dict[str, Any] = connection.call(
            f"store {name}", lambda session: session.finish_large_file(file_id, sums)
        )
    except (StorageError, Gone) as error:
        with suppress(Gone):
            found: dict[str, Any] = connection.call(
                f"look at {name}", lambda session: session.get_file_info_by_id(file_id), pauses=()
            )
            if found.get("action") == "upload":
                return found
        if isinstance(error, Gone):
            raise _given_up_error(name) from None
        raise
    return answer


def _given_up_error(name: str) -> StorageError:
    return StorageError(f"{name} was given up by another program while it was stored: try again")


def _cancel(connection: B2Connection, name: str, file_id: str) -> None:
    with suppress(Gone):
        connection.call(f"give up {name}", lambda session: session.cancel_large_file(file_id), pauses=())


class AbandonedFile(NamedTuple):
    """An unfinished file whose writer is gone."""

    name: str
    file_id: str
    begun_at: float  # seconds since the epoch, by B2's clock


def abandoned(connection: B2Connection, prefix: str) -> Iterator[AbandonedFile]:
    """Yield the unfinished files whose names begin with `prefix` and that were begun more than a day ago. Class C, one
    call per 100."""
    start = None
    while True:
        page = connection.call(
            f"look for unfinished parts of {prefix}", partial(_unfinished, connection, prefix, start)
        )
        for it in page["files"]:
            begun_at = it["uploadTimestamp"] / 1000
            if (connection.date or 0.0) - begun_at > LEFTOVER_S:
                yield AbandonedFile(it["fileName"], it["fileId"], begun_at)
        start = page.get("nextFileId")
        if not start:
            return


def _unfinished(connection: B2Connection, prefix: str, start: str | None, session: Any) -> Any:
    return session.list_unfinished_large_files(connection.bucket_id, start, prefix=prefix)


def cancel_abandoned(connection: B2Connection, name: str) -> None:
    """Cancel the unfinished files of exactly this name whose writers are gone."""
    for found in abandoned(connection, name):
        if found.name == name:
            _cancel(connection, name, found.file_id)
