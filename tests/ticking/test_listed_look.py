"""When a tick on B2 or S3 may rest because of a listing, and how often it lists."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from retake.errors import StorageError
from retake.exit_codes import ExitCode
from retake.ticking.listed_look import ListedLook
from retake.ticking.rest import LookFile, version_of
from retake.ticking.tick import Tick

KEYS = ("444/", "config/config_gen.json")
IDLE = Tick(ExitCode.OK, "nothing to do", resting=True)


class Listing:
    """`PagedVersions` whose objects are `found`."""

    def __init__(self) -> None:
        self.found = {"444/a.json": "1", "archive/x.json": "1", "config/config_gen.json": "1"}
        self.asked = 0
        self.away = False
        self.page = 1000

    def versions_from(self, start: str) -> Iterator[Sequence[tuple[str, str]]]:
        names = sorted(it for it in self.found if it >= start)
        for at in range(0, len(names) or 1, self.page):
            self.asked += 1
            if self.away:
                raise StorageError("the bucket is away")
            yield [(it, self.found[it]) for it in names[at : at + self.page]]


class World:
    def __init__(self, folder: Path) -> None:
        self.bucket, self.file = Listing(), LookFile(str(folder / "cache/retake/look"))

    def look(self, basis: str = "basis", **more: float) -> ListedLook:
        now = time.time()
        times = {"began_at": now, "longest_s": 3600.0, **more}
        return ListedLook(
            self.file,
            basis,
            bucket=self.bucket,
            place="b2://media",
            keys=KEYS,
            look_up=lambda path: (version_of(path), now - 60),
            **times,
        )

    def tick(self, tick: Tick = IDLE, *, worked: bool = False, **more: float) -> bool:
        """Run a tick; return whether it rested."""
        look = self.look(**more)
        if look.rests_now():
            return True
        look.ticked(tick, worked=worked)
        look.end([])
        return False


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "cache").mkdir(mode=0o700)
    return World(tmp_path)


def test_the_third_idle_tick_rests_and_so_do_those_after_it(world: World) -> None:
    assert [world.tick() for _ in range(5)] == [False, False, True, True, True]
    assert world.bucket.asked == 4, "the first lists nothing"


def test_a_change_wakes_it_up_and_what_is_beside_does_not(world: World) -> None:
    assert [world.tick() for _ in range(3)][-1]
    world.bucket.found["archive/y.json"] = "1"
    assert world.tick()
    for key in ("444/b.json", "config/config_gen.json", "config/config_gen.json.displaced-0"):
        world.bucket.found[key] = "2"
        assert not world.tick(), key
        assert world.tick(), "the state at the start of the tick is remembered"
    del world.bucket.found["444/a.json"]
    assert not world.tick()


def test_after_work_nothing_is_listed(world: World) -> None:
    assert [world.tick() for _ in range(3)][-1]
    world.bucket.found["444/b.json"] = "1"
    assert not world.tick(worked=True)
    asked = world.bucket.asked
    assert not world.tick(Tick(ExitCode.TRY_LATER, "the vendor is away"), worked=True)
    assert not world.tick()
    assert world.bucket.asked == asked


def test_time_and_another_basis_wake_it_up(world: World) -> None:
    assert [world.tick() for _ in range(3)][-1]
    asked = world.bucket.asked
    assert not world.look("another").rests_now()
    assert not world.look(longest_s=0.0).rests_now()
    assert world.bucket.asked == asked, "that is known without a listing"
    assert world.tick()


def test_what_takes_too_many_requests_is_not_remembered(world: World) -> None:
    world.bucket.page = 1
    world.bucket.found |= {f"444/{it}.json": "1" for it in range(9)}
    assert [world.tick() for _ in range(4)] == [False] * 4
    assert world.bucket.asked == 2 * 3, "every other tick begins to list"


def test_where_the_bucket_is_away_the_tick_finds_out_for_itself(world: World) -> None:
    assert [world.tick() for _ in range(3)][-1]
    world.bucket.away = True
    assert not world.look().rests_now()
