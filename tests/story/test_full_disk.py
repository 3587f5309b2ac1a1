"""A disk that fills up between a vendor's answer and its record: nothing is paid for twice."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from disks import FullDisk, small_disk
from story_world import World
from test_intent import BEFORE, DOCUMENT, before

from retake.bucket.directory import DirectoryBucket
from retake.errors import StorageError

pytestmark = pytest.mark.usefixtures("no_fsync")


def on_a_directory(kind: str, folder: Path, fill: Callable[[], object]) -> World:
    """A pipeline whose next paid call is of that kind. `fill` is called when the vendor has carried it out, before
    its answer is seen."""
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
    """One tick, as far as the disk lets it come; its exit code."""
    try:
        return world.manager().tick().exit_code
    except StorageError as error:
        return error.exit_code


def assert_paid_once(world: World, kind: str, about: str) -> None:
    assert world.doc.pending is None, about
    assert not [call for call in world.doc.paid_calls if call.get("possible_duplicate")], about
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


@pytest.mark.parametrize("kind", BEFORE)
def test_an_answer_is_saved_on_a_real_disk_that_is_full(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()

    def fill() -> None:
        with open(folder / "others", "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                return

    with small_disk(folder, 2 << 20) as mounted:
        if not mounted:
            pytest.skip("no small disk can be mounted here")
        world = on_a_directory(kind, folder / "bucket", fill)
        tick(world)
        (folder / "others").unlink(missing_ok=True)
        assert_paid_once(world, kind, "on a full tmpfs")
