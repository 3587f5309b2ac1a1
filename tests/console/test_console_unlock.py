"""`unlock`: a lease whose holder is gone, one whose holder is alive, and a flag left by a crash."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pytest
from acting_world import ID, PUBLIC, STATES, World, act, context_of, papers, runs

from retake.bucket import Holder
from retake.bucket.directory import DirectoryBucket
from retake.bucket.directory.locks import holding
from retake.bucket.memory import MemoryBucket
from retake.clock import parse_stamp
from retake.console.unlock import command as unlock
from retake.errors import LeaseHeld, LeaseLost, StateError
from retake.operations.port import Refusal
from retake.operations.unlocking import plan_unlock
from retake.operations.unlocking import unlock as break_it

ROOT = Path(__file__).parents[2]


SEEN = "2025-12-31T23:59:30Z"


class Claimed(MemoryBucket):
    """A bucket whose leases expire by themselves, as on B2 and S3."""

    def holder(self, name: str) -> Holder | None:
        found = super().holder(name)
        return found and found._replace(since=parse_stamp(SEEN), until=parse_stamp("2026-01-01T00:03:00Z"))


def claimed() -> World:
    world = STATES["video awaited"]()
    world.bucket = Claimed(world.bucket.store)
    return world


def test_a_free_lease_and_a_lowered_flag_leave_nothing_to_unlock() -> None:
    world = STATES["video awaited"]()
    before = world.everything()
    with pytest.raises(Refusal, match="nothing to unlock: the lease is free and processing_lock is down"):
        act(unlock, world, yes=True)
    assert world.everything() == before


def test_a_flag_that_a_crash_left_is_lowered_and_the_crash_is_on_record() -> None:
    world = STATES["video awaited"]()
    world.vendors.plan("poll", "running")
    world.tick()
    world.put(PUBLIC, {"processing_lock": True, "generation_id": ["x"]})
    answer = act(unlock, world, yes=False)
    assert answer.document == {
        "done": "unlock",
        "pipeline": "story",
        "what": "processing_lock, which a crash left, is lowered; the lease was free",
        "held_by": None,
        "flag_lowered": True,
    }
    assert world.json(PUBLIC) == {"processing_lock": False, "generation_id": ["x"]}
    with pytest.raises(Refusal, match="nothing to unlock"):
        act(unlock, world, yes=False)


def test_a_lease_is_not_broken_without_a_yes() -> None:
    world = claimed()
    lease = world.bucket.lease("story", "host-a:17")
    before = world.everything()
    with pytest.raises(Refusal, match=r"host-a:17, last heartbeat 30 s ago, expires in 3 min\. Pass --yes"):
        act(unlock, world, yes=False)
    lease.check()
    assert world.everything() == before


def test_a_broken_lease_fences_its_holder_off_and_the_pipeline_goes_on() -> None:
    world = claimed()
    lease = world.bucket.lease("story", "host-a:17")
    world.put(PUBLIC, {"processing_lock": True})
    answer = act(unlock, world, yes=True)
    assert (answer.document["held_by"], answer.document["last_sign"]) == ("host-a:17", SEEN)
    assert answer.document["token"] > lease.token
    assert answer.document["flag_lowered"]
    assert "host-a:17" in papers(answer)
    with pytest.raises(LeaseLost):
        lease.check()
    assert not world.json(PUBLIC)["processing_lock"]
    world.tick()
    assert [run.task_id for run in runs(world)] == [ID]


def test_whoever_has_taken_the_lease_since_it_was_shown_keeps_it() -> None:
    world = claimed()
    dead = world.bucket.lease("story", "host-a:17")
    plan = plan_unlock(context_of(world).pipeline, world.clock)
    dead.release()
    other = world.bucket.lease("story", "host-b:4")
    with pytest.raises(Refusal, match=r"now has another holder: host-b:4\. Nothing was changed"):
        break_it(plan)
    other.check()


def test_a_tick_that_takes_the_lease_once_it_is_broken_lowers_the_flag_and_is_left_alone() -> None:
    world = claimed()
    world.bucket.lease("story", "host-a:17")
    world.put(PUBLIC, {"processing_lock": True})
    ticks = []

    class TakenAtOnce(Claimed):
        def break_lease(self, name: str, owner: str) -> int:
            token = super().break_lease(name, owner)
            ticks.append(self.lease(name, "host-b:4"))
            return token

    world.bucket = TakenAtOnce(world.bucket.store)
    answer = act(unlock, world, yes=True)
    assert (answer.document["held_by"], answer.document["flag_lowered"]) == ("host-a:17", False)
    ticks[0].check()


def test_where_a_document_makes_no_sense_the_lease_is_broken_anyway() -> None:
    world = claimed()
    world.bucket.lease("story", "host-a:17")
    world.put("config/config_midjourney.json", b"{")
    answer = act(unlock, world, yes=True)
    assert answer.document["flag_lowered"] is None
    assert "is invalid" in papers(answer)
    assert world.bucket.holder("story") is None


def test_where_a_document_makes_no_sense_and_the_lease_is_free_the_document_is_named() -> None:
    world = STATES["video awaited"]()
    world.put(PUBLIC, {"processing_lock": True})
    world.put("config/config_midjourney.json", b"{")
    with pytest.raises(StateError, match=r"config/config_midjourney\.json"):
        act(unlock, world, yes=True)


# --- a directory, whose locks the kernel holds for living processes ---------------------------------------------------

MANAGER = dedent("""
    import subprocess, sys, time
    from retake.bucket.directory import DirectoryBucket
    from retake.bucket import this_process

    lease = DirectoryBucket(sys.argv[1]).lease("story", this_process())
    if sys.argv[2] == "with a script":
        handed = lease.handover()
        script = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(60)", "a script"]
        subprocess.Popen(script, pass_fds=handed.fds)
    else:
        print("ready", flush=True)
    time.sleep(60)
""")


class Kept(World):
    """A world in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / "bucket"
        self.bucket = DirectoryBucket(str(self.path))  # type: ignore[assignment]
        self.put(PUBLIC, {"processing_lock": True})


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def manager(world: Kept, how: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", MANAGER, str(world.path), how],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def alone(kept: Kept) -> Iterator["subprocess.Popen[str]"]:
    yield from _ended(manager(kept, "alone"))


@pytest.fixture
def with_a_script(kept: Kept) -> Iterator["subprocess.Popen[str]"]:
    yield from _ended(manager(kept, "with a script"))


def _ended(process: "subprocess.Popen[str]") -> Iterator["subprocess.Popen[str]"]:
    yield process
    with suppress(ProcessLookupError):  # a test may have ended them all
        os.killpg(process.pid, 9)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_a_living_manager_is_named_and_not_robbed_of_its_lease(kept: Kept, alone: "subprocess.Popen[str]") -> None:
    before = kept.everything()
    with pytest.raises(Refusal, match=rf"held by pid {alone.pid} \(.*It is free when that has ended") as told:
        act(unlock, kept, yes=True)
    assert told.value.exit_code == 65
    assert kept.everything() == before
    with pytest.raises(LeaseHeld):
        kept.bucket.lease("story", "somebody")


def test_a_script_of_a_killed_manager_is_distinguished_from_the_manager(
    kept: Kept, with_a_script: "subprocess.Popen[str]"
) -> None:
    path = str(kept.path / ".retake" / "leases" / "story.lock")
    assert len(holding(path)) == 2
    with_a_script.kill()
    with_a_script.wait()
    [script] = holding(path)
    with pytest.raises(Refusal, match=r"which is gone; what it started still holds it: pid") as told:
        act(unlock, kept, yes=True)
    assert f"pid {script.pid} ({script.command})" in str(told.value)
    assert "a script" in str(told.value)
    os.kill(script.pid, 9)
    end = time.monotonic() + 30
    while kept.bucket.holder("story") and time.monotonic() < end:
        pass
    answer = act(unlock, kept, yes=False)
    assert answer.document["flag_lowered"]


def test_whoever_just_looks_at_the_lock_does_not_hold_it(kept: Kept) -> None:
    kept.bucket.lease("story", "me").release()
    path = kept.path / ".retake" / "leases" / "story.lock"
    with path.open("rb"):
        assert holding(str(path)) == []
    assert holding(str(path) + ".nothing") == []
