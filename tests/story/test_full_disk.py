"""A disk that fills up between a vendor's answer and its record: nothing is paid for twice."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from disks import FullDisk, read_only, small_disk
from story_world import World
from test_paid_calls import BEFORE, DOCUMENT, before

from retake.bucket.directory import DirectoryBucket
from retake.errors import StorageError
from retake.story.store import DocumentStore

pytestmark = pytest.mark.usefixtures("no_fsync")


def on_a_directory(kind: str, folder: Path, fill: Callable[[], object]) -> World:
    """Return a pipeline whose next paid call is of that kind. `fill` is called once the vendor has carried it out,
    before its answer arrives."""
    bucket: Any = DirectoryBucket(str(folder))
    world = before(kind, bucket)
    pay = world.vendors.pay

    def paid(what: str) -> str:
        answer = pay(what)
        if what == kind:
            fill()
        return answer

    world.vendors.pay = paid
    return world


def tick(world: World) -> int:
    """Tick as far as the disk allows; return the exit code."""
    try:
        return world.manager().tick().exit_code
    except StorageError as error:
        return error.exit_code


def assert_paid_once(world: World, kind: str, about: str) -> None:
    doc = DocumentStore(world.bucket, world.settings.paths, None, world.clock).read().midjourney
    assert doc.pending is None, about
    assert not [call for call in doc.paid_calls if call.get("possible_duplicate")], about
    assert world.vendors.billed[kind] == 1, about


@pytest.mark.parametrize("kind", BEFORE)
def test_an_answer_is_saved_on_a_disk_that_fails_at_any_byte(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, step = FullDisk(monkeypatch), 1 if kind == "imagine" else 17
    for left in range(0, 1 << 16, step):
        folder = tmp_path / str(left)
        world = on_a_directory(kind, folder, lambda left=left: setattr(disk, "left", left))  # type: ignore[misc]
        tick(world)
        disk.left = None
        assert_paid_once(world, kind, f"with room for {left} bytes")
        size = len(world.bucket.read(DOCUMENT)[0])
        shutil.rmtree(folder)
        if left > size + step:
            return
    pytest.fail("the document never fitted")


@pytest.mark.parametrize("kind", BEFORE)
def test_a_disk_without_room_for_the_answer_costs_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    world = on_a_directory(kind, tmp_path / "bucket", lambda: None)
    disk.left = 64 * 1024
    assert tick(world) == 75
    disk.left = None
    assert (world.vendors.asked[kind], world.doc.pending, world.doc.retries) == (0, None, {})
    tick(world)
    assert_paid_once(world, kind, "once there is room")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a real disk, small in bytes and in files."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_disk(folder, 2 << 20, inodes=200) as mounted:
        if not mounted:
            pytest.skip("no small disk can be mounted here")
        yield folder


def take_all_bytes(folder: Path) -> None:
    with open(folder / "others", "wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


def take_all_inodes(folder: Path) -> None:
    with suppress(OSError):
        for number in range(10_000):
            (folder / f"others-{number}").touch()


@pytest.mark.parametrize("fill", [take_all_bytes, take_all_inodes])
@pytest.mark.parametrize("kind", BEFORE)
def test_an_answer_is_saved_on_a_real_disk_that_is_full(kind: str, disk: Path, fill: Callable[[Path], object]) -> None:
    world = on_a_directory(kind, disk / "bucket", lambda: fill(disk))
    tick(world)
    for other in disk.glob("others*"):
        other.unlink()
    assert_paid_once(world, kind, "on a full tmpfs")


@pytest.mark.parametrize("fill", [take_all_bytes, take_all_inodes, read_only])
@pytest.mark.parametrize("kind", BEFORE)
def test_a_real_disk_that_takes_nothing_costs_nothing(kind: str, disk: Path, fill: Callable[[Path], object]) -> None:
    world = on_a_directory(kind, disk / "bucket", lambda: None)
    fill(disk)
    assert [tick(world) for _ in range(3)] == [75] * 3
    assert (world.vendors.asked[kind], world.doc.pending) == (0, None)
