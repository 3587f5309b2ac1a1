"""Symbolic links inside a bucket in a directory."""

from collections.abc import Callable
from pathlib import Path

import pytest
from disks import small_disk

from retake.bucket import ABSENT, ANY
from retake.bucket.directory import DirectoryBucket
from retake.errors import StorageError


def keys(bucket: DirectoryBucket) -> list[str]:
    return [entry.key for entry in bucket.list("")]


def linked(tmp_path: Path, root: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_bytes(b"1")
    root.mkdir()
    (root / "folder").symlink_to("../outside")
    (root / "file").symlink_to("../outside/secret")
    (root / "loop").symlink_to(".")
    (root / "nowhere").symlink_to("../not/there")


@pytest.mark.parametrize("key", ["folder/secret", "file", "loop/file", "nowhere", "nowhere/file"])
def test_nothing_is_read_or_written_through_a_symbolic_link(
    tmp_path: Path, root: Path, bucket: DirectoryBucket, key: str
) -> None:
    linked(tmp_path, root)
    assert keys(bucket) == []
    bucket.delete(key)
    calls: list[Callable[[], object]] = [lambda: bucket.read(key), lambda: bucket.replace(key, b"2", ANY, "aside")]
    calls += [lambda expect=expect: bucket.write(key, b"2", expect) for expect in (ANY, ABSENT, "0-0-0")]  # type: ignore[misc]
    if "/" in key:
        calls += [lambda: bucket.list(key), lambda: bucket.find(key, [""]), lambda: bucket.set_aside(key, 1)]
    else:
        assert bucket.find(key, [""]) == []
    for call in calls:
        with pytest.raises(StorageError, match=r"does not follow symbolic links.*STORAGE\.follow_links"):
            call()
    assert (tmp_path / "outside/secret").read_bytes() == b"1"
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize("part", ["", "channel/"])
def test_a_linked_folder_is_refused_before_a_lease_is_taken(root: Path, bucket: DirectoryBucket, part: str) -> None:
    (root / part).mkdir(parents=True)
    (root / "elsewhere.png").symlink_to("nowhere")  # not a folder, so of no concern
    bucket.lease(f"{part}story", "me").release()
    (root / f"{part}archive").symlink_to(root.parent)
    with pytest.raises(StorageError, match=r"archive.*does not follow symbolic links"):
        bucket.lease(f"{part}story", "me")


@pytest.mark.parametrize("name", [".retake", ".retake/leases", ".retake/leases/story.lock", ".retake/tmp"])
@pytest.mark.parametrize("dangling", [False, True])
@pytest.mark.parametrize("follow", [False, True])
def test_no_link_is_followed_among_our_own_things(
    tmp_path: Path, root: Path, name: str, dangling: bool, follow: bool
) -> None:
    outside = tmp_path / "outside"
    if not dangling:
        outside.touch() if name.endswith(".lock") else outside.mkdir()
    (root / name).parent.mkdir(parents=True)
    (root / name).symlink_to(outside)
    bucket = DirectoryBucket(str(root), follow_links=follow)
    with pytest.raises(StorageError, match="does not follow symbolic links"):
        bucket.write("a", b"1", ABSENT) if name.endswith("tmp") else bucket.lease("story", "me")
    assert outside.exists() is not dangling
    assert dangling or name.endswith(".lock") or list(outside.iterdir()) == []


def test_a_folder_on_another_disk_can_be_linked_on_purpose(tmp_path: Path, root: Path) -> None:
    """The other disk is a tmpfs where one can be mounted, otherwise a folder; then no rename between disks is
    refused."""
    bucket, disk = DirectoryBucket(str(root), follow_links=True), tmp_path / "disk"
    disk.mkdir()
    root.mkdir()
    (root / "archive").symlink_to(disk)
    with small_disk(disk, 1 << 20):
        version = bucket.write("archive/a", b"1", ABSENT)
        bucket.write("666/a", b"2", ABSENT)
        bucket.copy("666/a", "archive/b")
        version = bucket.replace("archive/a", b"3", version, "archive/aside")
        room = bucket.set_aside("archive/b", 10)
        room.write(b"4", ANY)
        room.release()
        bucket.lease("story", "me").release()
        assert keys(bucket) == ["666/a", "archive/a", "archive/b"]
        assert (bucket.read("archive/a"), bucket.read("archive/b")[0]) == ((b"3", version), b"4")
        bucket.delete("archive/b")
        assert sorted(path.name for path in disk.iterdir()) == [".retake", "a"]


@pytest.mark.parametrize("target", ["loop", "a/none"])
def test_a_link_that_leads_nowhere_hides_nothing_beside_it(root: Path, target: str) -> None:
    bucket = DirectoryBucket(str(root), follow_links=True)
    for key in ("a", "b", "z"):
        bucket.write(key, b"1", ABSENT)
    (root / "loop").symlink_to(target)
    assert keys(bucket) == ["a", "b", "z"]
    assert [*bucket.remains()] == []
