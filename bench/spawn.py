"""Runs a command a number of times and prints the cost of each run, as JSON.

This is a separate script because the memory of the parent from which a child process was forked counts as the child's:
this parent is as small as a Python process can be.
"""

import os
import sys
import time


def main() -> None:
    runs, command = int(sys.argv[1]), sys.argv[2:]
    costs = [once(command) for _ in range(runs + 1)]
    print([list(cost) for cost in costs[1:] or costs])  # without the first of several, which fills caches


def once(command: list[str]) -> tuple[float, float, float]:
    """Return the CPU seconds, the wall seconds, and the peak memory in MB of the largest process. Children count if
    they have been waited for."""
    began = time.perf_counter()
    null = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
    _, status, used = os.wait4(pid, 0)
    wall = time.perf_counter() - began
    os.close(null)
    if status:
        sys.exit(f"{command} ended with exit code {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1024


if __name__ == "__main__":
    main()
