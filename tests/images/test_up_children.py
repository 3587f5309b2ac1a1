"""The supervisor of `images up`, with small programs as children."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from waiting import eventually

from retake.images.up.children import LOG_BYTES, STEADY_S, Child, ChildCommand, NotReady, Supervisor

ROOT = Path(__file__).parents[2]


class Watch:
    """A clock that advances only in pauses; each pause also waits for a real moment, since the processes are real."""

    def __init__(self) -> None:
        self.time = 0.0

    def monotonic(self) -> float:
        return self.time

    def pause(self, seconds: float) -> None:
        self.time += seconds
        time.sleep(0.01)


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def supervisor(watch: Watch) -> Iterator[Supervisor]:
    supervisor = Supervisor(watch.monotonic, watch.pause)
    yield supervisor
    supervisor.stop(lambda: True)


def shell(folder: Path, name: str, script: str, **more: object) -> ChildCommand:
    given = {"ready": lambda: (folder / f"{name}.ready").exists(), **more}
    environ = {"PATH": os.environ["PATH"], "FOLDER": str(folder)}
    script = f'echo {name} begins >>"$FOLDER/seen"; {script}'
    return ChildCommand(name, ("sh", "-c", script), folder / f"{name}.log", environ, folder, **given)  # type: ignore[arg-type]


def seen(folder: Path) -> list[str]:
    return (folder / "seen").read_text().splitlines()


FOREVER = 'trap "echo $0 ends >>$FOLDER/seen; exit" TERM; touch "$FOLDER/$0.ready"; while :; do sleep 0.01; done'


def lasting(folder: Path, name: str, **more: object) -> ChildCommand:
    return shell(folder, name, FOREVER.replace("$0", name), **more)


def test_children_end_in_reverse_order(tmp_path: Path, supervisor: Supervisor) -> None:
    for name in ("one", "two", "three"):
        assert supervisor.wait_until_ready(supervisor.start([lasting(tmp_path, name, stop_seconds=1000)]), 1000)
    supervisor.stop()
    assert [line for line in seen(tmp_path) if "ends" in line] == ["three ends", "two ends", "one ends"]


def test_a_child_that_does_not_end_is_killed_with_its_own_children(tmp_path: Path, supervisor: Supervisor) -> None:
    script = (
        'trap "" TERM; sh -c "trap \\"\\" TERM; sleep 1000" & echo $! >pid; touch "deaf.ready"; while :; do wait; done'
    )
    (child,) = supervisor.start([shell(tmp_path, "deaf", script, stop_seconds=2)])
    assert supervisor.wait_until_ready([child], 1000)
    below = int((tmp_path / "pid").read_text())
    supervisor.stop()
    assert child.exit_code == -signal.SIGKILL
    eventually(lambda: not alive(below))


def test_a_signal_that_is_missed_is_sent_again(tmp_path: Path, supervisor: Supervisor) -> None:
    script = 'trap "trap exit TERM" TERM; touch "starting.ready"; while :; do sleep 0.01; done'
    (child,) = supervisor.start([shell(tmp_path, "starting", script, stop_seconds=1000, repeat_seconds=1)])
    assert supervisor.wait_until_ready([child], 1000)
    supervisor.stop()
    assert child.exit_code == 0


def test_a_child_that_ends_is_started_again_each_time_later(
    tmp_path: Path, supervisor: Supervisor, watch: Watch
) -> None:
    (child,) = supervisor.start([shell(tmp_path, "brief", "exit 3")])
    begun = []
    for _ in range(7):
        eventually(lambda: not child.running)
        while not child.running and child.exit_code == 3 and len(seen(tmp_path)) == len(begun) + 1:
            watch.time += 0.125
            supervisor.look()
        begun.append(watch.time)
        eventually(lambda: len(seen(tmp_path)) == len(begun) + 1)
    pauses = [later - earlier for earlier, later in pairwise(begun)]
    assert pauses[:3] == sorted(pauses[:3])
    assert max(pauses) <= 10.5
    assert pauses[-1] >= 8


def test_a_child_that_had_worked_is_started_again_at_once(tmp_path: Path, supervisor: Supervisor, watch: Watch) -> None:
    (child,) = supervisor.start([lasting(tmp_path, "steady")])
    assert supervisor.wait_until_ready([child], 1000)
    watch.time += STEADY_S
    first = child.pid
    assert first is not None
    child.kill()
    supervisor.look()
    assert child.pid not in (None, first)


def test_a_child_that_is_not_ready_in_time_is_named_with_what_it_wrote(tmp_path: Path, supervisor: Supervisor) -> None:
    children = supervisor.start([shell(tmp_path, "slow", "echo no room left; sleep 1000")])
    eventually(lambda: b"no room left" in (tmp_path / "slow.log").read_bytes())
    with pytest.raises(NotReady, match=r"slow is not ready after 5 s; see .*slow\.log: no room left") as raised:
        supervisor.wait_until_ready(children, 5)
    assert raised.value.exit_code == 75


@pytest.mark.parametrize("code", [2, 78])
def test_a_child_with_wrong_settings_is_not_waited_for(tmp_path: Path, supervisor: Supervisor, code: int) -> None:
    children = supervisor.start([shell(tmp_path, "wrong", f"echo which key; exit {code}")])
    with pytest.raises(NotReady, match=rf"wrong does not start \(exit code {code}\).*which key"):
        supervisor.wait_until_ready(children, 1_000_000)


def test_a_missing_program_is_reported_in_the_log(tmp_path: Path, supervisor: Supervisor) -> None:
    environ = {"PATH": os.environ["PATH"]}
    command = ChildCommand("none", (tmp_path / "none",), tmp_path / "none.log", environ, ready=lambda: False)
    children = supervisor.start([command])
    eventually(lambda: b"No such file" in command.log.read_bytes())
    with pytest.raises(NotReady, match="none: No such file or directory"):
        supervisor.wait_until_ready(children, 20)


def test_a_signal_ends_the_wait(tmp_path: Path, supervisor: Supervisor) -> None:
    children = supervisor.start([shell(tmp_path, "slow", "sleep 1000")])
    assert not supervisor.wait_until_ready(children, 1000, lambda: True)


def test_output_is_bounded_and_the_last_of_it_kept(tmp_path: Path) -> None:
    child = Child(shell(tmp_path, "loud", "sleep 1000"))
    child.command.log.write_bytes(b"x" * LOG_BYTES + b"the last line\n")
    child.bound_log()
    assert child.command.log.stat().st_size == 0
    assert (tmp_path / "loud.log.1").read_bytes().endswith(b"xthe last line\n")
    assert (tmp_path / "loud.log.1").stat().st_size == LOG_BYTES


PARENT = """
import sys, time
from pathlib import Path
sys.path[:0] = {paths!r}
from test_up_children import *
folder = Path({folder!r})
supervisor = Supervisor(time.monotonic, time.sleep)
children = supervisor.start([lasting(folder, "one"), lasting(folder, "two")])
supervisor.wait_until_ready(children, 60)
print(*[child.pid for child in children], flush=True)
time.sleep(1000)
"""


def test_no_child_survives_sigkill_of_the_supervisor(tmp_path: Path) -> None:
    script = PARENT.format(paths=[str(it) for it in Path(__file__).parents[:2]], folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
        parent.kill()
    eventually(lambda: not any(map(alive, pids)))


def alive(pid: int) -> bool:
    """Return whether a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
