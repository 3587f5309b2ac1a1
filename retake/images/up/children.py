"""Child processes: none survives this process, those that end are restarted, and they are stopped in reverse order.

A child gets SIGKILL from the kernel when the thread that started it ends (bound.py), so start children in the thread
that lives longest: the main one. Each leads its own session, so that Ctrl-C at a terminal reaches only this process,
which then stops them in order.
"""

import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from logging import getLogger
from pathlib import Path
from typing import NamedTuple

import click

from retake.errors import RetakeError, StorageError
from retake.exit_codes import ExitCode
from retake.foreign_text import one_line
from retake.images.up import bound
from retake.retrying.backoff import Exponential

LOG_BYTES = 4 * 2**20
"""Size in bytes at which a child's output is rotated; one older file is kept."""

STEADY_S = 30.0
"""Seconds of running after which a child that ends is restarted at once."""

MAX_PAUSE_S = 10.0
"""Maximum backoff in seconds before a restart."""
_PAUSE = Exponential(0.5)
_HOPELESS = (click.UsageError.exit_code, ExitCode.CONFIG)
_POLL_S = 0.05

_log = getLogger(__name__)


class NotReady(RetakeError):
    """A child did not become ready in time, or ended before it was."""

    exit_code = ExitCode.TRY_LATER


class ChildCommand(NamedTuple):
    """How a child is run and stopped. `log` is the file to which its output is appended."""

    name: str
    command: Sequence[str | Path]
    log: Path
    environ: Mapping[str, str]
    folder: Path = Path("/")
    user: pwd.struct_passwd | None = None  # to run as, if this process is root
    kept_files: tuple[int, ...] = ()  # file descriptors that it inherits
    before: Callable[[], None] = lambda: None  # called before each start
    ready: Callable[[], bool] = lambda: True
    stop_signal: int = signal.SIGTERM
    stop_seconds: float = 10.0  # then SIGKILL
    repeat_seconds: float | None = None  # how often the signal is resent, to a child that may miss it while starting


def bound_by(user: pwd.struct_passwd | None) -> tuple[str, ...]:
    """Return the prefix of a command that is to die with this thread and, if given, run as `user`."""
    ids = (str(user.pw_uid), str(user.pw_gid)) if user else ("-1", "-1")
    return (sys.executable, "-I", "-S", bound.__file__, str(os.getpid()), *ids)


class Child:
    """One child process, not started yet."""

    def __init__(self, command: ChildCommand) -> None:
        self.command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return self.command.name

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process and self.running else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll() if self._process else None

    def start(self) -> None:
        """Start it. Raises StorageError if its log cannot be written."""
        it = self.command
        it.before()
        try:
            with open(it.log, "ab") as output:
                self._process = subprocess.Popen(
                    [*bound_by(it.user), *map(str, it.command)],
                    cwd=it.folder,
                    env=dict(it.environ),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=it.kept_files,
                    start_new_session=True,
                )
        except OSError as error:
            raise StorageError(
                f"{it.name} cannot be started, with its output in {it.log} ({error.strerror})"
            ) from error

    def ask_to_stop(self) -> None:
        """Send it the signal that stops it gracefully."""
        if self.running:
            self._send(self.command.stop_signal)

    def kill(self) -> None:
        """Kill it and the rest of its session, and wait until it is gone."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            if self.running:
                self._send(signal.SIGKILL)
            self._process.wait()

    def last_output(self, length: int = 300) -> str:
        """Return the end of its output on one line, for an error message."""
        try:
            with open(self.command.log, "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return one_line(" ".join(lines[-3:]))[-length:]

    def bound_log(self) -> None:
        """Rotate its output when it is large: the content is copied, and the file that it keeps writing to is
        emptied."""
        path = self.command.log
        with suppress(OSError):
            if path.stat().st_size > LOG_BYTES:
                path.with_name(f"{path.name}.1").write_bytes(path.read_bytes()[-LOG_BYTES:])
                os.truncate(path, 0)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            assert self._process is not None
            os.kill(self._process.pid, number)


class Supervisor:
    """Runs children until it is stopped. `monotonic` returns seconds, `pause` waits."""

    def __init__(self, monotonic: Callable[[], float], pause: Callable[[float], None]) -> None:
        self._monotonic, self._pause = monotonic, pause
        self._stages: list[list[Child]] = []
        self._started: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    @property
    def children(self) -> list[Child]:
        return [child for stage in self._stages for child in stage]

    def start(self, commands: Sequence[ChildCommand]) -> list[Child]:
        """Start these as one stage. Stages are stopped in reverse order."""
        stage: list[Child] = []
        self._stages.append(stage)
        for command in commands:
            stage.append(Child(command))
            self._start(stage[-1])
        return stage

    def wait_until_ready(
        self, children: Sequence[Child], seconds: float, stopping: Callable[[], bool] = lambda: False
    ) -> bool:
        """Wait until all of them are ready; return False if `stopping` says so first.

        Those that end in the meantime are restarted. Raises NotReady after `seconds`, and at once if one ended because
        its settings or its command line are wrong.
        """
        waiting, end = list(children), self._monotonic() + seconds
        while True:
            waiting = [child for child in waiting if not (child.running and child.command.ready())]
            if not waiting:
                return True
            if stopping():
                return False
            for child in waiting:
                late = f"is not ready after {seconds:g} s" if self._monotonic() > end else None
                if fault := _refusal(child) or late:
                    raise NotReady(f"{child.name} {fault}; see {child.command.log}: {child.last_output()}")
            self.look()
            self._pause(_POLL_S * 2)

    def look(self) -> None:
        """Restart children that have ended: at once if they had run for a while, else after a growing pause."""
        now = self._monotonic()
        for child in self.children:
            child.bound_log()
            if child.running:
                continue
            if child.name not in self._due:
                self._note_end(child, now)
            if now >= self._due[child.name]:
                del self._due[child.name]
                self._start(child)

    def stop(self, impatient: Callable[[], bool] = lambda: False) -> None:
        """Stop all, the last started first; kill them if `impatient` says so."""
        while self._stages:
            end_all(self._stages[-1], self._pause, impatient)
            self._stages.pop()

    def _start(self, child: Child) -> None:
        self._started[child.name] = self._monotonic()
        child.start()

    def _note_end(self, child: Child, now: float) -> None:
        steady = now - self._started[child.name] >= STEADY_S
        failures = self._failures[child.name] = 0 if steady else self._failures.get(child.name, 0) + 1
        pause = min(MAX_PAUSE_S, _PAUSE.delay_s(failures - 1)) if failures > 1 else 0.0
        self._due[child.name] = now + pause
        later = f"in {pause:g} s" if pause else "now"
        _log.warning("%s ended (%s); it is restarted %s", child.name, ended_with(child.exit_code), later)


def end_all(
    children: Sequence[Child], pause: Callable[[float], None], impatient: Callable[[], bool] = lambda: False
) -> None:
    """Stop these together: each with its own signal, and with SIGKILL when its time is up or `impatient` says so."""
    for child in children:
        child.ask_to_stop()
    pieces, left = 0, [child for child in children if child.running]
    while left and not impatient():
        pause(_POLL_S)
        pieces += 1
        left = [child for child in left if child.running and pieces * _POLL_S < child.command.stop_seconds]
        for child in left:
            if child.command.repeat_seconds and pieces % round(child.command.repeat_seconds / _POLL_S) == 0:
                child.ask_to_stop()
    for child in children:
        if child.running:
            _log.warning("%s does not end; killing it", child.name)
        child.kill()  # also what is left of its session


def _refusal(child: Child) -> str | None:
    """Return how a child ended, if it would end in the same way again; None if a restart may help."""
    return f"does not start ({ended_with(child.exit_code)})" if child.exit_code in _HOPELESS else None


def ended_with(exit_code: int | None) -> str:
    """Return in words how a process ended."""
    if exit_code is not None and exit_code < 0:
        with suppress(ValueError):
            return signal.Signals(-exit_code).name
    return f"exit code {exit_code}"
