"""The scripts in processes of their own, one at a time, under the manager's lease and with a time limit.

Each script has a session of its own, so that it can be ended together with everything it started. It inherits the
lease (on a directory, the lock's file descriptor), so that a killed manager's script is still alone in the pipeline
while it ends. Its output goes, line by line, into the manager's log.

A script is started by its command. Where `work_of` has a function for it and this process can be forked (`_may_fork`),
it is a fork of the manager instead, which has most of what it needs loaded already: see
docs/decisions/010-a-tick-forks-its-scripts.md. Both kinds are followed, asked to stop and ended alike.
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

_GRACE_S = 5.0  # between asking a script whose time is over to end, and ending it
_LOOK_S = 0.2  # how often a signal to us is looked for
_WAIT_S = 0.02  # how often the end of a script that is about to end is looked for
_LINE = 64 * 1024  # bytes of a line that are worth keeping

_NOT_FORKED = ("sqlalchemy", "psycopg")
"""Libraries whose connections a fork would spoil for the manager: those of databases. What a bucket has open are
sockets, which the fork closes (b2sdk loads sqlite3, and opens no database)."""

_THREAD_ENDS_S = (0.0, 0.001, 0.004, 0.016)  # how long the kernel may list a thread that has ended


Work = Callable[[list[str]], object]
"""Does a script's work, with the arguments given, in a process where nothing else is done; may end by `sys.exit`."""


class NotStarted(RetakeError):
    """This machine has no room for another process or its files, or the program is gone. Nothing was begun."""

    exit_code = ExitCode.TRY_LATER


class ScriptStart(NamedTuple):
    """How a script is started."""

    script: str
    program: list[str]
    arguments: list[str]
    environ: Mapping[str, str]
    fds: Sequence[int]  # what it inherits besides stdin, stdout and stderr


class _ScriptProcess(Protocol):
    """A process that runs a script, as `subprocess.Popen` shows it."""

    pid: int

    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self) -> int: ...


class SubprocessScripts:
    """Runs scripts. `command_of` returns the command that starts the script of that name, without its arguments.

    `stopping` returns how many signals asked the manager to stop: at the first the script is asked to end when nothing
    is half done, at the second it is ended. `work_of` returns what does in a fork of this process what the command
    does, or None for a script that must be started by its command; without it all must.
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
        if self._stopping():  # the script before this one came to a good end all the same; no other is begun
            return ScriptResult(ExitCode.TRY_LATER, stopped=True)
        with _scratch(script) as folder:
            return self._run(script, arguments, lease, folder)

    def _run(self, script: str, arguments: list[str], lease: Lease, scratch: str) -> ScriptResult:
        handover = lease.handover()
        environ = {**self._environ, LEASE_VARIABLE: handover.text, "TMPDIR": scratch}
        start = ScriptStart(script, self._command_of(script), arguments, environ, handover.fds)
        reading, process = _begun(start, self._work_of(script), lease)
        try:
            try:
                return self._follow(process, _Lines(reading))
            finally:
                _end(process.pid, signal.SIGKILL)  # whatever it left behind
                process.wait()
        finally:
            os.close(reading)

    def _follow(self, process: _ScriptProcess, output: "_Lines") -> ScriptResult:
        end = time.monotonic() + self._timeout_s
        asked = 0
        while process.poll() is None:
            output.relay_within(_LOOK_S)
            if time.monotonic() > end:
                _end_politely(process)
                output.relay_rest()
                return ScriptResult(process.wait(), timed_out=True)
            if self._stopping() > asked:
                asked = self._stopping()
                _end(process.pid, signal.SIGKILL) if asked > 1 else os.kill(process.pid, signal.SIGTERM)
        output.relay_rest()
        return ScriptResult(process.wait(), stopped=asked > 0 and process.returncode != 0)


def _end_politely(process: _ScriptProcess) -> None:
    _end(process.pid, signal.SIGTERM)
    end = time.monotonic() + _GRACE_S
    while process.poll() is None and time.monotonic() < end:
        time.sleep(_WAIT_S)
    _end(process.pid, signal.SIGKILL)


def _end(session: int, number: signal.Signals) -> None:
    """Signal a script and everything that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, number)


class _Lines:
    """The lines that arrive on a pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._open = True
        self._begun = b""
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        os.set_blocking(fd, False)

    def relay_within(self, seconds: float) -> None:
        """Wait for output, so long at most, and relay what came. Once the pipe is closed this is just a wait."""
        if not self._open:
            time.sleep(min(seconds, _WAIT_S))
        elif self._poll.poll(seconds * 1000):
            self._take()

    def relay_rest(self) -> None:
        while self._open and self._poll.poll(0):
            self._take()
        self._pass_on(b"\n")

    def _take(self) -> None:
        data = os.read(self._fd, _LINE)
        self._open = bool(data)
        self._pass_on(data)

    def _pass_on(self, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        if len(self._begun) > _LINE:
            lines, self._begun = [*lines, self._begun], b""
        for line in lines:
            if line.strip():
                relay(line.decode("utf-8", "replace"))


@contextmanager
def _scratch(script: str) -> Iterator[str]:
    """Make a folder for the script's temporary files, which is gone afterwards even if the script is killed. Raises
    NotStarted."""
    folder = os.path.abspath(os.path.join(os.environ.get("TMPDIR") or "/tmp", f"retake-{os.urandom(8).hex()}"))  # noqa: S108
    try:
        os.mkdir(folder, 0o700)
    except OSError:  # tempfile, which takes its time to load, looks for another place
        from tempfile import mkdtemp

        try:
            folder = mkdtemp(prefix="retake-")
        except OSError as error:
            raise NotStarted(
                f"{script} could not be started: it has no place for temporary files: {error.strerror}; nothing was "
                "begun. Make room there, or set TMPDIR to a folder that can be written to"
            ) from error
    try:
        yield folder
    finally:
        try:
            os.rmdir(folder)
        except OSError:
            from shutil import rmtree

            rmtree(folder, ignore_errors=True)


def _begun(start: ScriptStart, work: Work | None, lease: Lease) -> tuple[int, _ScriptProcess]:
    """Return the descriptor on which the script's output arrives, and its process. Raises NotStarted."""
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
        raise NotStarted(
            f"{start.script} could not be started: {error.strerror}; nothing was begun. Look how many processes, "
            "open files and how much memory this machine allows"
        ) from error


def _process(start: ScriptStart, work: Work | None, output: int, lease: Lease) -> _ScriptProcess:
    if work is None or not _may_fork():
        return _spawned(start, output)
    with without_thread(lease):
        return _forked(start, work, output) if _is_alone() else _spawned(start, output)


# --- a script that is started by its command ----------------------------------------------------------------------


def _spawned(start: ScriptStart, output: int) -> _ScriptProcess:
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

    def _reaped(self, how: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, how)
            except ChildProcessError:  # SIGCHLD is ignored: nobody knows how it ended
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def _may_fork() -> bool:
    """Return whether a fork of this process is as good as a new one, if it `_is_alone`: on Linux, where nobody profiles
    or traces, and no database is open."""
    if sys.platform != "linux":  # elsewhere libraries of the system may refuse to work in a fork
        return False
    return not (sys.getprofile() or sys.gettrace() or any(it in sys.modules for it in _NOT_FORKED))


def _is_alone() -> bool:
    """Return whether no other thread runs in this process, be it of Python or of a library."""
    for pause in _THREAD_ENDS_S:
        time.sleep(pause)
        try:
            if len(os.listdir("/proc/self/task")) == 1:
                return True
        except OSError:
            return False
    return False


def _forked(start: ScriptStart, work: Work, output: int) -> _ScriptProcess:
    flush_streams()
    ready, begun = os.pipe()
    # Until the child has handlers of its own: those of the manager would count a signal, and go on.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        try:
            pid = os.fork()
            if pid == 0:
                _be_script(start, work, output, blocked)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(begun)
        os.read(ready, 1)  # it ends when the child has a session of its own, which can be signalled
    finally:
        os.close(ready)
    return _Fork(pid)


def _be_script(start: ScriptStart, work: Work, output: int, blocked: Iterable[int]) -> NoReturn:
    """Do in a forked child what the command does in a new process, and end.

    What the manager has open is closed, but never ended in an orderly way: not by the garbage collector, since its
    objects are frozen, nor at the end, since nothing is run then. So a connection stays the manager's.
    """
    exit_code = 1
    try:
        gc.freeze()
        os.setsid()
        _reset_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        _take_streams(output, start.fds)
        _take_name(start)
        _take_environ(start.environ)
        exit_code = contextvars.Context().run(_exit_code_of, lambda: work(start.arguments))
        flush_streams()
    finally:
        os._exit(exit_code)


def _exit_code_of(work: Callable[[], object]) -> int:
    """Return the exit code with which Python would end after `work`."""
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


def _take_streams(output: int, keep: Sequence[int]) -> None:
    """Read nothing, write to `output`, and have nothing else open but the descriptors `keep`."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    sources = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (nothing, output, output)]  # not one of 0, 1, 2
    for fd, source in enumerate(sources):
        os.dup2(source, fd)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in keep:
            with suppress(OSError):  # the folder itself, which was open while it was listed
                os.close(fd)
    sys.stdin, sys.stdout, sys.stderr = _stream(0, "r"), _stream(1, "w"), _stream(2, "w")


def _stream(fd: int, mode: str) -> TextIO:
    buffering, errors = (1, "backslashreplace") if fd == 2 else (-1, "strict")
    stream = open(fd, mode, buffering, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
    return cast(TextIO, stream)


def _take_environ(environ: Mapping[str, str]) -> None:
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update(environ)
    if tempfile := sys.modules.get("tempfile"):
        vars(tempfile)["tempdir"] = None  # it remembers the manager's TMPDIR


def _take_name(start: ScriptStart) -> None:
    """Take the command line of a process of its own without folders, as far as the manager's has room for it, and the
    script's name (`ps -o comm`), of which the kernel keeps 15 bytes. It is found by where the environment began."""
    os.environ["SPT_NOENV"] = "1"  # what follows the command line in memory is the environment that /proc shows
    from setproctitle import setproctitle

    setproctitle(" ".join([*map(os.path.basename, start.program), *start.arguments]))
    del os.environ["SPT_NOENV"]
    with suppress(OSError), open("/proc/self/comm", "wb", 0) as file:
        file.write(start.script.encode())
