"""Particular to a bucket in a directory: people and other programs see its files."""

import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from processes import go, started

from retake.bucket import ABSENT, ANY, Conflict, Entry, NotFound, open_bucket
from retake.bucket.directory import DirectoryBucket
from retake.clock import FakeClock
from retake.errors import StorageError


def keys(bucket: DirectoryBucket, prefix: str = "") -> list[str]:
    return [entry.key for entry in bucket.list(prefix)]


# --- where it lies ----------------------------------------------------------------------------------------------


def test_settings_open_it_and_a_later_chdir_does_not_move_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bucket = open_bucket("file:state/story")
    assert bucket.url == "file:state/story"
    (tmp_path / "state").mkdir()
    monkeypatch.chdir("/")
    bucket.write("666/a.json", b"{}", ABSENT)
    assert (tmp_path / "state/story/666/a.json").read_bytes() == b"{}"


def test_a_current_folder_that_was_removed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(StorageError, match="the current folder, which no longer exists"):
        open_bucket("file:bucket")


def test_reading_makes_nothing(root: Path, bucket: DirectoryBucket) -> None:
    assert keys(bucket) == []
    bucket.delete("a")
    with pytest.raises(NotFound):
        bucket.read("a")
    assert not root.exists()


def test_a_folder_that_lacks_its_parent_is_not_an_empty_bucket(tmp_path: Path) -> None:
    bucket = DirectoryBucket(str(tmp_path / "disk/bucket"))
    for call in (
        lambda: bucket.read("a"),
        lambda: bucket.list(""),
        lambda: bucket.delete("a"),
        lambda: bucket.copy("a", "b"),
        lambda: bucket.write("a", b"", ANY),
        lambda: bucket.replace("a", b"", ANY, "b"),
    ):
        with pytest.raises(StorageError, match=r"disk, where the bucket's folder should be, is not there"):
            call()
    assert not (tmp_path / "disk").exists()


def test_a_file_in_the_place_of_the_folder_is_reported(root: Path, bucket: DirectoryBucket) -> None:
    root.write_bytes(b"")
    for call in (lambda: bucket.read("a"), lambda: bucket.list(""), lambda: bucket.write("a", b"", ANY)):
        with pytest.raises(StorageError, match="is not a folder: move it away"):
            call()


_READ_WITH_LITTLE_MEMORY = """
import resource, sys
from retake.bucket.directory import DirectoryBucket
from retake.errors import StorageError
bucket = DirectoryBucket(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
try:
    bucket.read("runs/a.json")
except StorageError as error:
    print(error)
"""


def test_a_file_that_is_larger_than_the_memory_is_named(root: Path, bucket: DirectoryBucket) -> None:
    bucket.write("runs/a.json", b"{}", ABSENT)
    os.truncate(root / "runs/a.json", 2**33)
    command = [sys.executable, "-c", _READ_WITH_LITTLE_MEMORY, str(root)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.startswith(f"cannot read runs/a.json of file:{root}: it has {2**33} bytes")


def test_a_file_in_the_place_of_the_folder_above_is_not_reported_as_missing(tmp_path: Path) -> None:
    (tmp_path / "disk").touch()
    with pytest.raises(StorageError, match="disk, where the bucket's folder should be, is not a folder"):
        DirectoryBucket(str(tmp_path / "disk/bucket")).read("a")


def test_a_root_that_is_a_symbolic_link_is_followed(tmp_path: Path, root: Path, bucket: DirectoryBucket) -> None:
    (tmp_path / "real").mkdir()
    root.symlink_to("real")
    bucket.write("a/b", b"1", ABSENT)
    assert (keys(bucket), (tmp_path / "real/a/b").read_bytes()) == (["a/b"], b"1")


# --- other programs' files --------------------------------------------------------------------------------------


def test_dot_files_of_others_are_listed_and_our_own_things_are_not(root: Path, bucket: DirectoryBucket) -> None:
    bucket.write("666/a.json", b"", ABSENT)
    bucket.lease("story", "me").release()
    (root / "666/.a.json.tmp").write_bytes(b"12")
    (root / ".retake-old").write_bytes(b"")
    (root / "666/.retake.lock").write_bytes(b"")
    assert [(entry.key, entry.size) for entry in bucket.list("")] == [("666/.a.json.tmp", 2), ("666/a.json", 0)]
    assert bucket.read("666/.a.json.tmp")[0] == b"12"


def test_names_that_are_no_keys_are_not_listed(root: Path, bucket: DirectoryBucket) -> None:
    root.mkdir()
    for name in (b"back\\slash", b"line\nfeed", b"\xff", b"x" * 251):
        Path(os.fsdecode(os.path.join(os.fsencode(root), name))).write_bytes(b"")
    (root / "a\\b").mkdir()
    (root / "a\\b/c").write_bytes(b"")
    assert keys(bucket) == []


def test_pipes_and_sockets_are_no_objects_and_do_not_hang_a_reader(root: Path, bucket: DirectoryBucket) -> None:
    root.mkdir()
    os.mkfifo(root / "pipe")
    with pytest.raises(NotFound):
        bucket.read("pipe")
    assert keys(bucket) == []


def test_a_foreign_file_has_a_version_that_changes_with_it(root: Path, bucket: DirectoryBucket) -> None:
    root.mkdir()
    (root / "a").write_bytes(b"1")
    version = bucket.read("a")[1]
    assert bucket.read("a")[1] == version
    (root / "a").write_bytes(b"22")
    with pytest.raises(Conflict):
        bucket.write("a", b"3", version)
    assert (root / "a").read_bytes() == b"22"


def test_a_file_is_stamped_in_nanoseconds_where_the_kernel_may_give_two_files_the_same_time(
    root: Path, bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for now in (1_800_000_000_123_456_789, 1_800_000_000_123_456_790):
        monkeypatch.setattr("time.time_ns", lambda now=now: now)
        bucket.write("a", b"same", ANY)
        assert (root / "a").stat().st_mtime_ns == now
        assert f"-{now:x}-" in bucket.read("a")[1]


def test_what_a_foreign_program_makes_at_the_last_moment_is_not_overwritten_where_nothing_was_expected(
    root: Path, bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def late(source: str, target: str) -> None:
        Path(target).write_bytes(b"foreign")
        real(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(Conflict):
        bucket.write("a", b"ours", ABSENT)
    assert (root / "a").read_bytes() == b"foreign"


def test_a_listing_bears_that_files_and_folders_go_while_it_looks(
    root: Path, bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("a/1", "b/1", "c"):
        bucket.write(key, b"", ABSENT)
    real = os.scandir

    def late(path: str):
        found = real(path)
        if Path(path) == root:
            (root / "a/1").unlink()
            (root / "a").rmdir()
            (root / "c").unlink()
        return found

    monkeypatch.setattr(os, "scandir", late)
    assert keys(bucket) == ["b/1"]


def test_the_folder_of_deleted_keys_can_become_a_key(root: Path, bucket: DirectoryBucket) -> None:
    bucket.write("a/b/c", b"1", ABSENT)
    with pytest.raises(StorageError, match="a folder has that name"):
        bucket.write("a", b"2", ABSENT)
    bucket.delete("a/b/c")
    assert (root / "a/b").is_dir()
    bucket.write("a", b"2", ABSENT)
    assert keys(bucket) == ["a"]


# --- leftovers --------------------------------------------------------------------------------------------------


def test_drafts_of_crashed_writers_are_swept_up_after_a_day(root: Path, bucket: DirectoryBucket) -> None:
    bucket.write("a", b"", ABSENT)
    now = datetime(2026, 1, 3, tzinfo=UTC)
    for name, hours in (("old", 25), ("young", 23)):
        (root / ".retake/tmp" / name).write_bytes(b"")
        os.utime(root / ".retake/tmp" / name, times=(now.timestamp() - hours * 3600,) * 2)
    later = DirectoryBucket(str(root), clock=FakeClock(now))
    later.read("a")
    later.list("")
    later.lease("story", "me").release()
    assert (root / ".retake/tmp/old").exists()
    later.write("a", b"", ANY)
    assert [path.name for path in (root / ".retake/tmp").iterdir()] == ["young"]


def test_it_works_on_when_somebody_has_cleared_away_its_own_folder(root: Path, bucket: DirectoryBucket) -> None:
    import shutil

    version = bucket.write("a", b"1", ABSENT)
    shutil.rmtree(root / ".retake")
    version = bucket.write("a", b"2", version)
    shutil.rmtree(root / ".retake")
    bucket.replace("a", b"3", version, "aside")
    shutil.rmtree(root / ".retake")
    bucket.delete("a")
    assert keys(bucket) == []


# --- several at once --------------------------------------------------------------------------------------------


def test_processes_that_count_lose_nothing(root: Path, bucket: DirectoryBucket) -> None:
    bucket.write("count", b"0", ABSENT)
    with ExitStack() as running:
        counters = [running.enter_context(started("counter", root, 60)) for _ in range(3)]
        go(*counters)
        assert [counter.wait(300) for counter in counters] == [0, 0, 0]
    assert bucket.read("count")[0] == b"180"


def test_no_reader_sees_half_a_write(root: Path, bucket: DirectoryBucket) -> None:
    bucket.write("large", b"c", ABSENT)
    seen = 0
    with ExitStack() as running:
        writers = [running.enter_context(started("writer", root, letter, 60)) for letter in "ab"]
        go(*writers)
        while not seen or any(writer.poll() is None for writer in writers):  # they may end before we look
            data = bucket.read("large")[0]
            assert data.count(data[:1]) == len(data)
            assert len(data) == 1 or len(data) >= 50_000
            assert bucket.list("large")[0].size >= 1
            seen += len(data) > 1
        assert [writer.wait(300) for writer in writers] == [0, 0]
    assert seen
    assert list((root / ".retake/tmp").iterdir()) == []


def test_a_frozen_writer_is_reported_after_a_minute(root: Path, bucket: DirectoryBucket) -> None:
    import fcntl

    bucket.write("a", b"1", ABSENT)
    clock = FakeClock()
    start = clock.now()
    with (root / ".retake/writes.lock").open() as frozen:
        fcntl.flock(frozen, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match=r"writes\.lock has been locked for 60 s: end the process that hangs"):
            DirectoryBucket(str(root), clock=clock).write("a", b"2", ANY)
    assert (clock.now() - start).total_seconds() == pytest.approx(60, abs=0.1)
    assert bucket.read("a")[0] == b"1"
    assert list((root / ".retake/tmp").iterdir()) == []


def test_a_writer_waits_for_the_lock(root: Path, bucket: DirectoryBucket) -> None:
    import fcntl

    bucket.write("a", b"1", ABSENT)
    waiting = threading.Event()

    class Waiting(FakeClock):
        def sleep(self, seconds: float) -> None:
            waiting.set()
            fcntl.flock(other, fcntl.LOCK_UN)

    with (root / ".retake/writes.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        DirectoryBucket(str(root), clock=Waiting()).write("a", b"2", ANY)
    assert waiting.is_set()
    assert bucket.read("a")[0] == b"2"


# --- a disk that will not ---------------------------------------------------------------------------------------


def test_a_file_that_is_larger_than_allowed_is_reported_and_leaves_nothing(root: Path, bucket: DirectoryBucket) -> None:
    with started("limited", root) as process:
        go(process)
        said = process.stdout.readline()
        process.wait(60)
    assert said.startswith(f"cannot write large to file:{root}: File too large")
    assert "ulimit" in said
    assert keys(bucket) == []
    assert list((root / ".retake/tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("code", "advice"),
    [(13, "the right to read and write.* chown -R"), (30, "read-only"), (122, "quota"), (28, r"\(df -i\): make room")],
)
def test_a_disk_that_refuses_is_reported_with_what_to_do(
    root: Path, bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    bucket.write("a", b"1", ABSENT)
    real = os.open

    def refuse(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(code, os.strerror(code), path)
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    for call in (
        lambda: bucket.write("a", b"2", ANY),
        lambda: bucket.replace("a", b"2", ANY, "b"),
        lambda: bucket.copy("a", "b"),
        lambda: bucket.delete("a"),
        lambda: bucket.lease("story", "me"),
    ):
        with pytest.raises(StorageError, match=rf"{os.strerror(code)} \(.*{advice}"):
            call()
    assert bucket.read("a")[0] == b"1"
    assert keys(bucket) == ["a"]


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write to read-only folders")
def test_a_read_only_folder_can_be_read(root: Path, bucket: DirectoryBucket) -> None:
    bucket.write("a", b"1", ABSENT)
    (root / ".retake/tmp").chmod(0o500)
    root.chmod(0o500)
    with pytest.raises(StorageError, match="the right to read and write"):
        bucket.write("a", b"2", ANY)
    assert bucket.read("a")[0] == b"1"
    root.chmod(0o700)
    (root / ".retake/tmp").chmod(0o700)


def test_a_folder_that_may_not_be_read_is_not_empty(
    root: Path, bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.write("a/b", b"1", ABSENT)
    real = os.scandir

    def refuse(path: str):
        if path.endswith("/a"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StorageError, match="the right to read and write"):
        bucket.list("")


# --- what it costs ----------------------------------------------------------------------------------------------


def test_its_import_stays_cheap() -> None:
    heavy = ["hashlib", "random", "tempfile", "pathlib", "shutil", "ctypes", "subprocess", "dataclasses", "asyncio"]
    program = (
        "import sys; before = set(sys.modules); import retake.clock, retake.errors; theirs = set(sys.modules);"
        "import retake.bucket.directory; print(*(set(sys.modules) - theirs))"
    )
    here = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=here)
    assert not set(heavy) & set(done.stdout.split())


def test_an_entry_is_a_plain_tuple(bucket: DirectoryBucket) -> None:
    bucket.write("a", b"12", ABSENT)
    (entry,) = bucket.list("")
    assert entry == Entry("a", 2, entry.modified)


def test_a_folder_is_synced_once_after_those_that_its_files_moved_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, synced = DirectoryBucket(str(tmp_path / "bucket")), list[str]()
    for key in ("1/a", "1/b", "2/c", "3/d", "9/z"):
        bucket.write(key, key.encode(), ANY)
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).name))
    bucket.move([("3/d", "2/d"), ("2/c", "1/c"), ("1/a", "9/a"), ("1/b", "9/b")])
    assert synced == ["9", "1", "2", "3"]
    assert [entry.key for entry in bucket.list("")] == ["1/c", "2/d", "9/a", "9/b", "9/z"]


def test_folders_that_exchange_files_are_synced_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, synced = DirectoryBucket(str(tmp_path / "bucket")), list[str]()
    bucket.write("1/a", b"a", ANY)
    bucket.write("2/b", b"b", ANY)
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).name))
    bucket.move([("1/a", "2/a"), ("2/b", "1/b")])
    assert synced == ["2", "1", "1", "2"]
    assert bucket.read("1/b")[0] + bucket.read("2/a")[0] == b"ba"
