"""Others at the same bucket at the same time: more managers, and a publisher that knows no locks."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cron_machine import GEN, LONG_S, MANAGER, PUBLIC, Machine
from waiting import eventually

PUBLISHER = """
import json, os, sys, time

list_file, end, names = sys.argv[1], sys.argv[2], sys.argv[3]
draft = list_file + ".publisher"
for number in range(3000):
    if os.path.exists(end):
        break
    with open(list_file) as file:
        document = json.load(file)
    name = f"{names}-{number:05d}"
    document["generation_id"].append(name)
    with open(draft, "w") as file:
        json.dump(document, file)
    os.replace(draft, list_file)
    print(name)
    if number % 10 == 9:
        time.sleep(0.05 + number / 20_000)
"""
"""Reads, appends and replaces ten times without pausing, then rests; prints what it has appended. Ticks get slower as
the list grows, and on a slow machine an endless publisher would never let one end; so its rests grow, too."""


STOPPED = """
import os, runpy, signal, sys

sys.path.insert(0, os.path.dirname(sys.argv[3]))
from retake.bucket.directory import rename_exchange

marks, sys.argv = [sys.argv[1]], sys.argv[3:]

def stopping(rename):
    def renamed(one, other):
        rename(one, other)
        if marks and other.endswith(marks[0]):
            marks.clear()
            os.kill(os.getpid(), signal.SIGSTOP)
    return renamed

os.rename, rename_exchange.exchange = stopping(os.rename), stopping(rename_exchange.exchange)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script, and stops it as soon as it has renamed a file to a name with a certain ending."""


def test_of_five_managers_at_once_one_works_and_the_others_say_so_and_leave(machine: Machine) -> None:
    others_are_gone = threading.Event()
    machine.set(WORKFLOW={"call_timeout_seconds": 90})
    machine.vendors.on_call = lambda call: others_are_gone.wait(LONG_S)  # the vendor answers nobody before
    managers = [machine.start(MANAGER) for _ in range(5)]
    eventually(lambda: sum(manager.poll() is None for manager in managers) <= 1)
    others_are_gone.set()
    runs = [machine.finish(manager) for manager in managers]
    assert [run.exit_code for run in runs] == [0] * 5
    [worker] = (manager.pid for manager, run in zip(managers, runs, strict=True) if run.said("is finished"))
    told = (f"is held by {os.uname().nodename}:{worker} ", "is held by somebody;")  # locked, and not yet signed
    assert sum(any(run.said(it) for it in told) for run in runs) == 4, [run.messages for run in runs]
    billed = {kind: machine.billed(kind) for kind in ("chat", "imagine", "upscale", "runway")}
    assert billed == {"chat": 3, "imagine": 1, "upscale": 1, "runway": 1}


@pytest.mark.skipif(sys.platform != "linux", reason="names are exchanged in one step on Linux alone")
def test_no_append_of_a_publisher_without_locks_is_lost(machine: Machine, tmp_path: Path) -> None:
    """Each tick begins a generation that fails at once, and so archives what was published meanwhile."""
    machine.order("chat=400")
    machine.set(WORKFLOW={"max_failed_in_a_row": 100})
    ready = {f"p-{number:05d}" for number in (0, 20, 40, 80, 160)}
    for name in ready:
        for suffix in ("json", "png", "mp4"):
            machine.put(f"444/{name}.{suffix}", {"of": name})
    listed = machine.put(PUBLIC, {"processing_lock": False, "generation_id": []})
    end = tmp_path / "end"
    command = [sys.executable, "-S", "-c", PUBLISHER, str(listed), str(end), "p"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as publisher:
        try:
            ticks = [machine.tick() for _ in range(8)]
        finally:
            end.touch()
        assert publisher.stdout
        appended = publisher.stdout.read().split()
    ticks.append(machine.tick())
    assert {tick.exit_code for tick in ticks} <= {69, 75}  # 75: it never got its turn
    assert ticks[-1].exit_code == 69
    public, archived = machine.read(PUBLIC), {Path(key).stem for key in machine.files("archive")}
    assert len(appended) > 160
    assert archived == ready
    assert set(appended) <= set(public["generation_id"]) | archived
    assert public["processing_lock"] is False


def test_an_append_while_a_script_is_at_work_is_kept(machine: Machine) -> None:
    appended = threading.Event()
    machine.vendors.on_call = lambda call: appended.wait(LONG_S)  # the vendor answers nobody before
    machine.order("imagine=401")
    manager = machine.start(MANAGER)
    eventually(lambda: machine.calls("chat"))
    public = machine.read(PUBLIC)
    assert public["processing_lock"] is True  # for the publisher to see
    machine.put(PUBLIC, {**public, "generation_id": ["20250101-0000"]})
    appended.set()
    assert machine.finish(manager).exit_code == 78
    assert machine.read(PUBLIC)["generation_id"] == ["20250101-0000"]


def test_an_id_that_cannot_be_archived_is_warned_of_once(machine: Machine) -> None:
    machine.put(PUBLIC, {"processing_lock": False, "generation_id": ["20250101-0000"]})
    machine.order("chat=400")
    ticks = [machine.tick() for _ in range(2)]
    assert [tick.said("20250101-0000") for tick in ticks] == [True, False]


@pytest.mark.skipif(sys.platform != "linux", reason="names are exchanged in one step on Linux alone")
@pytest.mark.parametrize("then", [signal.SIGCONT, signal.SIGKILL], ids=["it goes on", "it is killed"])
@pytest.mark.parametrize("name", ["555/20260101-0003.png", PUBLIC])
def test_while_a_manager_is_stopped_in_a_change_others_leave_and_nothing_is_lost(
    machine: Machine, name: str, then: signal.Signals
) -> None:
    """In the middle of a group's move it also holds the lock of all writes; after exchanging the list it has not yet
    compared what it displaced."""
    folders = {"444": "20260101-0001", "555": "20260101-0002", "666": "20260101-0003"}
    for folder, group in [*folders.items(), ("666", "20260101-0004")]:
        for suffix in ("json", "png", "mp4"):
            machine.put(f"{folder}/{group}.{suffix}", {"of": group})
    machine.put(PUBLIC, {"processing_lock": False, "generation_id": ["20260101-0001"]})
    manager = machine.start(MANAGER, by=[sys.executable, "-c", STOPPED, name])
    stopped = os.waitid(os.P_PID, manager.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert stopped
    assert stopped.si_code == os.CLD_STOPPED
    before = machine.snapshot()
    other = machine.tick()
    assert (other.exit_code, other.said(f":{manager.pid} ")) == (0, True)
    assert machine.snapshot() == before
    manager.send_signal(then)
    assert machine.finish(manager).exit_code == (0 if then == signal.SIGCONT else -signal.SIGKILL)
    assert machine.tick().exit_code == 0
    for folder, group in zip(
        ("archive", "444", "555", "666"), sorted([*folders.values(), "20260101-0004"]), strict=True
    ):
        assert machine.files(folder) == {f"{folder}/{group}.{suffix}" for suffix in ("json", "png", "mp4")}
        assert machine.read(f"{folder}/{group}.mp4") == {"of": group}
    public = machine.read(PUBLIC)
    assert (public["processing_lock"], public["generation_id"]) == (False, [])
    assert machine.files("config") <= {PUBLIC, GEN}  # nothing beside them
    assert (machine.leased, machine.calls()) == (False, [])
