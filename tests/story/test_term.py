"""A paid call is made only within the term of the lease, and not by a process that slept through its end."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from story_world import World

from retake.bucket import ABSENT
from retake.bucket.memory import MemoryBucket, MemoryLease
from retake.clock import SystemClock
from retake.errors import LeaseLost
from retake.exit_codes import ExitCode
from retake.paid.caps import Caps
from retake.paid.day_book import Known, Limits
from retake.story import script
from retake.story.script import StepContext
from retake.testing.vendors import PROMPTS
from retake.ticking.process import KillTimer


class Timed(World):
    """A world whose lease expires; records when the kernel was told to end the script."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *left: float) -> None:
        super().__init__(call_timeout_seconds=90)
        self.switched: list[tuple[float, int]] = []
        self.lefts = list(left)
        monkeypatch.setattr(MemoryLease, "left", lambda lease: self.lefts.pop(0) if self.lefts else 100.0)

    def context(self, lease: object) -> StepContext:
        context = super().context(lease)  # type: ignore[arg-type]
        context.process.kill_after = lambda seconds: self.switched.append((seconds, sum(self.vendors.billed.values())))
        return context


def test_the_kernel_would_end_it_at_the_end_of_the_term_while_a_paid_call_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Timed(monkeypatch)
    world.vendors.plan("imagine", "refused")
    world.tick()
    assert world.switched == [(100.0, 0), (0, 1), (100.0, 1), (0, 1)], "set before each call, and postponed after it"


def test_a_call_that_could_outlast_the_term_waits_for_its_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Timed(monkeypatch, 100.0, 80.0, 79.0, 115.0)
    world.vendors.plan("imagine", "refused")
    world.tick()
    assert world.switched[0][0] == 115.0


def test_a_stop_while_the_renewal_is_waited_for_leaves_no_call_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Timed(monkeypatch, 100.0, 80.0, 79.0, 115.0)
    monkeypatch.setattr(world.clock, "sleep", lambda seconds: setattr(world, "stopping", lambda: True))
    world.tick()
    assert world.vendors.billed == {"write": 1}
    assert world.doc.pending is None


@pytest.mark.parametrize("calls", [1, 2])
def test_a_lease_that_never_lasts_as_long_as_a_call_leaves_no_call_in_doubt(
    monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    world = Timed(monkeypatch, *[50.0] * 99)
    world.prompts = [PROMPTS[0]._replace(name=name) for name in ("one", "another")[:calls]]
    assert world.tick().exit_code == ExitCode.CONFIG
    assert not world.vendors.billed
    assert world.doc.pending is None


def test_what_does_not_run_out_needs_no_switch() -> None:
    world = World()
    assert world.tick().ended == "done"


def test_a_lease_that_ends_while_it_is_waited_for_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Timed(monkeypatch, *[50.0] * 99)
    answers = iter([None] * 5)

    def check(lease: MemoryLease) -> None:
        if next(answers, LeaseLost) is LeaseLost:
            raise LeaseLost("somebody took over")

    monkeypatch.setattr(MemoryLease, "check", check)
    with pytest.raises(LeaseLost):
        world.tick()
    assert not world.vendors.billed


def test_a_script_by_hand_that_has_lost_the_lease_leaves_the_days_book_to_whoever_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = MemoryBucket()
    monkeypatch.setattr(script, "StopSignal", lambda: SimpleNamespace(count=0))
    monkeypatch.setattr(script, "open_storage", lambda settings: bucket)
    bucket.write("config/config_midjourney.json", b'{"spend": {"reservation": {"account": "a"}}}', ABSENT)
    caps = Caps(bucket, SystemClock(), Limits())

    def work(context: StepContext) -> None:
        bucket.break_lease("story", "another")
        caps.reserve("story", 0.5, Known("a"))
        context.store.lease.check()

    with pytest.raises(LeaseLost):
        script._work(work, {})
    assert caps.today("story").book.spent == 0.5


FROZEN = """
import os, signal, sys
from retake.ticking.process import KillTimer
life = KillTimer(None)
life.kill_after(3.0)
print(flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
print("awake", flush=True)
"""


def test_a_script_that_was_frozen_past_its_term_does_not_wake() -> None:
    with subprocess.Popen([sys.executable, "-c", FROZEN], stdout=subprocess.PIPE, text=True) as frozen:
        assert frozen.stdout is not None
        frozen.stdout.readline()
        os.waitid(os.P_PID, frozen.pid, os.WSTOPPED)
        time.sleep(3.1)
        os.kill(frozen.pid, signal.SIGCONT)
        assert frozen.wait(60) == -signal.SIGALRM
        assert frozen.stdout.read() == ""


HELD_OFF = """
import signal, sys, time
from retake.ticking.process import KillTimer
signal.signal(signal.SIGALRM, signal.SIG_IGN) if sys.argv[1] == "ignored" else (
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM}))
KillTimer(None).kill_after(0.1)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["ignored", "blocked"])
def test_a_life_ends_though_the_parent_left_the_signal_ignored_or_blocked(how: str) -> None:
    command = [sys.executable, "-c", HELD_OFF, how]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as held_off:
        try:
            assert held_off.wait(60) == -signal.SIGALRM
        finally:
            held_off.kill()


def test_a_term_never_lengthens_a_life() -> None:
    life = KillTimer(1000.0)
    try:
        life.kill_after(5000.0)
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
        life.kill_after(10.0)
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 10
        life.kill_after(0)
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
