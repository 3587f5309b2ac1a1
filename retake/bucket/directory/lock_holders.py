"""Which living processes hold the lock on a file. The kernel frees it when the last of them has ended.

The lock belongs to an open file that scripts inherit, so the process that took it may be gone while its script still
holds it. Linux tells for each descriptor whether a lock is held through it; elsewhere no process is found.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple


class HolderProcess(NamedTuple):
    """A living process."""

    pid: int
    command: str  # its command line, cut to 120 characters


def holding(path: str) -> list[HolderProcess]:
    """Return the processes that hold the exclusive lock on `path`, by id: other users' only where permissions allow."""
    try:
        wanted = os.stat(path)
        pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    except OSError:
        return []
    return [HolderProcess(pid, _command(pid)) for pid in pids if any(_locks(pid, file, wanted) for file in _files(pid))]


def _files(pid: int) -> Iterator[str]:
    with suppress(OSError):  # it has ended, or belongs to another user
        yield from os.listdir(f"/proc/{pid}/fd")


def _locks(pid: int, file: str, wanted: os.stat_result) -> bool:
    """Whether the descriptor is open on that file and carries its lock: merely reading the file is not holding it."""
    try:
        if not os.path.samestat(os.stat(f"/proc/{pid}/fd/{file}"), wanted):
            return False
        with open(f"/proc/{pid}/fdinfo/{file}", encoding="ascii", errors="replace") as info:
            return any(line.startswith("lock:") and "FLOCK" in line and "WRITE" in line for line in info)
    except OSError:
        return False


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(2000).decode("utf-8", "replace").split("\0")
    except OSError:
        return "?"
    line = " ".join(" ".join(words).split())
    return line if len(line) <= 120 else f"{line[:119]}…"
