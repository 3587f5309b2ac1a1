"""`retake check` in its own process: beside running ticks, on a terminal, and without a bucket."""

import json
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from cron_machine import CHECKOUT, LONG_S, Machine

sys.path.append(str(Path(__file__).parents[1]))

from schemas import check_answer  # tests/schemas.py


def check(machine: Machine, *words: str, code: int | None = 0, **environ: str) -> Any:
    """Run the command; return its document."""
    done = subprocess.run(
        [sys.executable, "-m", "retake", "check", *words, "--json"],
        cwd=machine.cwd,
        env={**machine.env, "PYTHONPATH": str(CHECKOUT), **environ},
        capture_output=True,
        encoding="utf-8",
        timeout=LONG_S,
    )
    document = json.loads(done.stdout)
    assert code in (None, done.returncode), (done.returncode, document, done.stderr)
    assert "Traceback" not in done.stderr
    check_answer("check", document)
    return document


def trouble(document: Any) -> list[Any]:
    return [it for it in document["findings"] if it["level"] != "note"]


def test_a_bucket_that_ticks_have_filled_is_whole(machine: Machine) -> None:
    assert machine.until_done().exit_code == 0
    document = check(machine, "--media")
    assert (document["whole"], trouble(document)) == (True, [])
    assert document["looked_at"]["objects"] >= 10


def test_beside_ticks_that_run_nothing_is_ever_found(machine: Machine) -> None:
    """Checks run one after another for as long as generations are made."""
    machine.set(WORKFLOW={"max_failed_in_a_row": 100})
    machine.tick()
    over = threading.Event()

    def make() -> None:
        try:
            for _ in range(3):
                machine.until_done()
        finally:
            over.set()

    maker = threading.Thread(target=make)
    maker.start()
    looks = []
    while not over.is_set() or not looks:
        looks.append(check(machine, code=None))
    maker.join(LONG_S)
    assert [it for document in looks for it in trouble(document)] == []
    assert check(machine)["whole"]


def test_a_tick_that_was_killed_leaves_nothing_that_the_next_does_not_mend(patient: Machine) -> None:
    patient.tick()
    for number in range(4):
        process = patient.start("b2_storage_manager.py")
        threading.Event().wait(0.1 + number * 0.07)
        process.kill()
        process.communicate(timeout=LONG_S)
        patient.await_end()
        assert [it for it in trouble(check(patient, code=None)) if it["level"] == "error"] == []
        patient.vendors.later()
        patient.tick()
        assert trouble(check(patient)) == []


def test_what_is_damaged_is_reported_with_what_to_do(machine: Machine) -> None:
    assert machine.until_done().exit_code == 0
    (picture,) = (it for it in machine.bucket.rglob("*.png"))
    picture.unlink()
    document = check(machine, code=65)
    assert not document["whole"]
    assert all(it["what"] and it["todo"] for it in document["findings"])


@pytest.mark.parametrize(("place", "fault"), [("none", "does not exist"), ("no/such/bucket", "is not there")])
def test_a_missing_bucket_is_reported(machine: Machine, place: str, fault: str) -> None:
    nowhere = f"file:{machine.cwd}/{place}"
    done = subprocess.run(
        [sys.executable, "-m", "retake", "check"],
        cwd=machine.cwd,
        env={**machine.env, "PYTHONPATH": str(CHECKOUT), "RETAKE_STORAGE_URL": nowhere},
        capture_output=True,
        encoding="utf-8",
        timeout=LONG_S,
    )
    assert done.returncode == 75
    assert fault in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not hasattr(pty, "openpty"), reason="needs a terminal")
def test_on_a_terminal_it_shows_how_far_it_is_and_clears_that_line(machine: Machine) -> None:
    assert machine.until_done().exit_code == 0
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "retake", "check"],
        cwd=machine.cwd,
        env={**machine.env, "PYTHONPATH": str(CHECKOUT), "TERM": "xterm", "COLUMNS": "80"},
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    assert process.wait(LONG_S) == 0
    progress, _, answer = seen.rpartition(b"\r\x1b[K")
    assert b": 1" in progress
    assert b"Everything fits together" in answer
