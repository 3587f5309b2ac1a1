"""Empty folders of a directory bucket are removed on demand, and no write suffers from it."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from retake.bucket import ABSENT, ANY
from retake.bucket.directory import DirectoryBucket
from retake.bucket.empty_folders import remove_folder
from retake.bucket.memory import MemoryBucket
from retake.bucket.wrappers import CountingBucket


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


def test_only_a_folder_that_is_empty_is_removed(root: Path) -> None:
    bucket = DirectoryBucket(str(root))
    bucket.write("jobs/a/b/c", b"1", ABSENT)
    (root / "link").symlink_to(root / "jobs", target_is_directory=True)
    bucket.delete("jobs/a/b/c")
    for prefix in ("jobs/", "jobs/a/", "link/", "link/a/b/", "elsewhere/"):
        remove_folder(bucket, prefix)
    assert (root / "jobs/a/b").is_dir()
    remove_folder(CountingBucket(bucket.part("jobs/")), "a/b/")
    assert [it.name for it in (root / "jobs").rglob("*")] == ["a"]
    for prefix in ("", "/", "../", ".retake/tmp/"):
        with pytest.raises(ValueError):
            remove_folder(bucket, prefix)


def test_removing_makes_nothing(root: Path) -> None:
    remove_folder(DirectoryBucket(str(root)), "jobs/a/")
    assert not root.exists()
    remove_folder(MemoryBucket(), "jobs/a/")


def test_a_write_makes_a_folder_again_that_was_removed_meanwhile(root: Path) -> None:
    bucket = DirectoryBucket(str(root))
    room = bucket.set_aside("jobs/a/output.png", 1)
    remove_folder(bucket, "jobs/a/")
    assert not (root / "jobs/a").exists()
    room.write(b"1", ABSENT)
    assert bucket.read("jobs/a/output.png")[0] == b"1"


@pytest.mark.parametrize("moment", ["mkdir", "chmod"])
def test_a_folder_may_be_removed_while_it_is_made(root: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    bucket = DirectoryBucket(str(root))
    bucket.write("jobs/b", b"", ABSENT)
    made, real = [], getattr(os, moment)

    def late(path: str, *rest: int) -> None:
        if path == str(root / "jobs/a") and not made:
            made.append(path)
            if moment == "mkdir":
                raise FileExistsError
            os.rmdir(path)
        real(path, *rest)

    monkeypatch.setattr(os, moment, late)
    bucket.write("jobs/a/output.png", b"1", ABSENT)
    assert bucket.read("jobs/a/output.png")[0] == b"1"
    assert made


@pytest.mark.parametrize("seed", range(2))
def test_writers_lose_nothing_to_whoever_removes_their_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    ended = threading.Event()
    removed = 0

    def write(name: str) -> None:
        bucket, chance = DirectoryBucket(str(root)), random.Random(f"{seed} {name}")
        for number in range(400):
            data = b"%d" % number
            bucket.write(f"jobs/a/{name}", data, chance.choice([ANY, ABSENT]))
            assert bucket.read(f"jobs/a/{name}")[0] == data
            bucket.delete(f"jobs/a/{name}")

    def remove() -> None:
        nonlocal removed
        bucket = DirectoryBucket(str(root))
        while not ended.is_set():
            bucket.remove_folder("jobs/a/")
            removed += not (root / "jobs/a").exists()

    with ThreadPoolExecutor() as pool:
        remover = pool.submit(remove)
        try:
            for writer in [pool.submit(write, name) for name in ("person", "garment")]:
                writer.result()
        finally:
            ended.set()
        remover.result()
    assert removed, "the remover never met an empty folder"
