"""Finding ffmpeg, and running it with a time limit."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from imageio_ffmpeg import get_ffmpeg_exe

from retake.media import MediaError

LOG_TAIL = 64 * 1024  # bytes of ffmpeg's log that are kept: its beginning (the facts) and its end (the reason)

_WHERE = re.compile(r"^(\[[\w#:/,. -]+ @ 0x[0-9a-f]+\] )+")  # «[h264 @ 0x55d3] », of no use to anybody
_LEVEL = re.compile(r"^\[(panic|fatal|error)\] ")


def find() -> str:
    """The path of ffmpeg: what IMAGEIO_FFMPEG_EXE names, else imageio-ffmpeg's own, else the system's.

    Raises MediaError where there is none.
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
def scratch() -> Iterator[Path]:
    """A temporary folder, gone afterwards whatever happens. Raises MediaError where there is no room for one."""
    try:
        with tempfile.TemporaryDirectory(prefix="retake-") as name:
            yield Path(name)
    except OSError as error:
        raise MediaError(f"The temporary folder cannot be used ({error.strerror}). Is its disk full?") from error


def run(arguments: Sequence[str], timeout_s: float, folder: Path | None = None) -> str:
    """Run ffmpeg with `arguments` in `folder`; what it logged, one «[level] message» a line (see `errors_in`).

    Name files relative to `folder`: then no path of this machine gets into the log. Raises MediaError if ffmpeg is
    not there, ends with an error, or is not done after `timeout_s` seconds (it is killed then).
    """
    command = [find(), "-nostdin", "-hide_banner", "-y", "-loglevel", "repeat+level+info", *arguments]
    with tempfile.TemporaryFile() as log:
        code = _wait(command, timeout_s, folder, log.fileno())
        text = _read(log.fileno())
    if code == 0:
        return text
    raise MediaError(f"ffmpeg ended with an error: {(errors_in(text) or [f'exit code {code}, no reason given'])[-1]}")


def errors_in(log: str) -> list[str]:
    """The messages in `log` (what `run` gives) that are errors, in the order in which ffmpeg met them."""
    lines = (_WHERE.sub("", line) for line in log.splitlines())
    return [_LEVEL.sub("", line).strip() for line in lines if _LEVEL.match(line)]


def _wait(command: Sequence[str], timeout_s: float, folder: Path | None, log: int) -> int:
    # No group of its own: whoever ends the group of the script that waits here ends ffmpeg with it. Its log goes to a
    # file, not a pipe, so that nothing it leaves behind can keep us waiting.
    try:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    except OSError as error:
        raise MediaError(f"ffmpeg could not be started: {error.strerror}. Is it made for this machine?") from error
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise MediaError(
            f"ffmpeg was not done after {timeout_s:g} s and was stopped. Is the machine overloaded?"
        ) from None
    finally:
        if process.returncode is None:
            for pid in _family(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def _family(pid: int) -> list[int]:
    # IMAGEIO_FFMPEG_EXE may name a script that starts the real one: on Linux its children are found and go too.
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *(each for child in children for each in _family(int(child)))]


def _read(log: int) -> str:
    size = os.fstat(log).st_size
    data = os.pread(log, LOG_TAIL, 0)
    data += os.pread(log, LOG_TAIL, max(len(data), size - LOG_TAIL))
    return data.decode(errors="replace").replace("\r", "\n")
