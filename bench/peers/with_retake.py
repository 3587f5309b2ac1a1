"""A run of six steps on a ledger in SQLite; the worker of an idle tick finds no run."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from retake.clock import SystemClock
from retake.retrying.backoff import Exponential
from retake.retrying.policy import RetryPolicy
from retake.runs import open_ledger
from retake.runs.run_handle import RunHandle
from retake.runs.worker import Worker

what, folder = sys.argv[1:]
ledger = open_ledger(f"sqlite:{folder}/retake.db")
done: list[int] = []


def six(handle: RunHandle) -> Mapping[str, Any]:
    number = 0
    for step in range(6):
        number += 1
        handle.step_done(f"step {step}", {"number": number})
    done.append(number)
    return {"number": number}


if what == "steps":
    task = os.urandom(8).hex()
    ledger.create_for_task(task, f"bench/{task}", actor="bench", pipeline="bench")
policy = RetryPolicy(max_retries=3, backoff=Exponential(1.0))
Worker(ledger, six, policy, SystemClock(), name="bench", pipeline="bench").work(until_idle=True)
ledger.close()
assert done == ([6] if what == "steps" else [])
