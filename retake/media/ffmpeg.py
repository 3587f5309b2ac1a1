"""Finding ffmpeg, and running it confined, since it decodes untrusted files.

Its environment contains no keys, it opens only files, and its time, CPU time and memory are limited.
"""

import math
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from imageio_ffmpeg import get_ffmpeg_exe

from retake.errors import Stopped
from retake.media import MediaError

LOG_TAIL = 64 * 1024  # bytes kept of the start (the facts) and of the end (the error) of the log

MEMORY = 2 * 2**30
"""Limit of the address space in bytes. With `THREADS` threads a check takes 0.7 GB at 3840 × 2160, and 1.5 GB at
7680 × 4320."""

THREADS = 2
"""Decoder threads. Memory grows with their number, and by default ffmpeg starts one or more per processor."""

MAX_THREADS = 8
"""Maximum number of threads for callers that need more than `THREADS`, such as encoders."""

STOP_S = 0.25
"""Seconds between two calls of `stopping`."""

PROTOCOLS = "file,pipe"  # without a whitelist, a playlist could make it contact a server
_PASSED_ON = ("PATH", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH")

_WHERE = re.compile(r"^(\[[\w#:/,. -]+ @ 0x[0-9a-f]+\] )+")  # "[h264 @ 0x55d3] "
_LEVEL = re.compile(r"^\[(panic|fatal|error)\] ")


class FfmpegFailed(MediaError):
    """ffmpeg ran and reported an error: it would fail again with the same files."""


def find() -> str:
    """Return the path of ffmpeg: IMAGEIO_FFMPEG_EXE, else the one of imageio-ffmpeg, else the system's.

    Raises MediaError if there is none.
    """
    try:
        path: str | None = shutil.which(get_ffmpeg_exe())
    except RuntimeError:
        path = None
    if path is None:
        raise MediaError(
            "No ffmpeg was found: imageio-ffmpeg has none for this machine. "
            "Install ffmpeg, or name one in the environment as IMAGEIO_FFMPEG_EXE."
        )
    return os.path.abspath(path)


@contextmanager
def scratch(parent: Path | None = None) -> Iterator[Path]:
    """Yield a temporary folder, in `parent` or the system's default, and remove it afterwards.

    Raises MediaError if it cannot be used.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="retake-", dir=parent) as name:
            yield Path(name)
    except OSError as error:
        raise _unusable(error) from error


def _unusable(error: OSError) -> MediaError:
    return MediaError(f"The temporary folder cannot be used ({error.strerror}). Is its disk full?")


def run(
    arguments: Sequence[str],
    timeout_s: float,
    folder: Path | None = None,
    memory: int = MEMORY,
    stopping: Callable[[], bool] | None = None,
) -> str:
    """Run ffmpeg with `arguments` in `folder` and return its log, one "[level] message" per line (see `errors_in`).

    Name files relative to `folder`, so that the log contains no path of this machine. `memory` limits the address space
    in bytes (Linux only). Raises FfmpegFailed if ffmpeg fails, MediaError if it is missing or takes longer than
    `timeout_s` seconds, and Stopped within `STOP_S` seconds after `stopping()` returns True (ffmpeg is killed).
    """
    command = [find(), "-nostdin", "-hide_banner", "-y", "-loglevel", "repeat+level+info", *_confined(arguments)]
    with _log() as log:
        with _started(command, folder, log.fileno()) as process:
            _limit(process.pid, timeout_s, memory)
            code = _wait(process, timeout_s, stopping)
        text = _read(log.fileno())
    if code == 0:
        return text
    failure = MediaError if code < 0 else FfmpegFailed  # negative: killed by a signal
    raise failure(f"ffmpeg ended with an error: {(errors_in(text) or [_exit_reason(code)])[-1]}")


def _log() -> IO[bytes]:
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise _unusable(error) from error


def errors_in(log: str) -> list[str]:
    """Return the error messages in `log` (from `run`), in order."""
    lines = (_WHERE.sub("", line) for line in log.splitlines())
    return [_LEVEL.sub("", line).strip() for line in lines if _LEVEL.match(line)]


def _confined(arguments: Sequence[str]) -> Iterator[str]:
    """Yield `arguments` with every input restricted to `PROTOCOLS`."""
    for argument in arguments:
        if argument == "-i":
            yield from ("-protocol_whitelist", PROTOCOLS)
        yield argument


def _limit(pid: int, timeout_s: float, memory: int) -> None:
    """Limit a process that has just started.

    This is not done between fork and exec, where Python code must not run in a process with threads.
    """
    if not hasattr(resource, "prlimit"):
        return
    # The limit on the CPU time of all threads ends a process that outlives its caller.
    processor_s = math.ceil(timeout_s * MAX_THREADS) + 1
    for kind, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, processor_s), (resource.RLIMIT_CORE, 0)):
        with suppress(ProcessLookupError, PermissionError):  # it has ended; it belongs to another user
            hard = resource.prlimit(pid, kind)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(pid, kind, (most, most))


def _exit_reason(code: int) -> str:
    if code in (-signal.SIGKILL, -signal.SIGXCPU):
        return "it was killed for the memory or processor time that it used"
    return f"exit code {code}, no reason given"


@contextmanager
def _started(command: Sequence[str], folder: Path | None, log: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start `command`, and kill it if it is still running at the end of the block. Raises MediaError."""
    # ffmpeg gets no process group of its own, so that a signal to the group of the waiting script ends it too. The log
    # goes to a file, since a child that it leaves behind would keep a pipe open.
    env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    try:
        process = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    except OSError as error:
        raise MediaError(f"ffmpeg could not be started: {error.strerror}. Is it made for this machine?") from error
    try:
        yield process
    finally:
        if process.returncode is None:
            for pid in _process_tree(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def _wait(process: subprocess.Popen[bytes], timeout_s: float, stopping: Callable[[], bool] | None) -> int:
    """Return the exit code of `process`. Raises MediaError on timeout, and Stopped."""
    end = time.monotonic() + timeout_s
    while True:
        left = max(0.0, end - time.monotonic())
        try:
            return process.wait(min(left, STOP_S) if stopping else left)
        except subprocess.TimeoutExpired:
            if stopping and stopping():
                raise Stopped("ffmpeg was stopped because the program is ending; its work starts over.") from None
            if time.monotonic() >= end:
                raise MediaError(
                    f"ffmpeg had not finished after {timeout_s:g} s and was stopped. Is the machine overloaded?"
                ) from None


def _process_tree(pid: int) -> list[int]:
    # IMAGEIO_FFMPEG_EXE may name a script that starts the real ffmpeg: on Linux its children are killed too.
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *(each for child in children for each in _process_tree(int(child)))]


def _read(log: int) -> str:
    size = os.fstat(log).st_size
    data = os.pread(log, LOG_TAIL, 0)
    data += os.pread(log, LOG_TAIL, max(len(data), size - LOG_TAIL))
    return data.decode(errors="replace").replace("\r", "\n")
