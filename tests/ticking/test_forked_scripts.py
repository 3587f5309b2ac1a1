"""A script as a fork of the manager: it behaves like a process of its own, and is used only where that is safe.

Each case is a program of its own, since the tests' own process has threads.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import atexit, json, os, signal, sys, threading, time
from logging import getLogger
from retake.logs import setup_logging
from retake.ticking.subprocess_scripts import SubprocessScripts
from retake.bucket import Handover

setup_logging(sys.stdout, human=False)
lock = os.open("lock", os.O_CREAT | os.O_RDWR)
other = os.open("other", os.O_CREAT | os.O_RDWR)
os.set_inheritable(other, True)

class Lease:
    def handover(self):
        return Handover(f"{lock} 7", (lock,))

def tell(**facts):
    with open("told", "a") as file:
        file.write(json.dumps(facts) + "\\n")

def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True

signal.signal(signal.SIGTERM, lambda *_: tell(who="manager's handler"))
atexit.register(lambda: tell(who="atexit", pid=os.getpid()))
manager = os.getpid()

%s

def command_of(script):
    return [sys.executable, "-c", "import os; open('told', 'a').write('{\\"who\\": \\"command\\"}\\\\n')"]

environ = {**os.environ, "NEW": "1"}
environ.pop("OLD", None)
scripts = SubprocessScripts(command_of, TIMEOUT, environ, lambda: 0, lambda script: work)
tell(who="result", ended=list(scripts.run("fetch_media", ["a", "b"], Lease())))
"""


def run(folder: Path, code: str, timeout_s: float = 60) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Run a manager whose script is the function `work` of `code`; return what was reported, and the lines of its
    log."""
    program = PROGRAM % f"TIMEOUT = {timeout_s}\n{code}"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "OLD": "1", "PYTHONPATH": str(Path(__file__).parent.parent.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    told = [json.loads(line) for line in (folder / "told").read_text().splitlines()]
    return told, [json.loads(line) for line in ended.stdout.splitlines()]


def of(told: list[dict[str, Any]], who: str) -> dict[str, Any]:
    [found] = [it for it in told if it["who"] == who]
    return found


SELF = """
def work(arguments):
    with open("/proc/self/comm") as file:
        name = file.read().strip()
    with open("/proc/self/cmdline") as file:
        command = file.read().rstrip("\\0")
    with open("/proc/self/environ", "rb") as file:
        shown = b"\\0OLD=1\\0" in b"\\0" + file.read()
    tell(
        who="script", pid=os.getpid(), parent=os.getppid(), session=os.getsid(0), name=name, command=command,
        shown=shown, arguments=arguments,
        new=os.environ.get("NEW"), old=os.environ.get("OLD"), lease=os.environ["RETAKE_LEASE"].split()[1],
        scratch=os.path.isdir(os.environ["TMPDIR"]), lock=is_open(lock), other=is_open(other),
        term=signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, blocked=len(signal.pthread_sigmask(0, [])),
        modules="retake.ticking.subprocess_scripts" in sys.modules, stdin=sys.stdin.read(),
    )
    print("a line"); print("another", file=sys.stderr)
"""


def test_a_fork_is_a_process_like_one_of_its_own(tmp_path: Path) -> None:
    told, lines = run(tmp_path, SELF)
    script = of(told, "script")
    assert script["pid"] == script["session"] != script["parent"]
    assert (script["name"], script["arguments"], script["modules"]) == ("fetch_media", ["a", "b"], True)
    assert script["command"].startswith(f"{Path(sys.executable).name} -c "), "as if it had been started"
    assert script["shown"], "the process keeps its initial environment in place"
    assert (script["new"], script["old"], script["lease"], script["scratch"]) == ("1", None, "7", True)
    assert (script["lock"], script["other"], script["stdin"]) == (True, False, "")
    assert (script["term"], script["blocked"]) == (True, 0)
    assert of(told, "result")["ended"] == [0, False, False]
    assert sorted(it["message"] for it in lines) == ["a line", "another"]
    assert of(told, "atexit")["pid"] == script["parent"], "the manager's exit handlers do not run in its scripts"


@pytest.mark.parametrize(
    ("code", "exit_code", "line"),
    [
        ("sys.exit(75)", 75, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('no')", 1, "no"),
        ("raise ValueError('odd')", 1, "ValueError: odd"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -15, ""),
    ],
)
def test_it_ends_as_a_process_of_its_own_would(tmp_path: Path, code: str, exit_code: int, line: str) -> None:
    told, lines = run(tmp_path, f"def work(arguments): {code}")
    assert of(told, "result")["ended"] == [exit_code, False, False]
    assert line in [it["message"] for it in lines] or not line
    assert {it["who"] for it in told} == {"result", "atexit"}


def test_when_its_time_is_over_it_ends_with_all_that_it_started(tmp_path: Path) -> None:
    code = """
def work(arguments):
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    tell(who="script", child=child)
    time.sleep(600)
"""
    told, _ = run(tmp_path, code, timeout_s=4)
    assert of(told, "result")["ended"] == [-15, True, False]
    end = time.monotonic() + 60  # otherwise it would end after ten minutes
    while not is_gone(of(told, "script")["child"]):
        assert time.monotonic() < end
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize(
    "code",
    [
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "import sqlalchemy",
        "sys.setprofile(lambda *_: None)",
        "sys.settrace(lambda *_: None)",
        "sys.platform = 'darwin'",
    ],
    ids=["a thread", "a database", "a profiler", "a debugger", "another system"],
)
def test_what_a_fork_must_not_share_has_it_started_by_its_command(tmp_path: Path, code: str) -> None:
    told, _ = run(tmp_path, f"{SELF}\n{code}")
    assert {it["who"] for it in told} == {"command", "result", "atexit"}
    assert of(told, "result")["ended"] == [0, False, False]


RENEWED = """
import contextlib

class RenewedLease(Lease):
    @contextlib.contextmanager
    def without_thread(self):
        stop.set()
        thread.join(0.1)
        yield
        tell(who="renewed again", pid=os.getpid())

Lease, stop = RenewedLease, threading.Event()
thread = threading.Thread(target=%s, daemon=True)
thread.start()
"""


def test_a_thread_that_renews_the_lease_is_stopped_meanwhile(tmp_path: Path) -> None:
    told, _ = run(tmp_path, SELF + RENEWED % "stop.wait")
    assert of(told, "script")["parent"] == of(told, "renewed again")["pid"], "once, and not in the fork"


def test_one_that_does_not_stop_at_once_has_the_script_started_by_its_command(tmp_path: Path) -> None:
    told, _ = run(tmp_path, SELF + RENEWED % "lambda: time.sleep(60)")
    *begun, result, end = [it["who"] for it in told]
    begun.sort()  # neither waits for the other
    assert (begun, result, end) == (["command", "renewed again"], "result", "atexit")


NOT_STARTED = """
from retake.ticking.subprocess_scripts import NotStarted

class Told(SubprocessScripts):
    def run(self, *given):
        before = len(os.listdir("/proc/self/fd"))
        try:
            super().run(*given)
        except NotStarted as error:
            tell(who="error", text=str(error), code=error.exit_code, left=len(os.listdir("/proc/self/fd")) - before)
        return ()
SubprocessScripts = Told
"""


@pytest.mark.parametrize("work", ["work = None", "def work(arguments): pass"], ids=["by its command", "a fork"])
def test_a_machine_that_allows_no_other_process_is_reported_in_plain_words(tmp_path: Path, work: str) -> None:
    code = f"""
import subprocess

def full(*_, **given): raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = subprocess.Popen = full
{work}
"""
    told, _ = run(tmp_path, code + NOT_STARTED)
    error = of(told, "error")
    assert error["text"].startswith("fetch_media could not be started: Resource temporarily unavailable; nothing was")
    assert (error["code"], error["left"]) == (75, 0)


def test_a_program_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("not executable")
    told, _ = run(tmp_path, "sys.executable = './python'\nwork = None\n" + NOT_STARTED)
    error = of(told, "error")
    assert error["text"].startswith("fetch_media could not be started: Permission denied; nothing was begun. Let the")
    assert "run ./python" in error["text"]
    assert (error["code"], error["left"]) == (75, 0)


def test_a_machine_without_a_temporary_folder_is_reported_in_plain_words(tmp_path: Path) -> None:
    """A container whose disk is read-only except for its bucket has none."""
    code = """
import tempfile
os.environ["TMPDIR"] = "/nowhere"
tempfile._candidate_tempdir_list = lambda: ["/nowhere"]
work = None
"""
    told, _ = run(tmp_path, code + NOT_STARTED)
    error = of(told, "error")
    assert error["text"].startswith("fetch_media could not be started: it has no place for temporary files: No usable")
    assert "set TMPDIR" in error["text"]
    assert error["code"] == 75
