"""Locks: who gets them when, to the second; owners that died; and processes that compete for one."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from retake.bucket import Conflict
from retake.bucket.directory import DirectoryBucket
from retake.clock import FakeClock, SystemClock, exact_stamp
from retake.errors import ErrorClass, StateError, StorageError
from retake.retrying.state_store import BucketStateStore, MemoryStateStore, StateStore
from retake.robots.locks import Locks, LockTimeout

Open = Callable[[], StateStore]
BEGAN = FakeClock().now()


class Scheduled(FakeClock):
    """A clock on which something happens at a given time."""

    def __init__(self, **events: Callable[[], object]) -> None:
        super().__init__()
        self.events = {float(name.removeprefix("at_")): event for name, event in events.items()}

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        for at in [it for it in self.events if it <= self.passed]:
            self.events.pop(at)()

    @property
    def passed(self) -> float:
        return (self.now() - BEGAN).total_seconds()


def passed(clock: FakeClock) -> float:
    return (clock.now() - BEGAN).total_seconds()


def hold(locks: Locks, kind: str, name: str, owner: str) -> ExitStack:
    stack = ExitStack()
    stack.enter_context(getattr(locks, kind)(name, owner))
    return stack


def owners(locks: Locks, kind: str) -> list[str]:
    return [hold.owner for hold in getattr(locks.holders("length"), kind).values()]


# --- who gets it ----------------------------------------------------------------------------------------------------


def test_readers_share_it_and_a_writer_has_it_alone(opened: Open, clock: FakeClock) -> None:
    ours, theirs = Locks(opened(), clock, wait_s=0), Locks(opened(), clock, wait_s=0)
    with ours.read("length", "a"), theirs.read("length", "b"):
        assert owners(ours, "readers") == ["a", "b"]
        for owner in ("a", "c"):
            with pytest.raises(LockTimeout), theirs.write("length", owner):
                raise AssertionError
    with ours.write("length", "a"):
        for kind in (theirs.read, theirs.write):
            with pytest.raises(LockTimeout), kind("length", "b"):
                raise AssertionError
        with theirs.write("width", "b"):
            pass
    with theirs.write("length", "b"):
        pass
    assert ours.holders("length") == ours.holders("length")._replace(writers={}, readers={})
    assert passed(clock) == 0


@pytest.mark.parametrize(("held", "wanted"), [("write", "write"), ("write", "read"), ("read", "write")])
def test_it_is_waited_for_up_to_60_seconds(opened: Open, clock: FakeClock, held: str, wanted: str) -> None:
    """A lock is waited for up to 60 seconds (docs/protocol.md, NR.NSI.6)."""
    locks = Locks(opened(), clock)
    with hold(locks, held, "length", "a"):
        with pytest.raises(LockTimeout, match=r"length was locked for 60 s: a since 2026-01-01T00:00:00Z") as caught:
            hold(Locks(opened(), clock), wanted, "length", "b")
        assert passed(clock) == 60
    assert caught.value.code == "ERR_TEMPORARY_LOCK_TIMEOUT"
    assert caught.value.error_class is ErrorClass.TEMPORARY
    assert locks.holders("length") == locks.holders("length")._replace(writers={}, readers={})


@pytest.mark.parametrize("wanted", ["read", "write"])
def test_it_is_had_as_soon_as_it_is_free(wanted: str) -> None:
    states = MemoryStateStore()
    held = hold(Locks(states, FakeClock()), "write", "length", "a")
    clock = Scheduled(at_20=held.close)
    with hold(Locks(states, clock), wanted, "length", "b"):
        assert clock.passed == 20


def test_it_is_waited_for_no_longer_where_the_clock_is_set_back_meanwhile() -> None:
    class SetBack(FakeClock):
        slept = 0.0

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            self.slept += seconds
            assert self.slept < 3600, "it is waited for endlessly"
            if 30 <= self.slept < 31:
                self.moment -= timedelta(days=1)

    clock = SetBack()
    locks = Locks(MemoryStateStore(), clock)
    with locks.write("length", "a"), pytest.raises(LockTimeout), locks.write("length", "b"):
        raise AssertionError
    assert clock.slept < 65


def test_it_is_waited_for_while_others_change_who_has_it(clock: FakeClock) -> None:
    class Contended(MemoryStateStore):
        conflicts = 2.0

        def change(self, name: str, change: Any) -> Any:
            if self.conflicts > 0:
                self.conflicts -= 1
                raise Conflict("others were faster")
            return super().change(name, change)

    states = Contended()
    locks = Locks(states, clock)
    with locks.write("length", "a"):
        assert 0 < passed(clock) < 5
    states.conflicts = float("inf")
    with pytest.raises(LockTimeout, match="length was locked for 60 s: others were faster"), locks.write("length", "a"):
        pytest.fail("it is locked")


def test_what_is_freed_in_the_last_second_is_still_had() -> None:
    states = MemoryStateStore()
    held = hold(Locks(states, FakeClock()), "write", "length", "a")
    clock = Scheduled(at_60=held.close)
    with Locks(states, clock).write("length", "b"):
        assert clock.passed == 60


@pytest.mark.parametrize(("begins", "through"), [(30, 90), (89, 90), (90, 90), (500, 500), (29.999, None), (0, None)])
def test_a_read_gets_through_once_the_lock_is_90_seconds_old(
    opened: Open, clock: FakeClock, begins: float, through: float | None
) -> None:
    """A lock is broken after 90 seconds, for reads alone (docs/protocol.md, NR.NSI.6)."""
    writing = hold(Locks(opened(), clock), "write", "length", "a")
    clock.sleep(begins)
    locks = Locks(opened(), clock)
    if through is None:
        with pytest.raises(LockTimeout):
            hold(locks, "read", "length", "b")
        assert passed(clock) == begins + 60
    else:
        with locks.read("length", "b") as version:
            assert (passed(clock), version) == (through, 1)
            assert owners(locks, "writers") == ["a"]  # it still has it
    writing.close()
    assert not locks.holders("length").writers


@pytest.mark.parametrize("moment", [datetime(2027, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_a_read_gets_through_the_lock_of_a_writer_whose_clock_was_far_ahead(moment: datetime) -> None:
    store = MemoryStateStore()
    ahead, clock = FakeClock(moment), FakeClock()
    writer = hold(Locks(store, ahead), "write", "length", "dead")
    with Locks(store, clock).read("length", "b"):
        assert passed(clock) <= 60
    writer.close()


@pytest.mark.parametrize("held", ["read", "write"])
def test_a_write_never_gets_through_however_old_the_lock_is(opened: Open, clock: FakeClock, held: str) -> None:
    locks = Locks(opened(), clock)
    dead = hold(Locks(opened(), clock), held, "length", "a")
    for days in range(1, 4):
        clock.sleep(24 * 3600)
        began = passed(clock)
        with pytest.raises(LockTimeout, match=r"end its hold with Locks\.release"):
            hold(locks, "write", "length", "b")
        assert passed(clock) - began == 60, days
    locks.release("length", "a")  # somebody has made sure that it is dead
    with locks.write("length", "b"):
        dead.close()
        assert owners(locks, "writers") == ["b"]


def test_the_times_are_those_that_are_given() -> None:
    clock = FakeClock()
    locks = Locks(MemoryStateStore(), clock, wait_s=5, break_after_s=7)
    with locks.write("length", "a"):
        with pytest.raises(LockTimeout, match="for 5 s"):
            hold(locks, "read", "length", "b")
        assert passed(clock) == 5
        with locks.read("length", "b"):
            assert passed(clock) == 7


def test_a_version_tells_whether_anybody_has_written_meanwhile(opened: Open, clock: FakeClock) -> None:
    """Locks are optimistic, with versions (docs/protocol.md, NR.NSI.6)."""
    locks = Locks(opened(), clock)
    with locks.read("length", "a") as before:
        pass
    with locks.read("length", "b") as same:
        assert same == before
    with locks.write("length", "b") as written:
        assert written == before + 1
    with locks.read("length", "a") as after:
        assert after == written


# --- an existing owner ----------------------------------------------------------------------------------------------


def test_an_owner_may_take_what_it_holds_once_more_and_keeps_it_until_the_last_end(clock: FakeClock) -> None:
    locks = Locks(MemoryStateStore(), clock, wait_s=0)
    for outer, inner in (("write", "write"), ("write", "read"), ("read", "write"), ("read", "read")):
        with hold(locks, outer, "length", "a"):
            with hold(locks, inner, "length", "a"):
                pass
            with pytest.raises(LockTimeout):
                hold(locks, "write", "length", "b")
        with locks.write("length", "b"):
            pass


def test_two_threads_of_one_owner_exclude_one_another(clock: FakeClock) -> None:
    locks, ended = Locks(MemoryStateStore(), clock, wait_s=5), list[object]()

    def work(kind: str) -> None:
        try:
            with hold(locks, kind, "length", "a"):
                ended.append("through")
        except LockTimeout as error:
            ended.append(error.code)

    for held, wanted in (("write", "write"), ("write", "read"), ("read", "write"), ("read", "read")):
        with hold(locks, held, "length", "a"):
            other = threading.Thread(target=work, args=(wanted,))
            other.start()
            other.join(30)
            with pytest.raises(LockTimeout):
                hold(locks, "write", "length", "b")
    assert ended == ["ERR_TEMPORARY_LOCK_TIMEOUT"] * 3 + ["through"]
    with locks.write("length", "b"):
        pass


def test_neither_of_two_readers_may_begin_to_write(clock: FakeClock) -> None:
    locks = Locks(MemoryStateStore(), clock)
    with locks.read("length", "a"), locks.read("length", "b"):
        for owner in ("a", "b"):
            with pytest.raises(LockTimeout):
                hold(locks, "write", "length", owner)
    assert passed(clock) == 120


@pytest.mark.parametrize("held", ["read", "write"])
@pytest.mark.parametrize("again", ["read", "write"])
def test_whoever_died_with_it_has_it_at_once_and_then_it_is_free(
    opened: Open, clock: FakeClock, held: str, again: str
) -> None:
    dead = hold(Locks(opened(), clock), held, "length", "a")
    with hold(Locks(opened(), clock), again, "length", "a"):
        dead.close()  # the late end of an earlier hold ends no later one
        assert "a" in owners(Locks(opened(), clock), {"read": "readers", "write": "writers"}[again])
    with Locks(opened(), clock).write("length", "b"):
        assert passed(clock) == 0


def test_what_happens_inside_is_reported_and_the_lock_is_free_again(clock: FakeClock) -> None:
    locks = Locks(MemoryStateStore(), clock)
    for error in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises(error), locks.write("length", "a"):
            raise error
    with locks.write("length", "b"):
        assert passed(clock) == 0


class Away(MemoryStateStore):
    away = False

    def change(self, name: str, change: Any) -> Any:
        if self.away:
            raise StorageError("the store is away")
        return super().change(name, change)


def test_an_error_inside_is_not_hidden_by_one_of_the_store(clock: FakeClock) -> None:
    states = Away()

    def fail() -> None:
        states.away = True
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Locks(states, clock).write("length", "a"):
        fail()
    states.away = False
    with pytest.raises(StorageError, match="away"), Locks(states, clock).write("length", "a"):
        states.away = True


@pytest.mark.parametrize("name", ["Länge/1", "..", "~a", "a\nb", "x" * 300, ""])
def test_any_text_can_be_the_name(opened: Open, clock: FakeClock, name: str) -> None:
    locks = Locks(opened(), clock, wait_s=0)
    with locks.write(name, "a"), locks.write(f"{name}!", "b"), pytest.raises(LockTimeout):
        hold(locks, "read", name, "b")


def test_an_invalid_document_is_reported_and_left_as_it_is(clock: FakeClock) -> None:
    states = MemoryStateStore()
    for raw in ({"writers": []}, {"writers": {}, "readers": {"a": {"owner": "x", "since": "noon"}}, "version": 1}):
        states.change("lock.length", lambda _, raw=raw: (raw, None))
        with pytest.raises(StateError, match="left as it is"):
            hold(Locks(states, clock), "read", "length", "a")
        assert states.read("lock.length") == raw


# --- at the same time -----------------------------------------------------------------------------------------------


def test_one_of_many_threads_writes_at_a_time(opened: Open) -> None:
    inside: list[str] = []
    most, done = [0], [0]

    def work(owner: str) -> None:
        locks = Locks(opened(), SystemClock(), wait_s=60)
        for turn in range(3):
            with locks.write("length", owner):
                inside.append(owner)
                most[0] = max(most[0], len(inside))
                done[0] += 1
                inside.remove(owner)
            with locks.read("length", owner):
                assert not inside, turn

    threads = [threading.Thread(target=work, args=(f"worker {number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (most, done, inside) == ([1], [9], [])


CHILD = """
import pathlib, sys
from retake.bucket.directory import DirectoryBucket
from retake.clock import SystemClock
from retake.retrying.state_store import BucketStateStore
from retake.robots.locks import Locks
root, owner, turns = sys.argv[1], sys.argv[2], int(sys.argv[3])
locks = Locks(BucketStateStore(DirectoryBucket(root), "robots/", SystemClock()), SystemClock())
count = pathlib.Path(root + ".count")
print("ready", flush=True)
sys.stdin.readline()
for _ in range(turns):
    with locks.write("count", owner):
        count.write_text(str(int(count.read_text()) + 1))
"""


def test_none_of_several_processes_under_a_lock_loses_its_change(tmp_path: Path) -> None:
    root, environment = str(tmp_path / "bucket"), {**os.environ, "PYTHONPATH": os.getcwd()}
    (tmp_path / "bucket.count").write_text("0")
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", CHILD, root, f"worker {number}", "5"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environment,
                    text=True,
                )
            )
            for number in range(3)
        ]
        for process in processes:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            with suppress(BrokenPipeError):
                assert process.stdin
                process.stdin.write("\n")
                process.stdin.flush()
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert (tmp_path / "bucket.count").read_text() == "15"
    clock = FakeClock()
    states = BucketStateStore(DirectoryBucket(root), "robots/", clock)
    assert Locks(states, clock).holders("count").version == 15
    assert exact_stamp(clock.now()) == "2026-01-01T00:00:00Z"
