"""The acting commands as an operator runs them: processes of `python -m retake`, on a folder, on B2 and on S3, beside
the real manager and its scripts."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

sys.path.append(str(Path(__file__).parent.parent / "cron"))

from cron_buckets import CLOUDS, KINDS, BucketMachine, Clouds, bucket_machine
from cron_machine import CHECKOUT, ID, MANAGER, PUBLIC, Vendors, serving
from schemas import check_answer, named_in
from waiting import eventually

from retake.sandbox import RecordedCall

_PATIENCE_S = 200  # how long a vendor waits for a test, on a busy machine too

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


class Said(NamedTuple):
    """The result of a command."""

    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.out))


def console(machine: BucketMachine, *arguments: str) -> Said:
    """Run `python -m retake …` to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "retake", *arguments],
        cwd=machine.cwd,
        env={**machine.env, "PYTHONPATH": str(CHECKOUT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=_PATIENCE_S / 2,
    )
    assert "Traceback" not in done.stdout + done.stderr
    if "--json" in arguments:
        check_answer(named_in(arguments), json.loads(done.stdout))
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def vendors() -> Iterator[Vendors]:
    yield from serving(0)


@pytest.fixture
def machine(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    vendors: Vendors,
    clouds: Clouds,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[BucketMachine]:
    monkeypatch.setenv("NO_PROXY", "*")
    with bucket_machine(request.param, tmp_path, vendors, clouds, monkeypatch) as machine:
        yield machine


everywhere = pytest.mark.parametrize("machine", KINDS, indirect=True)
there_and_on_b2 = pytest.mark.parametrize("machine", ["directory", "b2"], indirect=True)
there_and_on_s3 = pytest.mark.parametrize("machine", ["directory", "s3"], indirect=True)
on_a_directory = pytest.mark.parametrize("machine", ["directory"], indirect=True)
where_leases_run_out = pytest.mark.parametrize("machine", CLOUDS, indirect=True)


def at_work(machine: BucketMachine, kind: str) -> tuple["subprocess.Popen[str]", threading.Event]:
    """Start a manager whose script waits for the answer to a call of that kind until the event is set."""
    asked, answer = threading.Event(), threading.Event()

    def hold(call: RecordedCall) -> None:
        if call.kind == kind and not answer.is_set():
            asked.set()
            answer.wait(_PATIENCE_S)

    machine.set(WORKFLOW={"call_timeout_seconds": 2 * _PATIENCE_S, "lock_ttl_seconds": 4 * _PATIENCE_S})
    machine.vendors.on_call = hold
    manager = machine.start(MANAGER)
    assert asked.wait(_PATIENCE_S)
    return manager, answer


def failed_for_good(machine: BucketMachine) -> None:
    """Create a generation whose upscale failed, and which is among the dead letters."""
    machine.set(WORKFLOW={"max_retries": 0})
    machine.plant("upscale")
    machine.order("upscale#1=500")
    assert [machine.tick().exit_code for _ in range(2)] == [75, 69]


@everywhere
def test_a_failed_generation_is_resumed_and_ends(machine: BucketMachine) -> None:
    failed_for_good(machine)
    assert console(machine, "cancel", ID, "--yes").exit_code == 65
    [letter] = console(machine, "dead-letters", "list", "--json").json["dead_letters"]
    assert (letter["id"], letter["step"], letter["error_code"]) == (ID, "upscale", "ERR_TEMPORARY_UNAVAILABLE")
    assert console(machine, "dead-letters", "show", ID, "--json").json["requeue"]["possible"]
    done = console(machine, "retry", ID, "--json")
    assert (done.exit_code, done.json["done"], done.json["generation_id"]) == (0, "requeue", ID)
    assert machine.generation_id == ID
    machine.until_over()
    assert len(machine.files("666")) == 3
    assert machine.billed("upscale") == 1
    again = console(machine, "retry", ID, "--json")
    assert (again.exit_code, again.json["exit_code"]) == (65, 65)
    assert "has succeeded" in again.json["error"]


@there_and_on_b2
def test_a_step_that_always_fails_is_skipped(machine: BucketMachine) -> None:
    machine.plant("upscale")
    machine.order("upscale=500")
    assert machine.tick().exit_code == 75
    done = console(machine, "skip", ID)
    assert done.exit_code == 0, done.err
    said, warned, coming = done.out.splitlines()
    assert said == f"Done: upscale of {ID} is skipped: a mock takes its place."
    assert re.fullmatch(r"Warning: paid for and given up: what task [\w-]+ delivered\.", warned)
    assert coming == "The next tick: make the mock (the vendors were given up on)."
    assert machine.tick().exit_code == 0
    assert len(machine.files("666")) == 3
    assert machine.billed("upscale") == machine.billed("runway") == 0


@there_and_on_s3
def test_a_cancelled_generation_is_kept_and_can_be_resumed(machine: BucketMachine) -> None:
    machine.set(WORKFLOW={"on_unknown_outcome": "hold"})
    machine.plant("runway")
    machine.order("runway#1=cut-after")
    assert machine.tick().exit_code == 75
    before = machine.snapshot()
    refused = console(machine, "cancel", ID)
    assert (refused.exit_code, refused.out) == (65, "")
    assert "Pass --yes" in refused.err
    assert machine.snapshot() == before
    assert console(machine, "cancel", ID, "--yes").exit_code == 0
    assert machine.read(f"dead_letters/{ID}/report.json")["cancelled"]["by"] == "operator"
    assert (machine.generation_id, machine.files("666")) == (None, set())
    assert console(machine, "dead-letters", "requeue", ID).exit_code == 0
    machine.until_over()
    assert len(machine.files("666")) == 3


@there_and_on_b2
def test_while_a_manager_is_at_work_nothing_is_done_and_it_is_named(machine: BucketMachine) -> None:
    failed_for_good(machine)
    machine.plant("imagine")
    manager, answer = at_work(machine, "imagine")
    before = machine.snapshot()
    for command in (["cancel", ID, "--yes"], ["dead-letters", "drop", ID, "--yes"]):
        refused = console(machine, *command)
        assert refused.exit_code == 75, refused
        assert f":{manager.pid}" in refused.err
    assert console(machine, "retry", ID).exit_code == 65, "nothing in it has failed, whoever is at work"
    assert machine.snapshot() == before
    answer.set()
    assert machine.finish(manager).exit_code == 0


@where_leases_run_out
def test_the_lease_of_a_killed_manager_is_broken_and_the_next_tick_goes_on_at_once(machine: BucketMachine) -> None:
    machine.plant("upscale")
    manager, answer = at_work(machine, "upscale")
    machine.kill(manager, script_too=True)
    answer.set()
    assert machine.read(PUBLIC)["processing_lock"]
    assert machine.tick().said("is held by"), "a tick would have to wait for minutes"
    refused = console(machine, "unlock")
    assert refused.exit_code == 65
    assert f":{manager.pid}, last heartbeat" in refused.err
    assert machine.tick().said("is held by")
    done = console(machine, "unlock", "--yes", "--json")
    assert (done.exit_code, done.json["flag_lowered"]) == (0, True)
    assert done.json["held_by"].endswith(f":{manager.pid}")
    assert not machine.read(PUBLIC)["processing_lock"]
    assert console(machine, "unlock", "--yes").exit_code == 65, "nothing is locked by now"
    machine.until_over()
    assert len(machine.files("666")) == 3


@on_a_directory
def test_on_a_directory_the_script_of_a_killed_manager_is_named(machine: BucketMachine) -> None:
    machine.plant("upscale")
    manager, answer = at_work(machine, "upscale")
    [script] = machine.processes("generate_media.py")
    machine.kill(manager, script_too=False)
    refused = console(machine, "unlock", "--yes")
    assert refused.exit_code == 65
    assert f"pid {script} (" in refused.err
    assert "generate_media.py" in refused.err
    os.kill(script, signal.SIGKILL)
    answer.set()
    eventually(lambda: not machine.leased)
    done = console(machine, "unlock")
    assert (done.exit_code, done.out.splitlines()[0]) == (
        0,
        "Done: processing_lock, which a crash left, is lowered; the lease was free.",
    )
    machine.until_over()


@on_a_directory
def test_without_a_terminal_nobody_is_asked(machine: BucketMachine) -> None:
    failed_for_good(machine)
    refused = console(machine, "dead-letters", "drop", ID, "--json")
    assert refused.exit_code == 65
    assert "Pass --yes to confirm" in refused.json["error"]
    done = console(machine, "dead-letters", "drop", ID, "--json", "--yes")
    assert (done.exit_code, done.json["done"]) == (0, "drop")
    assert not machine.files("dead_letters")


def _interrupted(process: subprocess.Popen[bytes]) -> bytes:
    """Press Ctrl-C, and again if the first one fell between the question and the wait for its answer: CPython checks
    for signals before it reads, and the kernel only interrupts a read under way."""
    for _ in range(6):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=10)[0]
    raise AssertionError("Ctrl-C did not end the question")


@on_a_directory
@pytest.mark.parametrize(("answer", "exit_code"), [("y\n", 0), ("n\n", 65), ("\n", 65), ("\x04", 130), ("ctrl-c", 130)])
def test_on_a_terminal_the_operator_is_asked(machine: BucketMachine, answer: str, exit_code: int) -> None:
    failed_for_good(machine)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "retake", "dead-letters", "drop", ID],
        cwd=machine.cwd,
        env={**machine.env, "PYTHONPATH": str(CHECKOUT), "TERM": "dumb"},
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    asked = b""
    while b"Continue? [y/N]" not in asked:
        asked += os.read(ours, 1000)
    if answer != "ctrl-c":
        os.write(ours, answer.encode())
    try:
        out = _interrupted(process) if answer == "ctrl-c" else process.communicate(timeout=60)[0]
    finally:
        process.kill()
    os.close(ours)
    assert process.returncode == exit_code
    assert (b"is dropped" in out) == (exit_code == 0)
    assert bool(machine.files("dead_letters")) == (exit_code != 0)


@on_a_directory
def test_each_command_explains_itself(machine: BucketMachine) -> None:
    for words in ("retry", "skip", "cancel", "unlock", "dead-letters", "dead-letters drop", "breaker", "breaker probe"):
        told = console(machine, *words.split(), "--help")
        assert (told.exit_code, told.err) == (0, "")
        assert told.out.startswith("Usage: ")
