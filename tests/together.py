"""Starting several things at the same moment: threads, or processes that wait for it."""

import subprocess
import threading
from collections.abc import Callable


def at_once(calls: list[Callable[[], None]]) -> None:
    """Run every call in a thread of its own, started together; the first error is raised."""
    errors: list[Exception] = []
    gate = threading.Barrier(len(calls))

    def run(call: Callable[[], None]) -> None:
        try:
            gate.wait()
            call()
        except Exception as error:  # noqa: BLE001  raised again below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def begin_together(processes: list[subprocess.Popen[str]]) -> None:
    """Let every process go on once all of them have written "ready"."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
