"""Who can read a directory bucket: state documents contain signed links."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retake.bucket import ABSENT, ANY, Room
from retake.bucket.directory import DirectoryBucket


def modes(root: Path, *names: str) -> list[int]:
    return [(root / name).stat().st_mode & 0o777 for name in names]


@pytest.mark.parametrize("process", [0o077, 0o022, 0])
@pytest.mark.parametrize(("umask", "folder", "file"), [(0o077, 0o700, 0o600), (0o027, 0o750, 0o640), (2, 0o775, 0o664)])
def test_files_are_the_owners_alone_unless_the_settings_say_otherwise(
    root: Path, umask: int, folder: int, file: int, process: int
) -> None:
    bucket, before = DirectoryBucket(str(root), umask=umask), os.umask(process)
    try:
        bucket.write("a/b", b"", ABSENT)
        bucket.replace("a/c", b"", ABSENT, "a/aside")
        with closing_room(bucket.set_aside("a/b", 10)) as room:
            room.write(b"1", ANY)
        bucket.lease("story", "me").release()
    finally:
        os.umask(before)
    assert modes(root, "", "a", ".retake", ".retake/tmp", ".retake/leases") == [folder] * 5
    assert modes(root, "a/b", "a/c", ".retake/writes.lock", ".retake/leases/story.lock") == [file] * 4


@contextmanager
def closing_room(room: Room) -> Iterator[Room]:
    try:
        yield room
    finally:
        room.release()


def test_the_shared_document_keeps_the_access_that_it_has(root: Path, bucket: DirectoryBucket) -> None:
    version = bucket.write("public", b"1", ABSENT)
    (root / "public").chmod(0o664)
    if os.geteuid() == 0:
        os.chown(root / "public", 12345, 12346)
    version = bucket.replace("public", b"2", version, "aside")
    found = (root / "public").stat()
    assert found.st_mode & 0o777 == 0o664
    assert (found.st_uid, found.st_gid) == ((12345, 12346) if os.geteuid() == 0 else (os.geteuid(), os.getegid()))
    assert bucket.read("public") == (b"2", version)
