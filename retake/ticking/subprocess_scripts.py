"""Runs scripts in processes of their own, one at a time, under the manager's lease and with a time limit.

The manager is the process that runs the tick. Each script has a session of its own, so that it can be ended together
with everything it started. It inherits the lease (on a directory, the lock's file descriptor), so that the script of a
killed manager is still alone in the pipeline until it ends. Its output goes, line by line, into the manager's log.

A script is started by its command. If `work_of` has a function for it and this process can be forked (`_may_fork`), it
is a fork of the manager instead, which has already loaded most of what the script needs: see
docs/decisions/010-a-tick-forks-its-scripts.md. Both kinds are followed, asked to stop and ended in the same way.
"""

import contextvars
import fcntl
import gc
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, NoReturn, Protocol, TextIO, cast

from retake.bucket import Lease
from retake.bucket.contract import without_thread
from retake.errors import RetakeError
from retake.exit_codes import ExitCode
from retake.logs import relay
from retake.ticking.process import LEASE_VARIABLE, flush_streams
from retake.ticking.tick import ScriptResult

_GRACE_S = 5.0  # between SIGTERM to a script whose time is over, and SIGKILL
_SIGNAL_POLL_S = 0.2  # between checks for a signal to the manager
_EXIT_POLL_S = 0.02  # between checks for the end of a script that is about to end
_MAX_LINE_BYTES = 64 * 1024  # longer lines are split

_NOT_FORKED = ("sqlalchemy", "psycopg")
"""Database libraries, whose connections a fork would spoil for the manager. A bucket's connections are sockets, which
the fork closes (b2sdk imports sqlite3, but opens no database)."""

_THREAD_ENDS_S = (0.0, 0.001, 0.004, 0.016)  # pauses while the kernel may still list a thread that has ended


Work = Callable[[list[str]], object]
"""Does a script's work, given its arguments, in a process that does nothing else. It may end by `sys.exit`."""


class NotStarted(RetakeError):
    """The machine has no room for another process or its files, or the program is missing. Nothing was started."""

    exit_code = ExitCode.TRY_LATER


class ScriptStart(NamedTuple):
    """The parameters of a script's start."""

    script: str
    program: list[str]
    arguments: list[str]
    environ: Mapping[str, str]
    fds: Sequence[int]  # file descriptors that it inherits, in addition to stdin, stdout and stderr


class _ScriptProcess(Protocol):
    """A process that runs a script, with the interface of `subprocess.Popen`."""

    pid: int

    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self) -> int: ...


class SubprocessScripts:
    """Runs scripts. `command_of` returns the command that starts the script of that name, without its arguments.

    `stopping` returns how many signals have asked the manager to stop. At the first, the script is asked to end once
    nothing is half done; at the second it is killed. `work_of` returns the function that does in a fork what the
    command does, or None for a script that must be started by its command. Without `work_of`, all of them must.
    """

    def __init__(
        self,
        command_of: Callable[[str], list[str]],
        timeout_s: float,
        environ: Mapping[str, str],
        stopping: Callable[[], int] = lambda: 0,
        work_of: Callable[[str], Work | None] | None = None,
    ) -> None:
        self._command_of = command_of
        self._timeout_s = timeout_s
        self._environ = environ
        self._stopping = stopping
        self._work_of = work_of or (lambda script: None)

    def run(self, script: str, arguments: list[str], lease: Lease) -> ScriptResult:
        """Run the script to its end, under the lease. Raises NotStarted."""
        if self._stopping():  # the previous script still ended well, but no other is started
            return ScriptResult(ExitCode.TRY_LATER, stopped=True)
        with _scratch(script) as folder:
            return self._run(script, arguments, lease, folder)

    def _run(self, script: str, arguments: list[str], lease: Lease, scratch: str) -> ScriptResult:
        handover = lease.handover()
        environ = {**self._environ, LEASE_VARIABLE: handover.text, "TMPDIR": scratch}
        start = ScriptStart(script, self._command_of(script), arguments, environ, handover.fds)
        reading, process = _start(start, self._work_of(script), lease)
        try:
            try:
                return self._follow(process, _Lines(reading))
            finally:
                _signal_session(process.pid, signal.SIGKILL)  # whatever it has started and left behind
                process.wait()
        finally:
            os.close(reading)

    def _follow(self, process: _ScriptProcess, output: "_Lines") -> ScriptResult:
        end = time.monotonic() + self._timeout_s
        asked = 0
        while process.poll() is None:
            output.relay_within(_SIGNAL_POLL_S)
            if time.monotonic() > end:
                _terminate(process)
                output.relay_rest()
                return ScriptResult(process.wait(), timed_out=True)
            if self._stopping() > asked:
                asked = self._stopping()
                _signal_session(process.pid, signal.SIGKILL) if asked > 1 else os.kill(process.pid, signal.SIGTERM)
        output.relay_rest()
        return ScriptResult(process.wait(), stopped=asked > 0 and process.returncode != 0)


def _terminate(process: _ScriptProcess) -> None:
    _signal_session(process.pid, signal.SIGTERM)
    end = time.monotonic() + _GRACE_S
    while process.poll() is None and time.monotonic() < end:
        time.sleep(_EXIT_POLL_S)
    _signal_session(process.pid, signal.SIGKILL)


def _signal_session(session: int, number: signal.Signals) -> None:
    """Send a signal to a script and everything that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, number)


class _Lines:
    """The lines that arrive on a pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._open = True
        self._partial = b""
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        os.set_blocking(fd, False)

    def relay_within(self, seconds: float) -> None:
        """Wait for output, at most `seconds`, and relay it. Once the pipe is closed, just wait."""
        if not self._open:
            time.sleep(min(seconds, _EXIT_POLL_S))
        elif self._poll.poll(seconds * 1000):
            self._take()

    def relay_rest(self) -> None:
        while self._open and self._poll.poll(0):
            self._take()
        self._pass_on(b"\n")

    def _take(self) -> None:
        data = os.read(self._fd, _MAX_LINE_BYTES)
        self._open = bool(data)
        self._pass_on(data)

    def _pass_on(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > _MAX_LINE_BYTES:
            lines, self._partial = [*lines, self._partial], b""
        for line in lines:
            if line.strip():
                relay(line.decode("utf-8", "replace"))


@contextmanager
def _scratch(script: str) -> Iterator[str]:
    """Make a folder for the script's temporary files, and remove it afterwards even if the script was killed. Raises
    NotStarted."""
    folder = os.path.abspath(os.path.join(os.environ.get("TMPDIR") or "/tmp", f"retake-{os.urandom(8).hex()}"))  # noqa: S108
    try:
        os.mkdir(folder, 0o700)
    except OSError:  # tempfile, which is slow to import, looks for another place
        from tempfile import mkdtemp

        try:
            folder = mkdtemp(prefix="retake-")
        except OSError as error:
            raise NotStarted(
                f"{script} could not be started: it has no place for temporary files: {error.strerror}; nothing was "
                "begun. Free some space there, or set TMPDIR to a writable folder"
            ) from error
    try:
        yield folder
    finally:
        try:
            os.rmdir(folder)
        except OSError:
            from shutil import rmtree

            rmtree(folder, ignore_errors=True)


def _start(start: ScriptStart, work: Work | None, lease: Lease) -> tuple[int, _ScriptProcess]:
    """Start the script. Return the descriptor to read its output from, and its process. Raises NotStarted."""
    reading = -1
    try:
        reading, writing = os.pipe()
        try:
            return reading, _process(start, work, writing, lease)
        finally:
            os.close(writing)
    except OSError as error:
        if reading >= 0:
            os.close(reading)
        advice = "Check this machine's limits on processes, open files and memory"
        if error.filename:  # the program itself
            advice = f"Let the user that runs this run {start.program[0]}, and see whether its installation is complete"
        raise NotStarted(
            f"{start.script} could not be started: {error.strerror}; nothing was begun. {advice}"
        ) from error


def _process(start: ScriptStart, work: Work | None, output: int, lease: Lease) -> _ScriptProcess:
    if work is None or not _may_fork():
        return _spawn(start, output)
    with without_thread(lease):
        return _fork(start, work, output) if _is_alone() else _spawn(start, output)


# --- a script that is started by its command ----------------------------------------------------------------------


def _spawn(start: ScriptStart, output: int) -> _ScriptProcess:
    import subprocess

    return subprocess.Popen(
        [*start.program, *start.arguments],
        env=start.environ,
        pass_fds=start.fds,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


# --- a script that is a fork of the manager -----------------------------------------------------------------------


class _Fork:
    """A forked process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._reaped(os.WNOHANG)

    def wait(self) -> int:
        return self._reaped(0) or 0

    def _reaped(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # SIGCHLD is ignored, so the exit code is lost
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def _may_fork() -> bool:
    """Return whether a fork of this process, if it `_is_alone`, can replace a new process: on Linux, without a profiler
    or tracer, and with no database library loaded."""
    if sys.platform != "linux":  # elsewhere system libraries may refuse to work in a fork
        return False
    return not (sys.getprofile() or sys.gettrace() or any(it in sys.modules for it in _NOT_FORKED))


def _is_alone() -> bool:
    """Return whether no other thread runs in this process, neither Python's nor a library's."""
    for pause in _THREAD_ENDS_S:
        time.sleep(pause)
        try:
            if len(os.listdir("/proc/self/task")) == 1:
                return True
        except OSError:
            return False
    return False


def _fork(start: ScriptStart, work: Work, output: int) -> _ScriptProcess:
    flush_streams()
    ready, begun = os.pipe()
    # Signals wait until the child has its own handlers: the manager's would count one and go on.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        try:
            pid = os.fork()
            if pid == 0:
                _run_forked(start, work, output, blocked)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(begun)
        os.read(ready, 1)  # returns when the child closes the pipe: it then has a session, which can be signalled
    finally:
        os.close(ready)
    return _Fork(pid)


def _run_forked(start: ScriptStart, work: Work, output: int, blocked: Iterable[int]) -> NoReturn:
    """Do in a forked child what the command does in a new process, and end.

    The manager's descriptors are closed, but its connections are not shut down, neither by the garbage collector, since
    their objects are frozen, nor at exit, since no exit handler runs. So the manager can still use them.
    """
    exit_code = 1
    try:
        gc.freeze()
        os.setsid()
        _reset_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        _replace_streams(output, start.fds)
        _set_process_name(start)
        _replace_environ(start.environ)
        exit_code = contextvars.Context().run(_exit_code_of, lambda: work(start.arguments))
        flush_streams()
    finally:
        os._exit(exit_code)


def _exit_code_of(work: Callable[[], object]) -> int:
    """Run `work`, and return the exit code with which Python would end after it."""
    try:
        work()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _reset_signals() -> None:
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _replace_streams(output: int, keep: Sequence[int]) -> None:
    """Read from os.devnull, write to `output`, and close all other descriptors except `keep`."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    sources = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (nothing, output, output)]  # not one of 0, 1, 2
    for fd, source in enumerate(sources):
        os.dup2(source, fd)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in keep:
            with suppress(OSError):  # the descriptor of the listing itself is already closed
                os.close(fd)
    sys.stdin, sys.stdout, sys.stderr = _stream(0, "r"), _stream(1, "w"), _stream(2, "w")


def _stream(fd: int, mode: str) -> TextIO:
    buffering, errors = (1, "backslashreplace") if fd == 2 else (-1, "strict")
    stream = open(fd, mode, buffering, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
    return cast(TextIO, stream)


def _replace_environ(environ: Mapping[str, str]) -> None:
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update(environ)
    if tempfile := sys.modules.get("tempfile"):
        vars(tempfile)["tempdir"] = None  # it remembers the manager's TMPDIR


def _set_process_name(start: ScriptStart) -> None:
    """Show the script's command line and name in `ps`.

    The command line has no folders, and is cut to the length of the manager's. Of the name (`ps -o comm`) the kernel
    keeps 15 bytes.
    """
    os.environ["SPT_NOENV"] = "1"  # keep setproctitle from overwriting the environment, which /proc shows
    from setproctitle import setproctitle

    setproctitle(" ".join([*map(os.path.basename, start.program), *start.arguments]))
    del os.environ["SPT_NOENV"]
    with suppress(OSError), open("/proc/self/comm", "wb", 0) as file:
        file.write(start.script.encode())
