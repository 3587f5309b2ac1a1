"""What a directory bucket syncs, and what it leaves unsynced."""

import os
from pathlib import Path

import pytest

from retake.bucket import ABSENT, ANY
from retake.bucket.contract import make_folders, mark, write_unsynced
from retake.bucket.directory import DirectoryBucket
from retake.bucket.wrappers import CountingBucket

DRAFT = "a draft"


@pytest.fixture
def bucket(tmp_path: Path) -> DirectoryBucket:
    bucket = DirectoryBucket(str(tmp_path / "bucket"))
    bucket.write("config/a", b"1", ABSENT)
    return bucket


@pytest.fixture
def synced(tmp_path: Path, bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that records which folders of the bucket, and drafts, are synced from now on."""
    names: list[str] = []

    def sync(file: int) -> None:
        path = os.readlink(f"/proc/self/fd/{file}")
        names.append(DRAFT if "/.retake/tmp/" in path else os.path.relpath(path, tmp_path / "bucket"))

    monkeypatch.setattr(os, "fsync", sync)
    return names


def test_a_write_waits_for_its_content_and_its_name(bucket: DirectoryBucket, synced: list[str]) -> None:
    bucket.write("config/a", b"2", ANY)
    assert synced == [DRAFT, "config"]


def test_an_unsynced_write_waits_for_its_content_alone(bucket: DirectoryBucket, synced: list[str]) -> None:
    write_unsynced(CountingBucket(bucket.part("config/")), "a", b"2", ANY)
    assert synced == [DRAFT], "without it a power cut could leave an empty file"


def test_an_exchange_with_the_publisher_waits_for_its_content_alone(bucket: DirectoryBucket, synced: list[str]) -> None:
    bucket.replace("config/a", b"2", bucket.read("config/a")[1], "config/a.displaced-0")
    assert synced == [DRAFT]


def test_each_folder_above_new_ones_is_synced_once(bucket: DirectoryBucket, synced: list[str]) -> None:
    make_folders(CountingBucket(bucket), ["config/", "666/", "spend/", "runs/index/open/", "runs/index/tasks/"])
    assert synced == [".", "runs", "runs/index"]
    make_folders(bucket, ["config/", "666/"])
    assert synced == [".", "runs", "runs/index"], "they are there"


def test_the_folder_of_one_mark_need_not_outlast_a_power_cut(bucket: DirectoryBucket, synced: list[str]) -> None:
    mark(bucket, "runs/index/open/a")
    assert synced == [".", "runs", "runs/index"], "others may rely on these"
    mark(bucket, "runs/index/tasks/b")
    assert synced == [".", "runs", "runs/index"]


def test_our_own_folders_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    bucket = DirectoryBucket(str(tmp_path / "bucket"))
    bucket.lease("story", "me").release()
    assert synced == [str(tmp_path)], "the bucket itself is there to stay"
    first = bucket.lease("story", "me")
    assert synced[1:] == [str(tmp_path / "bucket/.retake/leases/story.lock")], (
        "its token rises, whatever the clock says"
    )
    first.release()
