"""Start several threads or processes at the same moment."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

T = TypeVar("T")


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Run every call in its own thread, all started together, and return their results in order. The first error is
    raised."""
    found: dict[int, T] = {}
    errors: list[BaseException] = []
    gate = threading.Barrier(len(calls))

    def run(number: int) -> None:
        try:
            gate.wait()
            found[number] = calls[number]()
        except BaseException as error:  # noqa: BLE001  raised again below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [found[number] for number in range(len(calls))]


def said_at_once(code: str, *arguments: str, number: int) -> list[str]:
    """Run a program in several processes that continue once all have written "ready"; return the output of each."""
    command, environment = [sys.executable, "-c", code, *arguments], {**os.environ, "PYTHONPATH": os.getcwd()}
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
            )
            for _ in range(number)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.stdout.read().strip() for process in processes if process.stdout is not None]
    assert [process.returncode for process in processes] == [0] * number
    return said
