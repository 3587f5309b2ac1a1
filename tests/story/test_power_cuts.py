"""The power fails at every point of a generation, and what was not waited for is as it was before.

A power cut ends every program, like a death of the machine (test_crash_sweep), and loses what the disk had not been
told to keep: writes without a sync, exchanges of the publisher's list, marks. A write that waits for the disk keeps
everything that was written before in its folder. Of the rest, either everything is lost, or that of one folder.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from mortal import Moment, MortalBucket, MortalWorld, RenamingBucket
from story_runs import memory_of
from test_crash_sweep import SCENARIOS, WORKFLOW, check, left

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


def undone(objects: Mapping[str, Any], unsynced: Sequence[Unsynced], folders: Sequence[str]) -> dict[str, Any]:
    """Return the objects without what is not on the disk in these folders."""
    found = dict(objects)
    for it in reversed(unsynced):
        if it.folder in folders:
            found |= it.before
    return {key: it for key, it in found.items() if it is not None}


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
        """Do nothing: there are no folders."""

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

    def lose(self, folders: Sequence[str]) -> None:
        """Let the power fail, and lose what is not on the disk in these folders."""
        self.store.objects = undone(self.store.objects, self.unsynced, folders)
        self.unsynced = []


class PoweredWorld(MortalWorld):
    memory: DiskBucket

    def __init__(self, **workflow: Any) -> None:
        super().__init__(**workflow)
        self.memory = DiskBucket(self.memory.store, self.fate)
        self.bucket = MortalBucket(self.memory, self.fate)  # type: ignore[assignment]

    def rename_on_moves(self) -> None:
        """Do nothing: they do."""

    def die_at(self, moment: Moment) -> None:
        self.memory.unsynced = []
        super().die_at(moment)


def born(scenario: str, cap: float | None) -> PoweredWorld:
    world = PoweredWorld(**WORKFLOW, daily_cap_usd=cap)
    SCENARIOS[scenario](world)
    return world


CHANGING = ("write", "replace", "mark", "delete", "copy", "move", "rename", "pay")
"""Operations whose effect a power cut may undo."""

INDEX = "runs/index/"
"""Where marks are. The next segment, or `retake check --repair`, restores those of an ended run."""


class Loss(NamedTuple):
    """What is lost in a power cut, and the differences that this allows."""

    folders: tuple[str, ...]

    @property
    def mended(self) -> bool:
        """Whether `retake check --repair` is needed."""
        return self.folders == ("caps",) or any(it.startswith(INDEX) for it in self.folders)

    @property
    def settled(self) -> bool:
        return self.folders != ("caps",)

    @property
    def abandoned(self) -> bool:
        return "config" in self.folders

    @property
    def allowed(self) -> tuple[bool, ...]:
        return self.mended, self.settled, self.abandoned


class Cut(NamedTuple):
    """A power cut after an operation: the objects, and what of them the disk had not been told to keep."""

    due: int
    moment: Moment
    unsynced: list[Unsynced]

    def losses(self) -> list[Loss]:
        folders = sorted({it.folder for it in self.unsynced})
        return [Loss(tuple(folders)), *(Loss((it,)) for it in folders if len(folders) > 1)]

    def after(self, loss: Loss) -> Moment:
        """Return what is left. A generation that has ended in the same tick is followed by another one."""
        return self.moment._replace(objects=undone(self.moment.objects, self.unsynced, loss.folders), ended=())


def cuts(scenario: str, cap: float | None) -> list[Cut]:
    """Return what each power cut in the life of a world would find."""
    world, found = born(scenario, cap), list[Cut]()

    def watch(number: int, after: bool) -> None:
        if after and world.fate.log[-1].startswith(CHANGING):
            found.append(Cut(number, world.moment(), world.memory.unsynced[:]))

    world.fate.watch = watch
    assert world.live()
    return found


def lives(scenario: str, cap: float | None) -> Iterator[tuple[str, PoweredWorld, Loss]]:
    """Yield the life that ends with each power cut: the operation, the world, what was lost.

    Of the cuts that leave and allow the same, the first stands for all.
    """
    world = born(scenario, cap)
    known: defaultdict[tuple[bool, ...], list[Moment]] = defaultdict(list)
    for cut in cuts(scenario, cap):
        for loss in cut.losses():
            moment = cut.after(loss)
            if moment not in known[loss.allowed]:
                known[loss.allowed].append(moment)
                world.die_at(moment)
                yield f"after operation {cut.due}", world, loss


def test_the_bucket_of_these_tests_is_one_that_nothing_waits_for() -> None:
    world = born("happy path", None)
    assert all(isinstance(world.memory, it) for it in (Marks, UnsyncedWrites, NewFolders))
    assert world.live()
    world.memory.write_unsynced("config/a", b"1", ANY)
    world.memory.write_unsynced("config/a", b"2", ANY)
    world.memory.write_unsynced("spend/a", b"3", ANY)
    world.memory.write("spend/b", b"4", ANY)
    folders = {it.folder for it in world.memory.unsynced}
    assert "config" in folders
    world.memory.lose([*folders])
    assert not world.memory.find("config/a", [""])
    assert world.memory.find("spend/a", [""])


def repair(world: PoweredWorld, loss: Loss) -> None:
    """Run `retake check --repair`. It enters the names of ended runs; and if only the day's book was lost, it restores
    that before the next payment would."""
    operations = open_operations(world.settings, FakeClock(world.clock.now()), bucket=memory_of(world))
    report = check_bucket(operations, repair=True)
    codes = {"run-not-indexed", "ended-name-missing", *([] if loss.settled else ["day-book-missing"])}
    assert {it.code for it in report.findings if it.repaired} <= codes


EVERY = 11


@pytest.mark.parametrize("scenario", ["happy path", "tidy-up before, by renaming", "video's answer is lost"])
def test_what_a_power_cut_finds_is_what_a_machine_leaves_that_dies_then(scenario: str) -> None:
    for cut in cuts(scenario, 100.0)[::EVERY]:
        world = born(scenario, 100.0)
        world.live(cut.due, after=True)
        died, found = world.moment(), cut.moment
        unsynced = [(it.folder, set(it.before)) for it in world.memory.unsynced]
        assert unsynced == [(it.folder, set(it.before)) for it in cut.unsynced]
        assert left(died) == left(found)


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
    for when, world, loss in lives(scenario, cap):
        try:
            assert world.live()
            if loss.mended:
                repair(world, loss)
            check(world, deaths=1, abandoned=loss.abandoned, settled=loss.settled)
        except AssertionError as error:
            raise AssertionError(f"{scenario}: power cut {when}, lost in {loss.folders}: {error}") from error
