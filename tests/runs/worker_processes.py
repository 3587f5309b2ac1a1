"""Workers in processes of their own, for tests: `python worker_processes.py LEDGER_URL FOLDER NAME HEARTBEAT_S`.

The job prints `paying`, waits for a line on standard input, pays, prints `paid`, waits for another line, and is done.
To pay is to add the run's idempotency key to the file `paid`, if it is not there yet. At the end the process prints
what became of the run.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retake.bucket.directory import DirectoryBucket
from retake.clock import SystemClock
from retake.retrying.policy import RetryPolicy
from retake.runs import open_ledger
from retake.runs.run_handle import RunHandle
from retake.runs.worker import Worker

HERE = Path(__file__)


@contextmanager
def started(url: str | None, folder: Path, name: str, *, heartbeat_s: float = 0.02) -> Iterator[subprocess.Popen[str]]:
    """Start a worker, with pipes. It is killed at the end of the block."""
    command = [sys.executable, str(HERE), url or "", str(folder), name, str(heartbeat_s)]
    environment = {"PYTHONPATH": str(HERE.parents[2])}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, env=environment, stdin=pipe, stdout=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def payments(folder: Path) -> list[str]:
    paid = folder / "paid"
    return paid.read_text().split() if paid.exists() else []


def say_and_wait(word: str) -> None:
    say(word)
    sys.stdin.readline()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(url: str, place: str, name: str, heartbeat_s: str) -> None:
    folder = Path(place)

    def job(handle: RunHandle) -> Mapping[str, Any]:
        key = handle.run.idempotency_key
        say_and_wait("paying")
        if key not in payments(folder):
            with (folder / "paid").open("a") as file:
                file.write(f"{key}\n")
        say_and_wait("paid")
        return {"by": name}

    clock = SystemClock()
    ledger = open_ledger(url or None, DirectoryBucket(str(folder / "bucket")), clock)
    run = Worker(ledger, job, RetryPolicy(max_retries=0), clock, name=name, heartbeat_s=float(heartbeat_s)).work_once()
    say(run.status.value if run else "nothing")


if __name__ == "__main__":
    main(*sys.argv[1:])
