"""The power fails at every point of a generation, and what nothing waited for is as it was before.

A power cut ends every program, as a death of the machine does (test_crash_sweep), and takes away what the disk had not
been told to keep: writes without a sync, exchanges of the publisher's list, marks. A write that waits for the disk
keeps everything that was written before in its folder. Of the rest either all is lost, or that of one folder.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
from mortal import MortalBucket, MortalWorld, RenamingBucket
from story_runs import memory_of
from test_crash_sweep import SCENARIOS, WORKFLOW, check

from retake.bucket import ANY, Expect
from retake.bucket.contract import Marks, NewFolders, UnsyncedWrites
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.operations.examinations import check_bucket
from retake.story.operations import open_operations


class Unsynced(NamedTuple):
    """Something that a power cut would undo."""

    folder: str
    before: Mapping[str, Any]  # the objects as they were, by key; None: there was none


class DiskBucket(RenamingBucket):
    """A bucket in memory that forgets in a power cut what a directory's disk may forget."""

    may_forget_marks = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.unsynced: list[Unsynced] = []

    def write(self, key: str, data: bytes, expect: str | Expect) -> str:
        version = super().write(key, data, expect)
        self.synced(key)
        return version

    def write_unsynced(self, key: str, data: bytes, expect: str | Expect) -> str:
        return self.noted(key, lambda: MemoryBucket.write(self, key, data, expect))

    def replace(self, key: str, data: bytes, expect: str | Expect, aside: str) -> str:
        return self.noted(key, lambda: super(DiskBucket, self).replace(key, data, expect, aside))

    def mark(self, key: str, instead_of: str | None = None) -> None:
        def rename() -> None:
            self.store.objects.pop(instead_of or "", None)
            MemoryBucket.write(self, key, b"", ANY)

        self.noted(key, rename, *([instead_of] if instead_of else []))

    def make_folders(self, prefixes: Any) -> None:
        """There are none."""

    def delete(self, key: str) -> None:
        super().delete(key)
        self.synced(key)

    def copy(self, source: str, target: str) -> None:
        super().copy(source, target)
        self.synced(target)

    def move(self, moves: Any) -> None:
        super().move(moves)
        for key in (key for each in moves for key in each):
            self.synced(key)

    def noted(self, key: str, call: Callable[[], Any], *others: str) -> Any:
        before = {it: self.store.objects.get(it) for it in (key, *others)}
        result = call()
        self.unsynced.append(Unsynced(key.rpartition("/")[0], before))
        return result

    def synced(self, key: str) -> None:
        self.unsynced = [it for it in self.unsynced if it.folder != key.rpartition("/")[0]]

    def folders(self) -> list[str]:
        """The folders of which something would be lost."""
        return sorted({it.folder for it in self.unsynced})

    def lose(self, folders: list[str]) -> None:
        """The power fails, and what is not on the disk is lost in these folders."""
        for it in reversed(self.unsynced):
            if it.folder in folders:
                for key, former in it.before.items():
                    if former is None:
                        self.store.objects.pop(key, None)
                    else:
                        self.store.objects[key] = former
        self.unsynced = []


class PoweredWorld(MortalWorld):
    memory: DiskBucket

    def __init__(self, **workflow: Any) -> None:
        super().__init__(**workflow)
        self.memory = DiskBucket(self.memory.store, self.fate)
        self.bucket = MortalBucket(self.memory, self.fate)  # type: ignore[assignment]

    def rename_on_moves(self) -> None:
        """They do."""


def born(scenario: str, cap: float | None) -> PoweredWorld:
    world = PoweredWorld(**WORKFLOW, daily_cap_usd=cap)
    SCENARIOS[scenario](world)
    return world


CHANGING = ("write", "replace", "mark", "delete", "copy", "move", "rename", "pay")
"""Operations after which a power cut leaves something else than one before."""

INDEX = "runs/index/"
"""Where marks are. Of an ended run they are made again by the next segment, or by `retake check --repair`."""


def lives(scenario: str, cap: float | None) -> Iterator[tuple[str, PoweredWorld, list[str]]]:
    """Yield the life that ends with each power cut: at which operation, the world, the folders that lost something."""
    world = born(scenario, cap)
    assert world.live()
    points = [due for due, it in enumerate(world.fate.log, 1) if it.startswith(CHANGING)]
    for due in points:
        world = struck(scenario, cap, due)
        folders = world.memory.folders()
        for lost in [folders, *([it] for it in folders if len(folders) > 1)]:
            world = struck(scenario, cap, due) if lost != folders else world
            world.memory.lose(lost)
            yield f"after operation {due}", world, lost


def struck(scenario: str, cap: float | None, due: int) -> PoweredWorld:
    """A world that has died after an operation; the tick's last one can be one that it survives."""
    world = born(scenario, cap)
    world.live(due, after=True)
    world.ended.clear()
    return world


def test_the_bucket_of_these_tests_is_one_that_nothing_waits_for() -> None:
    world = born("happy path", None)
    assert all(isinstance(world.memory, it) for it in (Marks, UnsyncedWrites, NewFolders))
    assert world.live()
    world.memory.write_unsynced("config/a", b"1", ANY)
    world.memory.write_unsynced("config/a", b"2", ANY)
    world.memory.write_unsynced("spend/a", b"3", ANY)
    world.memory.write("spend/b", b"4", ANY)
    assert "config" in world.memory.folders()
    world.memory.lose(world.memory.folders())
    assert not world.memory.find("config/a", [""])
    assert world.memory.find("spend/a", [""])


def repair(world: PoweredWorld, lost: list[str]) -> None:
    """Do `retake check --repair`. It enters names of runs that have ended; and if nothing but the book of the day was
    lost, it makes that up before the next payment does."""
    operations = open_operations(world.settings, FakeClock(world.clock.now()), bucket=memory_of(world))
    report = check_bucket(operations, repair=True)
    codes = {"run-not-indexed", "ended-name-missing", *(["day-book-missing"] if lost == ["caps"] else [])}
    assert {it.code for it in report.findings if it.repaired} <= codes


@pytest.mark.parametrize("cap", [None, 100.0], ids=["no cap", "a cap"])
@pytest.mark.parametrize(
    "scenario",
    [
        "happy path",
        "content in three calls",
        "tidy-up before, by renaming",
        "upscale is exhausted",
        "video's answer is lost",
    ],
)
def test_a_power_cut_at_any_point_loses_nothing_and_pays_nothing_twice(scenario: str, cap: float | None) -> None:
    for when, world, lost in lives(scenario, cap):
        try:
            assert world.live()
            if lost == ["caps"] or any(it.startswith(INDEX) for it in lost):
                repair(world, lost)
            check(world, deaths=1, abandoned="config" in lost, settled=lost != ["caps"])
        except AssertionError as error:
            raise AssertionError(f"{scenario}: power cut {when}, lost in {lost}: {error}") from error
