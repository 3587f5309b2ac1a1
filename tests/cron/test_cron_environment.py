"""Mistakes in the environment of a schedule, and a vendor that drips, with the real scripts."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cron_machine import CHECKOUT, LONG_S, MIDJOURNEY, Machine

WRONG = {
    "socks without PySocks": ({"ALL_PROXY": "socks5://127.0.0.1:1"}, "ALL_PROXY"),
    "an unknown scheme": ({"HTTP_PROXY": "gopher://127.0.0.1:1"}, "HTTP_PROXY"),
    "no such certificates": ({"SSL_CERT_FILE": "/nowhere/ca.pem"}, "SSL_CERT_FILE"),
}
STEPS = ("content", "imagine", "fetch", "upscale", "runway", "poll", "download")


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("step", STEPS)
def test_a_wrong_environment_stops_a_step_before_anything_is_on_record(machine: Machine, step: str, what: str) -> None:
    """Exit 78, no pending intent and no counted failure; the next tick continues as if nothing had happened."""
    if step != "content":
        machine.plant(step)
    before = machine.doc
    variables, named = WRONG[what]
    if "SSL_CERT_FILE" not in variables:
        del machine.env["NO_PROXY"]
    machine.env.update(variables)

    run = machine.tick()

    assert run.exit_code == 78, run.err
    assert any(named in message for message in run.messages)
    assert "pending_call" not in machine.doc
    assert machine.doc.get("retry_count", 0) == before.get("retry_count", 0)
    assert not machine.doc.get("paid_calls")
    assert machine.calls() == []


def test_an_order_whose_library_is_gone_is_not_on_record(machine: Machine, tmp_path: Path) -> None:
    """As during an update that replaces the libraries."""
    machine.plant("runway")
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone/runwayml.py").write_text("raise ImportError('gone')")
    machine.env["PYTHONPATH"] = str(tmp_path / "gone")
    assert machine.start("b2_storage_manager.py").wait(LONG_S) == 75
    assert "pending_call" not in machine.doc
    assert not machine.doc.get("paid_calls")
    del machine.env["PYTHONPATH"]
    assert machine.until_done().exit_code == 0
    assert machine.billed("runway") == 1


def test_an_exit_code_is_known_even_if_the_parent_ignores_sigchld(machine: Machine) -> None:
    """Python programs inherit ignored SIGCHLD, and then wait() reports nothing."""
    (machine.folder / "prompts.json").write_text("{")
    begun = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    run = machine.tick(by=[sys.executable, "-c", begun])
    assert run.exit_code == 78, run.err
    assert machine.status is None


def test_the_doctor_names_what_is_wrong_with_the_environment(machine: Machine) -> None:
    del machine.env["NO_PROXY"]
    machine.env["ALL_PROXY"] = "socks5://127.0.0.1:1"
    ran = subprocess.run(
        [sys.executable, "-m", "retake", "doctor", "--json"],
        cwd=CHECKOUT,
        env=machine.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 78, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr
    faults = [check for check in json.loads(ran.stdout)["checks"] if check["verdict"] == "fault"]
    assert {fault["check"].partition(" ")[0] for fault in faults} >= {"pictures", "videos", "texts"}
    assert all("ALL_PROXY" in fault["found"] for fault in faults)


@pytest.fixture
def dripping() -> Iterator[tuple[str, threading.Event]]:
    """Yield the base URL of a vendor that answers a byte now and then, for ever, and an event that is set once it
    does."""
    stop, begun = threading.Event(), threading.Event()

    def drip(connection: socket.socket) -> None:
        begun.set()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-A: ")
            while not stop.wait(0.05):
                connection.sendall(b"a")

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", begun
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)


def test_a_poll_that_drips_holds_no_channel_longer_than_a_call_may_take(
    machine: Machine, dripping: tuple[str, threading.Event]
) -> None:
    """A poll runs in the manager's own process, which used to keep its lease and ignore signals meanwhile."""
    machine.plant("fetch")
    for path in [path for path in machine.bucket.iterdir() if path.name != ".retake"]:
        (machine.bucket / "north").mkdir(exist_ok=True)
        path.rename(machine.bucket / "north" / path.name)
    settings = json.loads(machine.settings_file.read_text())
    settings["API_KEYS"]["midjourney"]["task_endpoint"] = f"{dripping[0]}/fetch"
    settings["WORKFLOW"]["call_timeout_seconds"] = 2
    machine.settings_file.write_text(json.dumps({**settings, "CHANNELS": ["north"]}))

    manager = machine.start("b2_storage_manager.py")
    assert dripping[1].wait(LONG_S)
    begun = time.monotonic()
    manager.send_signal(signal.SIGTERM)
    run = machine.finish(manager)

    assert time.monotonic() - begun < 20
    assert run.exit_code == 75, run.err
    assert machine.read(f"north/{MIDJOURNEY}")["midjourney_task"], "the paid task is kept"
