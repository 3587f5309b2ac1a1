"""The lease of a directory bucket: the kernel's lock, and the token beside it."""

import os
import signal
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from processes import go, started, tell

from retake.bucket import Lease
from retake.bucket.directory import DirectoryBucket
from retake.clock import FakeClock
from retake.errors import LeaseHeld, LeaseLost, StorageError


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "bucket")


@pytest.fixture
def bucket(root: str) -> DirectoryBucket:
    return DirectoryBucket(root, clock=FakeClock(datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)))


@pytest.fixture
def lock(root: str) -> Path:
    return Path(root, ".retake/leases/story.lock")


def test_the_message_says_who_since_when_and_what_to_do(bucket: DirectoryBucket) -> None:
    bucket.lease("story", "host\nwith odd  name:17")
    with pytest.raises(LeaseHeld, match=r"held by host with odd name:17 since 2026-03-04T05:06:07Z; it is free when"):
        bucket.lease("story", "other")


@pytest.mark.parametrize("owner", ["", "ж" * 500, "\udcff"])
def test_no_owner_breaks_the_record(bucket: DirectoryBucket, lock: Path, owner: str) -> None:
    lease = bucket.lease("story", owner)
    with pytest.raises(LeaseHeld):
        bucket.lease("story", "other")
    assert lock.stat().st_size == 256
    lease.check()
    lease.release()


def test_the_kernel_frees_the_lease_of_a_killed_process(root: str, bucket: DirectoryBucket) -> None:
    with started("holder", root, "story") as process:
        go(process)
        token = int(process.stdout.readline())
        with pytest.raises(LeaseHeld, match="holder:1"):
            bucket.lease("story", "me")
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        lease = bucket.lease("story", "me")
    assert lease.token > token
    lease.release()


def test_the_lease_outlives_a_killed_manager_while_its_script_runs(root: str, bucket: DirectoryBucket) -> None:
    with started("parent", root, "story") as process:
        go(process)
        go(process)  # this time the script answers, on its parent's pipes
        token = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        with pytest.raises(LeaseHeld, match="parent:1"):
            bucket.lease("story", "me")
        tell(process)
        assert process.stdout.readline() == "held\n"
        process.stdin.close()
        assert process.stdout.readline() == ""  # the script ends: the kernel closes its lock a moment later
        lease = taken_soon(bucket)
    assert lease.token > token
    lease.release()


def taken_soon(bucket: DirectoryBucket) -> Lease:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with suppress(LeaseHeld):
            return bucket.lease("story", "me")
        time.sleep(0.01)
    return bucket.lease("story", "me")


def test_a_lease_released_by_the_manager_stays_with_a_script_that_joined(bucket: DirectoryBucket) -> None:
    lease = bucket.lease("story", "me")
    joined = bucket.join("story", lease.handover().text)
    lease.release()
    joined.check()
    with pytest.raises(LeaseHeld):
        bucket.lease("story", "other")
    joined.release()
    bucket.lease("story", "other").release()


def test_what_a_script_starts_does_not_inherit_the_lease(bucket: DirectoryBucket) -> None:
    lease = bucket.lease("story", "me")
    (file,) = lease.handover().fds
    assert not os.get_inheritable(file)
    os.set_inheritable(file, True)  # as in a script, which inherits it through pass_fds
    joined = bucket.join("story", lease.handover().text)
    assert not os.get_inheritable(file)
    joined.release()
    lease.release()


def test_a_descriptor_of_the_lock_file_is_not_the_lock(bucket: DirectoryBucket, lock: Path) -> None:
    lease = bucket.lease("story", "me")
    with lock.open("r+b") as other:
        with pytest.raises(LeaseLost, match="somebody else"):
            bucket.join("story", f"{other.fileno()} {lease.token}")
        lease.check()
        with pytest.raises(LeaseLost, match="another token"):
            bucket.join("story", f"{lease.handover().fds[0]} {lease.token - 1}")
    lease.release()


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_lock_file_that_was_removed_is_a_lost_lease(bucket: DirectoryBucket, lock: Path, how: str) -> None:
    lease = bucket.lease("story", "me")
    lock.unlink()
    if how == "replaced":
        lock.write_bytes(b"")
    for call in (lease.check, lease.handover):
        with pytest.raises(LeaseLost, match="removed or replaced"):
            call()
    other = bucket.lease("story", "other")
    other.check()
    other.release()
    lease.release()


def test_a_lock_file_that_is_removed_while_we_wait_for_the_lock_is_opened_again(
    bucket: DirectoryBucket, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.lease("story", "me").release()
    real, removed = os.open, []

    def open_then_remove(path: str, *rest: int) -> int:
        file = real(path, *rest)
        if str(path) == str(lock) and not removed:
            removed.append(path)
            lock.unlink()
        return file

    monkeypatch.setattr(os, "open", open_then_remove)
    lease = bucket.lease("story", "me")
    assert removed
    lease.check()
    lease.release()


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 256, b"nonsense", b"9" * 256, b"-0000000000000000005", b"0" * 20, "٣".encode() * 20, b"\xff" * 300],
)
def test_a_broken_token_does_not_brick_the_lease_and_does_not_fall(
    root: str, bucket: DirectoryBucket, lock: Path, content: bytes
) -> None:
    first = bucket.lease("story", "me")
    first.release()
    lock.write_bytes(content)
    later = DirectoryBucket(root, clock=FakeClock(datetime(2026, 3, 4, 5, 7, tzinfo=UTC)))
    second = later.lease("story", "me")
    second.check()
    assert second.token > first.token
    second.release()


def test_tokens_rise_though_the_clock_goes_back_or_the_file_is_lost(root: str, lock: Path) -> None:
    tokens = []
    for day in (5, 4, 3, 4):
        lease = DirectoryBucket(root, clock=FakeClock(datetime(2026, 3, day, tzinfo=UTC))).lease("story", "me")
        tokens.append(lease.token)
        lease.release()
    lock.unlink()
    lease = DirectoryBucket(root, clock=FakeClock(datetime(2026, 3, 6, tzinfo=UTC))).lease("story", "me")
    tokens.append(lease.token)
    lease.release()
    assert tokens == sorted(set(tokens))
    assert tokens[-1] < 2**53  # an integer for every reader of JSON


def test_a_holder_whose_token_was_overwritten_has_lost(bucket: DirectoryBucket, lock: Path) -> None:
    lease = bucket.lease("story", "me")
    with lock.open("r+b") as file:
        file.write(b"%020d" % (lease.token + 1))
    with pytest.raises(LeaseLost, match="another token"):
        lease.check()
    lease.release()


def test_a_lease_needs_a_place(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is not there: mount or make it"):
        DirectoryBucket(str(tmp_path / "missing/bucket")).lease("story", "me")


def test_a_file_system_without_locks_is_named(bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(StorageError, match="cannot lock files: use a local disk"):
        bucket.lease("story", "me")
