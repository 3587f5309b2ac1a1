"""Run a command that dies with the process that started it: `python -I -S bound.py PARENT UID GID COMMAND …`.

The kernel's parent-death signal must be set in the child after its user is changed, which clears it, and before it
becomes the command. subprocess could do that only with `preexec_fn`, which is unsafe with threads.

PARENT is the id of the process to die with; more exactly, the command dies with the thread that started it. UID and GID
are those to run as, or -1. This file is run by its path and imports nothing from the package.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def run(parent: int, uid: int, gid: int, command: list[str]) -> None:
    """Become `command`."""
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # it ended before the signal was set
        sys.exit("the process that started this is gone")
    try:
        os.execvp(command[0], command)  # noqa: S606  a list, no shell
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
