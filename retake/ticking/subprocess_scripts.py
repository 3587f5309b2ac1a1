"""The scripts as subprocesses, one at a time, under the manager's lease and with a time limit.

Each script has a session of its own, so that it can be ended together with everything it started. It inherits the
lease (on a directory, the lock's file descriptor), so that a killed manager's script is still alone in the pipeline
while it ends. Its output goes, line by line, into the manager's log.
"""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from tempfile import TemporaryDirectory

from retake.bucket import Lease
from retake.exit_codes import ExitCode
from retake.logs import relay
from retake.ticking.process import LEASE_VARIABLE
from retake.ticking.tick import ScriptResult

_GRACE_S = 5.0  # between asking a script whose time is over to end, and ending it
_LOOK_S = 0.2  # how often a signal to us is looked for
_LINE = 64 * 1024  # bytes of a line that are worth keeping


class SubprocessScripts:
    """Runs scripts. `command_of` returns the command that starts the script of that name, without its arguments.

    `stopping` returns how many signals asked the manager to stop: at the first the script is asked to end when nothing
    is half done, at the second it is ended.
    """

    def __init__(
        self,
        command_of: Callable[[str], list[str]],
        timeout_s: float,
        environ: Mapping[str, str],
        stopping: Callable[[], int] = lambda: 0,
    ) -> None:
        self._command_of = command_of
        self._timeout_s = timeout_s
        self._environ = environ
        self._stopping = stopping

    def run(self, script: str, arguments: list[str], lease: Lease) -> ScriptResult:
        if self._stopping():  # the script before this one came to a good end all the same; no other is begun
            return ScriptResult(ExitCode.TRY_LATER, stopped=True)
        with TemporaryDirectory(prefix="retake-", ignore_cleanup_errors=True) as scratch:  # gone even if it is killed
            return self._run(script, arguments, lease, scratch)

    def _run(self, script: str, arguments: list[str], lease: Lease, scratch: str) -> ScriptResult:
        handover = lease.handover()
        process = subprocess.Popen(
            [*self._command_of(script), *arguments],
            env={**self._environ, LEASE_VARIABLE: handover.text, "TMPDIR": scratch},
            pass_fds=handover.fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return self._follow(process)
        finally:
            _end(process.pid, signal.SIGKILL)  # whatever it left behind
            process.wait()
            if process.stdout:
                process.stdout.close()

    def _follow(self, process: "subprocess.Popen[bytes]") -> ScriptResult:
        assert process.stdout is not None
        output = _Lines(process.stdout.fileno())
        end = time.monotonic() + self._timeout_s
        asked = 0
        while process.poll() is None:
            output.relay_within(_LOOK_S)
            if time.monotonic() > end:
                _end_politely(process)
                output.relay_rest()
                return ScriptResult(process.returncode, timed_out=True)
            if self._stopping() > asked:
                asked = self._stopping()
                process.terminate() if asked == 1 else _end(process.pid, signal.SIGKILL)
        output.relay_rest()
        return ScriptResult(process.returncode, stopped=asked > 0 and process.returncode != 0)


class _Lines:
    """The lines that arrive on a pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._open = True
        self._begun = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(fd, selectors.EVENT_READ)
        os.set_blocking(fd, False)

    def relay_within(self, seconds: float) -> None:
        """Wait for output, so long at most, and relay what came. Once the pipe is closed this is just a wait."""
        if not self._open:
            time.sleep(min(seconds, 0.02))
        elif self._selector.select(seconds):
            self._take()

    def relay_rest(self) -> None:
        while self._open and self._selector.select(0):
            self._take()
        self._pass_on(b"\n")

    def _take(self) -> None:
        data = os.read(self._fd, _LINE)
        if not data:
            self._open = False
            self._selector.close()
        self._pass_on(data)

    def _pass_on(self, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        if len(self._begun) > _LINE:
            lines, self._begun = [*lines, self._begun], b""
        for line in lines:
            if line.strip():
                relay(line.decode("utf-8", "replace"))


def _end_politely(process: "subprocess.Popen[bytes]") -> None:
    _end(process.pid, signal.SIGTERM)
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        _end(process.pid, signal.SIGKILL)
        process.wait()


def _end(session: int, number: signal.Signals) -> None:
    """Signal a script and everything that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, number)
