"""A worker on SQLite that survives `kill -9`: each poster is made once, and no finished step is done again.

    python examples/sqlite_worker.py                         # three posters of three steps each, in demo/posters
    python examples/sqlite_worker.py --step-s 2              # slowly: kill it with kill -9, and start it again

Start as many as you like at the same time; each poster goes to one of them. Two seconds after a worker falls silent,
another one continues its poster, at the step that was not done. A poster that kills four workers is given up.
"""

import argparse
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retake.bucket import this_process
from retake.clock import SystemClock
from retake.retrying.backoff import Exponential
from retake.retrying.policy import RetryPolicy
from retake.runs import open_ledger
from retake.runs.recovery import Recovery
from retake.runs.run_handle import RunHandle
from retake.runs.worker import Worker

STEPS = ("sketch", "colour", "print")
POLICY = RetryPolicy(max_retries=3, backoff=Exponential(1.0))
CLOCK = SystemClock()


def make(folder: Path, title: str, step: str, step_s: float) -> str:
    """Do one step and return its file, which is written whole or not at all. A step can safely be started again."""
    file = folder / f"{title}.{step}"
    print(f"{title}: {step} begins", flush=True)
    CLOCK.sleep(step_s)
    unfinished = file.with_suffix(f".{step}-{os.getpid()}")
    unfinished.write_text(f"{step} of {title}\n")
    unfinished.replace(file)
    return file.name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("titles", nargs="*", default=["aurora", "comet", "meteor"])
    parser.add_argument("--folder", type=Path, default=Path("demo/posters"))
    parser.add_argument("--step-s", type=float, default=0.1, help="how many seconds a step takes")
    options = parser.parse_args()
    logging.basicConfig(format="log: %(message)s")
    options.folder.mkdir(parents=True, exist_ok=True)

    def job(handle: RunHandle) -> Mapping[str, Any]:
        title = handle.run.task_id
        done = handle.steps_done()
        for step in STEPS:
            if step not in done:
                handle.check()  # raises StaleRun if this worker was taken for dead
                handle.step_done(step, {"file": make(options.folder, title, step, options.step_s)})
        print(f"{title}: done", flush=True)
        return {"poster": f"{title}.{STEPS[-1]}"}

    ledger = open_ledger(f"sqlite:{options.folder}/runs.db")
    runs = [
        ledger.create_for_task(title, f"posters/{title}", actor="shop", pipeline="posters") for title in options.titles
    ]
    recovery = Recovery(ledger, CLOCK, patience_s=2.0, pipeline="posters")
    name = this_process()
    worker = Worker(ledger, job, POLICY, CLOCK, name=name, pipeline="posters", heartbeat_s=0.5, recovery=recovery)
    while not all(ledger.get(run.run_id).ended for run in runs):
        worker.work(until_idle=True)
        CLOCK.sleep(0.2)
    for run in (ledger.get(run.run_id) for run in runs):
        print(f"{run.task_id}: {run.status} (resumed: {run.resumes})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
