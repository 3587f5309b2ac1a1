"""A machine that runs the real scripts as cron does: each in a process, with settings in a file, keys in the
environment, the bucket in a folder, and stand-ins over real HTTP as vendors.

    machine.plant("upscale")                 # a generation whose next step is the upscale
    machine.order("upscale#1=500")           # which the vendor will refuse at first
    assert machine.tick().exit_code == 75

Every run is checked for what must always hold: each line on stderr is a JSON object, without keys and tracebacks.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from waiting import eventually

from retake.bucket.directory import DirectoryBucket
from retake.clock import SystemClock, stamp
from retake.errors import LeaseHeld
from retake.sandbox import Pace, RecordedCall, Sandbox
from retake.testing.vendors import CONTENT
from retake.vendors.piapi import PiAPI
from retake.vendors.runway import Runway

CHECKOUT = Path(__file__).parent.parent.parent
MANAGER = "b2_storage_manager.py"
SCRIPTS = ("generate_content.py", "generate_media.py", "fetch_media.py")
DOORS = (MANAGER, *SCRIPTS)

KEYS = {
    "MIDJOURNEY_API_KEY": "the-key-for-midjourney",
    "RUNWAYML_API_SECRET": "the-key-for-runway",
    "OPENAI_API_KEY": "the-key-for-the-writer",
}

ID = "20260101-0930"
PUBLIC, GEN, MIDJOURNEY = (f"config/config_{name}.json" for name in ("public", "gen", "midjourney"))
TEXT = {"generation_id": ID, **CONTENT, "created_at": "2026-01-01T09:30:00Z"}
SMALL = {
    "WORKFLOW": {"runway_polling_interval": 0.05, "runway_polling_timeout": 0.3, "call_timeout_seconds": 20},
    "IMAGE_GENERATION": {"output_size": "320x180"},
    "VIDEO": {"mock_duration": 0.5, "mock_fps": 10},
}
LONG_S = 300  # a guard against hanging, not a measurement: nothing here takes this long


class Ahead:
    """The vendors' clock: the machine's own, some seconds ahead."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return SystemClock().now() + timedelta(seconds=self.seconds)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class Stock(NamedTuple):
    """Finished work at the vendors, for generations that begin in the middle."""

    imagine: str  # ids of tasks
    upscale: str
    video: str
    pictures: dict[str, Any]  # the vendor's answers about the finished tasks
    picture: dict[str, Any]


class Vendors:
    """The stand-ins. Tasks take `seconds` each by their own clock, which a test advances with `later`."""

    def __init__(self, seconds: float) -> None:
        self._clock, self._seconds = Ahead(), seconds
        self.on_call: Callable[[RecordedCall], object] = lambda call: None
        self.sandbox = Sandbox(
            pace=Pace(seconds, seconds, seconds),
            quick=True,
            seed=7,
            clock=self._clock,
            on_call=lambda call: self.on_call(call),
        )

    def later(self) -> None:
        """Finish every ordered task."""
        self._clock.sleep(self._seconds)

    def as_new(self) -> None:
        """Remove orders and listeners, and reset the vendors' clock to the machine's."""
        self.sandbox.withdraw_orders()
        self.on_call = lambda call: None
        self._clock.seconds = 0.0

    @cached_property
    def stock(self) -> Stock:
        """Work bought a day ago, so that it is not mistaken for an order of today whose answer was lost."""
        self._clock.seconds = -24 * 3600.0
        urls = self.sandbox.endpoints()
        tasks, films = urls["midjourney"], urls["runwayml"]
        piapi = PiAPI(
            tasks["endpoint"], tasks["task_endpoint"], "k", process_mode="fast", aspect_ratio="16:9", timeout_s=20
        )
        runway = Runway(films["endpoint"], "k", model="gen4_turbo", ratio="1280:720", duration_s=5, timeout_s=20)
        imagine = piapi.imagine("a lighthouse", 1)
        self.later()
        upscale = piapi.upscale(imagine, 1)
        video = runway.create("https://example.org/a.png", "fog")
        self.as_new()
        pictures, picture = piapi.fetch(imagine).result, piapi.fetch(upscale).result
        assert pictures is not None
        assert picture is not None
        return Stock(imagine, upscale, video, pictures, picture)


@dataclass(frozen=True)
class Run:
    """The result of a script."""

    exit_code: int
    out: str
    err: str

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.err.splitlines()]

    @property
    def messages(self) -> list[str]:
        return [line["message"] for line in self.lines]

    @property
    def alerts(self) -> list[str]:
        return [line["alert"] for line in self.lines if "alert" in line]

    @property
    def error(self) -> str:
        """The one sentence with which it failed."""
        [message] = [line["message"] for line in self.lines if line["level"] == "ERROR"]
        return str(message)

    def said(self, text: str) -> bool:
        return any(text in message for message in self.messages)


class Machine:
    """A machine with the scripts, with all files below `folder`."""

    def __init__(self, folder: Path, vendors: Vendors) -> None:
        self.folder, self.vendors, self.sandbox = folder, vendors, vendors.sandbox
        self.bucket = folder / "bucket"
        self.settings_file = folder / "settings.json"
        self.cwd = folder
        self.env = {
            "PATH": os.environ["PATH"],
            "PYTHONDONTWRITEBYTECODE": "1",  # a process that is killed or has no disk must not damage the checkout
            "HOME": str(folder),
            "NO_PROXY": "*",
            "RETAKE_CONFIG": str(self.settings_file),
            "RETAKE_STORAGE_URL": f"file:{self.bucket}",
            **KEYS,
        }
        self.set(API_KEYS=self.sandbox.endpoints())
        assert vendors.stock  # buys it before any bills are counted
        self._before = len(self.sandbox.calls())
        self._started: list[subprocess.Popen[str]] = []

    # --- settings, documents, orders ---

    def set(self, **sections: Mapping[str, Any]) -> None:
        """Change settings whose usual test values keep the tests short."""
        written = json.loads(self.settings_file.read_text()) if self.settings_file.exists() else SMALL
        for section, values in sections.items():
            written = {**written, section: {**written.get(section, {}), **values}}
        self.settings_file.write_text(json.dumps(written))

    def order(self, *orders: str) -> None:
        for order in orders:
            self.sandbox.order(order)

    def put(self, key: str, value: object) -> Path:
        path = self.bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
        return path

    def read(self, key: str) -> dict[str, Any]:
        """Return a document, an empty one if there is none."""
        path = self.bucket / key
        return dict(json.loads(path.read_bytes())) if path.exists() else {}

    @property
    def doc(self) -> dict[str, Any]:
        return self.read(MIDJOURNEY)

    @property
    def status(self) -> str | None:
        return self.doc.get("status")

    @property
    def generation_id(self) -> str | None:
        return self.read(GEN).get("generation_id")

    @property
    def error_code(self) -> str | None:
        return (self.doc.get("last_error") or {}).get("error_code")

    def files(self, folder: str = "") -> set[str]:
        """Return the keys of everything in the bucket."""
        found = (path.relative_to(self.bucket) for path in (self.bucket / folder).rglob("*") if path.is_file())
        return {str(path) for path in found if path.parts[0] != ".retake"}

    def snapshot(self) -> dict[str, bytes]:
        return {key: (self.bucket / key).read_bytes() for key in self.files()}

    def plant(self, next_step: str) -> None:
        """Create a generation whose next call is one of imagine, fetch, upscale, download, runway and poll."""
        stock, now = self.vendors.stock, stamp(SystemClock().now())
        self.put(f"666/{ID}.json", TEXT)
        self.put(GEN, {"generation_id": ID})
        pictures = {"task_id": stock.imagine, "task_type": "imagine", "task_result": stock.pictures}
        picture = {"task_id": stock.upscale, "task_type": "upscale", "task_result": stock.picture}
        doc: dict[str, dict[str, Any]] = {
            "imagine": {"generation": True},
            "fetch": {
                "midjourney_task": {"task_id": stock.imagine, "task_type": "imagine", "requested_at_utc": now},
                "status": "waiting_for_imagine",
            },
            "upscale": {"midjourney_results": pictures},
            "download": {"midjourney_results": picture},
            "runway": {"midjourney_results": picture},
            "poll": {
                "midjourney_results": picture,
                "runway_task": {"task_id": stock.video, "requested_at_utc": now},
                "status": "waiting_for_runway",
            },
        }
        self.put(MIDJOURNEY, doc[next_step])
        if next_step in ("runway", "poll"):
            self.put(f"666/{ID}.png", _png())

    # --- processes ---

    def start(self, script: str, *arguments: str, by: Sequence[str] = (), **options: Any) -> subprocess.Popen[str]:
        """Start a script; `by` is the command that starts it, if not this machine itself."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            [*by, sys.executable, str(CHECKOUT / script), *arguments],
            **{"cwd": self.cwd, "env": self.env, "encoding": "utf-8", **pipes, **options},
        )
        self._started.append(process)
        return process

    def finish(self, process: subprocess.Popen[str]) -> Run:
        out, err = process.communicate(timeout=LONG_S)
        run = Run(process.returncode, out, err)
        self._check(run)
        return run

    def run(self, script: str, *arguments: str, **options: Any) -> Run:
        return self.finish(self.start(script, *arguments, **options))

    def tick(self, *arguments: str, **options: Any) -> Run:
        return self.run(MANAGER, *arguments, **options)

    def until_done(self, *arguments: str, **options: Any) -> Run:
        return self.tick("--until-done", "--interval", "0", *arguments, **options)

    def _check(self, run: Run) -> None:
        assert "Traceback" not in run.out + run.err
        assert not [key for key in KEYS.values() if key in run.out + run.err]
        if run.exit_code != 2:  # click's own messages about the command line
            for line in run.lines:
                assert line.keys() >= {"timestamp", "level", "logger", "message"}, line

    def processes(self, script: str = "") -> list[int]:
        """Return every process that runs (`script`) with this machine's settings, orphans included."""
        mark, name = os.fsencode(self.settings_file), script.encode()
        return [pid for pid in running() if mark in about(pid, "environ") and name in about(pid, "cmdline")]

    def session(self, leader: int) -> list[int]:
        """Return every living process of a session."""
        stats = {pid: about(pid, "stat").rpartition(b")")[2].split()[:4] for pid in running()}
        return [pid for pid, it in stats.items() if it and it[0] != b"Z" and int(it[3]) == leader]

    def await_process(self, script: str) -> int:
        """Wait for the script that the manager starts; return its process id."""
        return next(iter(eventually(lambda: self.processes(script))))

    def await_end(self) -> None:
        """Wait until nothing of this machine is running."""
        eventually(lambda: not self.processes())

    def end(self) -> None:
        """End what a test left running."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    pipe.close()

    @property
    def leased(self) -> bool:
        try:
            DirectoryBucket(str(self.bucket)).lease("story", "the test").release()
        except LeaseHeld:
            return True
        return False

    # --- the vendors' books ---

    def calls(self, kind: str | None = None) -> list[RecordedCall]:
        return [call for call in self.sandbox.calls()[self._before :] if kind in (None, call.kind)]

    def billed(self, kind: str) -> int:
        """Return how many calls the vendor carried out."""
        return sum(call.carried_out for call in self.calls(kind))

    def await_call(self, kind: str, number: int = 1) -> None:
        """Wait until the vendor has received that many calls of the kind."""
        eventually(lambda: len(self.calls(kind)) >= number)


def running() -> list[int]:
    """Return every process there is. This and `about` are called again and again while waiting."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def about(pid: int, what: str) -> bytes:
    """Return a file of the process in /proc; b"" once it has ended."""
    try:
        with open(f"/proc/{pid}/{what}", "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def manager_killed_at(machine: Machine, kind: str, *, script_too: bool) -> None:
    """Start a manager and kill it in the middle of the first call of the kind: the vendor has carried the call out, and
    its answer is on the way."""
    manager = machine.start(MANAGER)

    def kill(call: RecordedCall) -> None:
        if call.kind == kind and manager.poll() is None:
            manager.kill()
            manager.wait()
            for orphan in machine.processes() if script_too else []:
                with suppress(ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)

    machine.vendors.on_call = kill
    assert manager.wait(LONG_S) == -signal.SIGKILL
    machine.await_end()
    machine.vendors.on_call = lambda call: None


def in_order(text: str, *parts: str) -> bool:
    return re.search(".*".join(map(re.escape, parts)), text, re.DOTALL) is not None


def serving(seconds: float) -> Iterator[Vendors]:
    vendors = Vendors(seconds)
    with vendors.sandbox:
        yield vendors


def _png() -> bytes:
    from io import BytesIO

    from PIL import Image

    file = BytesIO()
    Image.new("RGB", (320, 180), "teal").save(file, "PNG")
    return file.getvalue()
