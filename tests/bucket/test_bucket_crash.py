"""A directory bucket whose process dies, or whose disk fails, at any of its system calls."""

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from dying import Calls, dying

from retake.bucket import ABSENT, ANY, Conflict, NotFound
from retake.bucket.directory import DirectoryBucket, rename_exchange
from retake.bucket.failing import Crash
from retake.errors import StorageError

pytestmark = pytest.mark.usefixtures("no_fsync")

OLD, NEW = b"old" * 100, b"new!" * 100
FOREIGN = (b"foreign" * 100, b"foreign again" * 100)


def disturbed_replace(bucket: DirectoryBucket, times: int) -> None:
    """Replace while another program puts its own file there just before each of the first exchanges."""
    version = bucket.read("config/doc")[1]
    coming = list(FOREIGN[:times])
    real = rename_exchange.exchange

    def exchange_late(one: str, other: str) -> None:
        if coming:
            write_foreign(other, coming.pop(0))
        real(one, other)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rename_exchange, "exchange", exchange_late)
        bucket.replace("config/doc", NEW, version, "config/doc.aside")


def write_foreign(path: str, data: bytes) -> None:
    made = Path(f"{path}.foreign")
    made.write_bytes(data)
    made.replace(path)


OPERATIONS: dict[str, Callable[[DirectoryBucket], object]] = {
    "write": lambda bucket: bucket.write("config/doc", NEW, ANY),
    "write over a version": lambda bucket: bucket.write("config/doc", NEW, bucket.read("config/doc")[1]),
    "write the first": lambda bucket: bucket.write("deep/er/doc", NEW, ABSENT),
    "copy": lambda bucket: bucket.copy("source", "config/doc"),
    "move": lambda bucket: bucket.move([("source", "config/doc")]),
    "move into a new folder": lambda bucket: bucket.move([("source", "deep/er/doc")]),
    "delete": lambda bucket: bucket.delete("config/doc"),
    "replace": lambda bucket: bucket.replace("config/doc", NEW, bucket.read("config/doc")[1], "config/doc.aside"),
    "replace, disturbed": lambda bucket: disturbed_replace(bucket, 1),
    "replace, disturbed twice": lambda bucket: disturbed_replace(bucket, 2),
}


def prepared(folder: Path, operation: str) -> DirectoryBucket:
    path = str(folder / "bucket")
    if operation != "write the first":
        bucket = DirectoryBucket(path)
        bucket.write("config/doc", OLD, ABSENT)
        bucket.write("source", NEW, ABSENT)
    return DirectoryBucket(path)


def points(tmp_path: Path, operation: str) -> range:
    """Return the number of each system call that the operation makes."""
    bucket = prepared(tmp_path / "count", operation)
    with dying() as calls, suppress(Conflict):
        OPERATIONS[operation](bucket)
    assert len(calls.made) > 4
    return range(1, len(calls.made) + 1)


def content(bucket: DirectoryBucket, key: str) -> bytes | None:
    try:
        return bucket.read(key)[0]
    except NotFound:
        return None


def check(bucket: DirectoryBucket, operation: str) -> None:
    """Check that everything left is complete, nothing else is there, and the bucket works."""
    found = {entry.key: content(bucket, entry.key) for entry in bucket.list("")}
    aside = [key for key in found if key.startswith("config/doc.aside") and operation.startswith("replace")]
    whole = {OLD, NEW, *FOREIGN} if "disturbed" in operation else {OLD, NEW}
    assert set(found.values()) <= whole
    assert set(found) - set(aside) <= {"config/doc", "source", "deep/er/doc"}
    assert "config/doc" in found or operation in ("delete", "write the first")
    bucket.lease("story", "next").release()
    for key in aside:
        bucket.delete(key)
    bucket.replace("config/doc", b"works", ANY, "config/doc.aside")
    assert content(bucket, "config/doc") == b"works"


def written_by_others(calls: Calls, operation: str) -> set[bytes]:
    """Return what the other program wrote before the crash."""
    return set(FOREIGN[: min(calls.made.count("exchange"), 1 + operation.endswith("twice"))])


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path) -> None:
    for name in ("count", "run"):
        (tmp_path / name).mkdir()


@pytest.mark.parametrize(
    ("operation", "when"), [*((name, when) for name in OPERATIONS for when in ("before", "after")), ("write", "torn")]
)
def test_a_crash_at_any_call_leaves_whole_objects(tmp_path: Path, operation: str, when: str) -> None:
    for number in points(tmp_path, operation):
        folder = tmp_path / f"run/{number}"
        folder.mkdir()
        bucket = prepared(folder, operation)
        with dying(number, when) as calls, pytest.raises(Crash):
            OPERATIONS[operation](bucket)
        assert calls.struck
        again = DirectoryBucket(str(folder / "bucket"))
        if "disturbed" in operation:
            assert {content(again, entry.key) for entry in again.list("")} >= written_by_others(calls, operation)
        check(again, operation)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_full_disk_at_any_call_is_reported_and_leaves_whole_objects(tmp_path: Path, operation: str) -> None:
    for number in points(tmp_path, operation):
        folder = tmp_path / f"run/{number}"
        folder.mkdir()
        bucket = prepared(folder, operation)
        with dying(number, "before", lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) as calls:
            try:
                OPERATIONS[operation](bucket)
            except StorageError as error:
                assert "make room" in str(error) or isinstance(error, Conflict)  # noqa: PT017
            else:
                assert calls.made[number - 1] == "unlink"  # of a draft, which is removed later
        drafts = folder / "bucket/.retake/tmp"
        if calls.made[number - 1] != "unlink" and drafts.exists():
            assert not list(drafts.iterdir())
        check(DirectoryBucket(str(folder / "bucket")), operation)


def test_a_write_is_on_the_disk_before_it_has_its_name_and_its_name_before_it_returns(tmp_path: Path) -> None:
    bucket = prepared(tmp_path, "write")
    synced: list[bool] = []
    with dying() as calls, pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            os, "fsync", lambda file, inner=os.fsync: (synced.append(stat.S_ISDIR(os.fstat(file).st_mode)), inner(file))
        )
        bucket.write("config/doc", NEW, ANY)
    steps = [name for name in calls.made if name in ("write", "fsync", "rename")]
    assert steps == ["write", "fsync", "rename", "fsync"]
    assert synced == [False, True]  # the file, then its folder


def test_new_folders_are_on_the_disk_too(tmp_path: Path) -> None:
    bucket = DirectoryBucket(str(tmp_path / "bucket"))
    with dying() as calls:
        bucket.write("deep/er/doc", NEW, ABSENT)
    folders = [name for name in calls.made if name in ("mkdir", "fsync", "write")]
    assert folders[:6] == ["mkdir"] * 3 + ["fsync"] * 3  # the root, deep, deep/er; then the folder above each
    assert calls.made[-2:] == ["fsync", "unlink"]


def test_a_write_that_the_system_accepts_in_small_parts_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:7]))
    bucket = DirectoryBucket(str(tmp_path / "bucket"))
    bucket.write("a", NEW, ABSENT)
    assert bucket.read("a")[0] == NEW


def test_a_file_system_that_loses_the_end_of_a_file_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = DirectoryBucket(str(tmp_path / "bucket"))
    bucket.write("a", OLD, ABSENT)
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:-1]) + 1)
    with pytest.raises(StorageError, match="399 of 400 bytes arrived"):
        bucket.write("a", NEW, ANY)
    assert bucket.read("a")[0] == OLD
