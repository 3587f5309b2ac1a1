"""Processes that are killed, stopped or hang at the worst moments, and the ticks after them."""

import os
import signal
import sys
import threading
import time

import pytest
from cron_machine import ID, LONG_S, MANAGER, PUBLIC, Machine, about, manager_killed_at
from waiting import eventually

from retake.sandbox import RecordedCall

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

PAID = ("imagine", "upscale", "runway")


def ticks_until_it_ends(machine: Machine) -> list[int]:
    exit_codes = []
    while machine.generation_id:
        exit_codes.append(machine.tick().exit_code)
        assert len(exit_codes) < 10
    return exit_codes


def assert_nothing_blocks(machine: Machine) -> None:
    assert machine.generation_id is None
    assert machine.read(PUBLIC)["processing_lock"] is False
    assert not machine.leased


@pytest.mark.parametrize("kind", ["chat", "imagine", "fetch", "upscale", "download", "runway", "poll"])
def test_a_manager_that_is_killed_leaves_a_script_that_saves_what_was_paid_for(machine: Machine, kind: str) -> None:
    if kind != "chat":
        machine.plant(kind)
    manager_killed_at(machine, kind, script_too=False)
    assert machine.read(PUBLIC)["processing_lock"] is True
    assert set(ticks_until_it_ends(machine)) <= {0}
    assert_nothing_blocks(machine)
    assert max(machine.billed(paid) for paid in PAID) <= 1
    assert machine.billed("chat") in (0, 3)


@pytest.mark.parametrize("kind", ["imagine", "upscale"])
def test_where_all_is_killed_in_a_paid_call_the_vendor_is_asked_what_became_of_it(machine: Machine, kind: str) -> None:
    machine.plant(kind)
    manager_killed_at(machine, kind, script_too=True)
    assert machine.doc["pending_call"]["step"] == kind
    assert ticks_until_it_ends(machine) == [0]
    assert_nothing_blocks(machine)
    assert machine.billed(kind) == 1


def test_where_the_vendor_cannot_tell_it_is_paid_for_once_more_and_noted(machine: Machine) -> None:
    machine.plant("runway")
    manager_killed_at(machine, "runway", script_too=True)
    assert ticks_until_it_ends(machine) == [75, 0, 0]
    assert_nothing_blocks(machine)
    assert machine.billed("runway") == 2
    outcomes = [call["outcome"] for call in machine.read(f"spend/{ID}.json")["paid_calls"]]
    assert outcomes == ["unknown", "accepted"]


def test_or_it_is_not_paid_for_again_where_the_settings_say_hold(machine: Machine) -> None:
    machine.set(WORKFLOW={"on_unknown_outcome": "hold"})
    machine.plant("runway")
    manager_killed_at(machine, "runway", script_too=True)
    assert [machine.tick().exit_code for _ in range(2)] == [75, 75]
    assert machine.billed("runway") == 1
    assert machine.read(PUBLIC)["processing_lock"] is False


def test_an_orphaned_script_holds_the_lease_until_it_ends(machine: Machine) -> None:
    looked = threading.Event()
    machine.set(WORKFLOW={"call_timeout_seconds": LONG_S})
    machine.plant("imagine")
    machine.vendors.on_call = lambda call: looked.wait(LONG_S)  # the vendor answers nobody before
    manager = machine.start(MANAGER)
    machine.await_call("imagine")
    manager.kill()
    manager.wait()
    between = machine.tick()
    assert machine.processes("generate_media.py")  # it was at work all the time
    assert (between.exit_code, len(machine.calls())) == (0, 1)
    assert between.said(f":{manager.pid} ")  # the holder of the lease
    looked.set()
    machine.await_end()
    assert machine.doc["midjourney_task"]
    assert ticks_until_it_ends(machine) == [0]
    assert machine.billed("imagine") == 1


def test_a_manager_asked_to_stop_while_it_waits_for_a_video_ends_soon_and_loses_nothing(patient: Machine) -> None:
    patient.set(WORKFLOW={"runway_polling_interval": 120, "runway_polling_timeout": 300})
    patient.plant("runway")
    manager = patient.start(MANAGER)
    patient.await_call("poll")
    eventually(lambda: patient.doc.get("runway_task"))
    manager.terminate()
    assert manager.wait(60) == 75  # half of the interval
    assert patient.finish(manager).said("asked to stop")
    assert len(patient.calls("poll")) == 1  # it did not wait for the next one
    assert patient.processes() == []
    assert patient.status == "waiting_for_runway"
    assert patient.read(PUBLIC)["processing_lock"] is False
    patient.vendors.later()
    assert ticks_until_it_ends(patient) == [0]
    assert patient.billed("runway") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_manager_asked_to_stop_in_a_paid_call_saves_the_answer_first(machine: Machine, number: int) -> None:
    machine.plant("imagine")
    manager = machine.start(MANAGER, "--until-done", "--interval", "30")

    def ask(call: RecordedCall) -> None:
        if call.kind == "imagine" and manager.poll() is None:
            manager.send_signal(number)
            time.sleep(0.7)  # the script hears of it while it waits for its answer

    machine.vendors.on_call = ask
    stopped = machine.finish(manager)
    machine.vendors.on_call = lambda call: None
    assert stopped.exit_code == 75
    assert machine.doc["midjourney_task"]["task_id"]
    assert (machine.processes(), machine.leased) == ([], False)
    assert ticks_until_it_ends(machine) == [0]
    assert machine.billed("imagine") == 1


def test_a_script_that_hangs_in_a_paid_call_is_ended_and_its_call_looked_into(machine: Machine) -> None:
    machine.set(WORKFLOW={"script_timeout_seconds": 4, "call_timeout_seconds": 60})
    machine.plant("imagine")
    machine.order("imagine#1=hang-after", "fetch#1=500")
    manager = machine.start(MANAGER)
    script = machine.await_process("generate_media.py")
    os.kill(manager.pid, signal.SIGSTOP)  # its clock goes on; it checks the time when the script is in its call
    machine.await_call("imagine")
    os.kill(manager.pid, signal.SIGCONT)
    ended = machine.finish(manager)
    assert ended.exit_code == 75
    assert ended.said("was still running after 4 s")
    eventually(lambda: not machine.session(script))  # killed processes take a moment to disappear
    assert machine.doc["pending_call"]["step"] == "imagine"
    machine.set(WORKFLOW={"script_timeout_seconds": 60})
    assert machine.tick().exit_code == 75  # found at the vendor; the first question about it failed, as ordered
    assert machine.status == "mj_fetch_failed"
    assert machine.billed("imagine") == 1


def test_a_script_that_hangs_is_ended_together_with_what_it_started(machine: Machine) -> None:
    """ffmpeg is working on a video that takes minutes."""
    machine.set(WORKFLOW={"script_timeout_seconds": 2}, VIDEO={"mock_duration": 600, "mock_fps": 120})
    machine.plant("imagine")
    machine.put("config/config_midjourney.json", {"status": "timed_out_mock_needed"})
    manager = machine.start(MANAGER)
    script = machine.await_process("generate_media.py")
    os.kill(manager.pid, signal.SIGSTOP)  # its clock goes on; it checks the time when ffmpeg is at work
    for pid in eventually(lambda: [it for it in machine.session(script) if b"ffmpeg" in about(it, "cmdline")]):
        os.kill(pid, signal.SIGSTOP)  # so that it cannot finish: only SIGKILL ends it
    os.kill(manager.pid, signal.SIGCONT)
    assert machine.finish(manager).exit_code == 75
    eventually(lambda: not machine.session(script))  # killed processes take a moment to disappear
    assert machine.doc["retries"] == {"mock": 1}


def test_a_script_that_dies_has_failed_at_its_step_and_the_log_says_so(patient: Machine) -> None:
    patient.plant("fetch")
    patient.order("fetch#1=slow=5")
    manager = patient.start(MANAGER)
    patient.await_call("fetch")
    os.kill(patient.await_process("fetch_media.py"), signal.SIGKILL)
    run = patient.finish(manager)
    assert (run.exit_code, patient.status, patient.error_code) == (75, "mj_fetch_failed", "ERR_TEMPORARY_SCRIPT_DIED")
    assert run.said("exit code -9")


def test_a_script_that_dies_in_a_paid_call_is_reported_too(patient: Machine) -> None:
    patient.plant("runway")
    patient.order("runway#1=slow=5")
    manager = patient.start(MANAGER)
    patient.await_call("runway")
    os.kill(patient.await_process("generate_media.py"), signal.SIGKILL)
    run = patient.finish(manager)
    assert (run.exit_code, patient.doc["pending_call"]["step"]) == (75, "runway")
    assert run.said("exit code -9")
