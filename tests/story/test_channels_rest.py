"""A tick over many channels opens those that changed or are due, and makes few requests for the others."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from far_channels import KINDS, FarChannels, idle, looks_of, only

from retake.bucket import ANY, Bucket
from retake.errors import StorageError
from retake.story import channels as story_channels
from retake.story.documents import GROUP
from retake.story.settings import LEASE, part_of
from retake.ticking import channel_versions
from retake.ticking.channel_looks import ChannelRest

Worlds = Callable[[str, int], FarChannels]

FIRST, SECOND, THIRD = "channel-0000", "channel-0001", "channel-0002"
PERFORMANCE = Path(__file__).parents[2] / "docs" / "performance.md"
NOTHING = ChannelRest("nothing to do")


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Worlds]:
    with ExitStack() as stack:
        yield lambda kind, number: FarChannels(kind, number, monkeypatch, tmp_path, stack)


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the bucket too large to be listed."""
    monkeypatch.setattr(channel_versions, "MAX_WHOLE_REQUESTS", 0)


# --- what it costs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_idle_channels_are_opened_once_and_then_rest(worlds: Worlds, kind: str) -> None:
    world = worlds(kind, 20)
    world.fill(idle)
    assert world.tick().opened == set(world.names)
    for _ in range(2):
        again = world.tick()
        assert (again.exit_code, again.opened) == (0, set())
        assert again.requests <= 10


@pytest.mark.parametrize("kind", ["b2", "s3"])
@pytest.mark.parametrize("number", [100, 1000])
def test_idle_channels_cost_at_most_ten_requests_a_tick(worlds: Worlds, kind: str, number: int) -> None:
    world = worlds(kind, number)
    world.fill(idle)
    world.remember(lambda name: NOTHING)
    found = world.tick()
    assert (found.exit_code, found.opened) == (0, set())
    assert found.requests <= 10
    if kind == "b2":
        assert found.requests - SIGNING_IN == stated(f"{number} idle")


SIGNING_IN = 2
"""Requests to B2 by a process without the authorisation of an earlier one."""


def stated(row: str) -> int:
    """Return the requests of a tick in docs/performance.md."""
    found = re.search(rf"^\| {row} +\| +(\d+) \|", PERFORMANCE.read_text("utf-8"), flags=re.MULTILINE)
    assert found, row
    return int(found[1])


def test_the_requests_of_waiting_channels_are_those_that_are_stated(worlds: Worlds) -> None:
    world = worlds("b2", 100)
    world.fill(world.waiting)
    limit = (world.clock.now() + timedelta(hours=1)).timestamp()
    tasks = {name: world.task_of(name) for name in world.names}
    world.remember(lambda name: ChannelRest("", limit, (tasks[name], "imagine", "20260101-0000", "")))
    found = world.tick()
    assert (found.opened, found.polls) == (set(), 100)
    assert found.requests - SIGNING_IN == stated("100 waiting")


@pytest.mark.parametrize("kind", ["b2", "s3"])
def test_what_is_in_archives_is_not_listed(worlds: Worlds, kind: str) -> None:
    world = worlds(kind, 2)
    old = {f"archive/2010{n:04d}-0000.json": b"" for n in range(2500)}
    world.fill(lambda number: idle(number) | old)
    world.remember(lambda name: NOTHING)
    found = world.tick()
    assert (found.opened, found.requests <= 10) == (set(), True)


@pytest.mark.parametrize("kind", ["b2", "s3"])
def test_waiting_channels_cost_their_polls_and_at_most_three_requests_each(worlds: Worlds, kind: str) -> None:
    world = worlds(kind, 5)
    world.fill(world.waiting)
    world.settle()
    found = world.tick()
    assert (found.exit_code, found.opened, found.polls) == (0, set(), 5)
    assert found.requests <= 3 * 5
    assert found.requests <= 10, "one tick for all of them"


@pytest.mark.parametrize("kind", ["b2", "s3"])
def test_a_channel_that_works_costs_one_request_for_each_other_channel(worlds: Worlds, kind: str) -> None:
    def requests(number: int) -> list[int]:
        world = worlds(kind, number)
        world.fill(lambda channel: world.waiting(channel) if channel else full())
        world.settle()
        return [published(world, FIRST, name) for name in ("20260101-0444", "20260101-0555", "20260101-0666")]

    assert [many - few for few, many in zip(requests(2), requests(5), strict=True)] == [3, 3, 3]


def full() -> dict[str, bytes]:
    """Return an idle channel with more groups than it publishes."""
    return idle(0) | {f"666/20260102-000{n}.{suffix}": b"{}" for n in range(9) for suffix in GROUP}


def published(world: FarChannels, channel: str, name: str) -> int:
    """Have the channel's group archived; return the requests of the tick that does so."""
    public = {"processing_lock": False, "generation_id": [name], "empty": []}
    world.put(f"{channel}/config/config_public.json", json.dumps(public).encode())
    found = world.tick()
    assert (found.exit_code, found.opened) == (0, {channel})
    return found.requests


# --- what opens a channel ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_channel_that_changes_is_opened(worlds: Worlds, kind: str) -> None:
    world = worlds(kind, 3)
    world.fill(idle)
    world.settle()
    with only(world, FIRST):  # the publisher
        world.put(f"{FIRST}/config/config_public.json", b'{"processing_lock":false,"generation_id":["x"],"empty":[]}')
    world.settle()
    with only(world, SECOND):  # a person
        world.put(f"{SECOND}/444/notes.txt", b"hello")
    world.settle()
    with only(world, THIRD):  # the console, or another machine
        change(world.open(), world, THIRD)
    world.settle()
    with only(world, FIRST, SECOND, THIRD):
        world.clock.sleep(3600)


def change(bucket: Bucket, world: FarChannels, channel: str) -> None:
    """Change a document as the holder of the lease does."""
    part = part_of(bucket, world.settings, channel)
    lease = part.lease(LEASE, "somebody")
    data, version = part.read("config/config_gen.json")
    part.write("config/config_gen.json", json.dumps({**json.loads(data), "warned": []}).encode(), version)
    lease.release()


@pytest.mark.parametrize("kind", ["b2", "s3"])
def test_in_a_bucket_too_large_to_be_listed_marks_tell_what_changed(worlds: Worlds, kind: str, marked: None) -> None:
    world = worlds(kind, 3)
    world.fill(idle)
    world.settle()
    assert world.tick().requests <= 10
    with only(world, THIRD):
        change(world.open(), world, THIRD)
    world.settle()
    with only(world):  # another program leaves no mark
        world.put(f"{FIRST}/444/notes.txt", b"hello")
    with only(world, SECOND):  # but it can
        world.open().write(f"~changed/{SECOND}", b"anything", ANY)
    with only(world, *world.names):  # and it is noticed in the end
        world.clock.sleep(3600)


@pytest.mark.parametrize("kind", ["b2", "s3"])
def test_a_mark_is_there_before_what_it_tells_of(worlds: Worlds, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds(kind, 1)
    world.fill(idle)
    bucket = world.open()
    part = part_of(bucket, world.settings, FIRST)
    lease = part.lease(LEASE, "somebody")

    def refused(*_: object) -> str:
        raise StorageError("the disk is full")

    monkeypatch.setattr(type(bucket), "write_file", refused)
    with pytest.raises(StorageError):
        part.delete("666/20260101-0666.json")
    assert len(part.list("666/")) == 3
    lease.release()


@pytest.mark.parametrize("kind", ["b2", "directory"])
def test_a_task_that_has_ended_opens_its_channel(worlds: Worlds, kind: str) -> None:
    world = worlds(kind, 2)
    world.fill(world.waiting)
    world.settle()
    world.vendor.order("fetch#1=500")  # one poll fails: in doubt the channel is opened
    assert len(world.tick().opened) == 1


def test_a_task_that_takes_too_long_opens_its_channel(worlds: Worlds) -> None:
    world = worlds("directory", 2)
    world.fill(world.waiting)
    world.settle()
    late = world.settings.workflow._replace(mj_timeout_seconds=1800, full_look_minutes=1440)
    world.settings = world.settings._replace(workflow=late)
    world.settle()
    world.clock.sleep(1800)
    found = world.tick()
    assert (found.opened, found.exit_code) == ({FIRST, SECOND}, 70), "the script that makes a mock is forbidden here"


@pytest.mark.parametrize("kind", ["b2", "directory"])
def test_a_look_that_cannot_be_trusted_opens_all(worlds: Worlds, kind: str) -> None:
    world = worlds(kind, 2)
    world.fill(idle)
    world.settle()
    (file,) = looks_of(world)
    whole = file.read_bytes()
    for data in (b"", whole[:-1], whole.replace(b"nothing", b"NOTHING"), b"\x00" * 100):
        with only(world, FIRST, SECOND):
            file.write_bytes(data)
    world.settle()
    with only(world, FIRST, SECOND):
        world.settings = world.settings._replace(workflow=world.settings.workflow._replace(max_retries=7))
    world.settle()
    off = world.settings.workflow._replace(remembered_looks=False)
    world.settings = world.settings._replace(workflow=off)
    for _ in range(2):
        assert world.tick().opened == {FIRST, SECOND}


@pytest.mark.parametrize("kind", KINDS)
def test_each_machine_remembers_for_itself(worlds: Worlds, kind: str) -> None:
    world = worlds(kind, 2)
    world.fill(idle)
    world.settle()
    world.machine("two")
    assert world.tick().opened == {FIRST, SECOND}
    world.settle()
    change(world.open(), world, FIRST)
    for machine in ("one", "two"):
        world.machine(machine)
        assert world.tick().opened == {FIRST}
        world.settle()


@pytest.mark.parametrize("kind", ["b2", "directory"])
def test_a_channel_held_by_another_machine_is_not_remembered(worlds: Worlds, kind: str) -> None:
    world = worlds(kind, 2)
    world.fill(idle)
    bucket = world.open()
    lease = part_of(bucket, world.settings, FIRST).lease(LEASE, "another machine")
    world.tick()
    lease.release()
    assert FIRST in world.tick().opened


@pytest.mark.parametrize("kind", ["b2", "directory"])
def test_a_tick_that_dies_remembers_nothing_new(worlds: Worlds, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds(kind, 2)
    world.fill(idle)

    class Killed(BaseException):
        pass

    def killed(codes: object) -> int:
        raise Killed

    world.settle()
    world.put(f"{FIRST}/444/notes.txt", b"hello")
    with monkeypatch.context() as patch:
        patch.setattr(story_channels.ChannelLooks, "save", killed)
        with pytest.raises(Killed):
            world.tick()
    assert world.tick().opened == {FIRST}
