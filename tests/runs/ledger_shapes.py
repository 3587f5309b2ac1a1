"""Runs in every state, and concurrent requests for them: the starting points of ledger tests."""

from datetime import datetime, timedelta
from typing import Any

from retake.clock import FakeClock
from retake.errors import Code, Refused, error_record
from retake.runs import Ledger
from retake.runs.run import Run
from retake.runs.states import RunStatus, Trigger

WAY_TO: dict[RunStatus, tuple[Trigger, ...]] = {
    RunStatus.QUEUED: (),
    RunStatus.RUNNING: (Trigger.WORKER_CLAIM,),
    RunStatus.RETRY_SCHEDULED: (Trigger.WORKER_CLAIM, Trigger.RETRYABLE_ERROR),
    RunStatus.INTERRUPTED: (Trigger.WORKER_CLAIM, Trigger.PROCESS_RESTART),
    RunStatus.SUCCEEDED: (Trigger.WORKER_CLAIM, Trigger.COMPLETED),
    RunStatus.FAILED: (Trigger.WORKER_CLAIM, Trigger.NON_RETRYABLE_ERROR),
    RunStatus.CANCELLED: (Trigger.CANCEL_COMMAND,),
}
"""How a new run gets into each state."""


def step(ledger: Ledger, run: Run, trigger: Trigger, **more: Any) -> Run:
    """Make one transition, with what it needs."""
    if trigger is Trigger.RETRYABLE_ERROR:
        more = {"next_retry_at": run.updated_at + timedelta(seconds=10)} | more
    return ledger.move(run, trigger, actor="worker", **more)


def in_state(ledger: Ledger, status: RunStatus) -> Run:
    """Create a run of the task `t` and bring it into `status`."""
    run = ledger.create_for_task("t", "t#1", actor="cron")
    for trigger in WAY_TO[status]:
        run = step(ledger, run, trigger)
    return run


def wait(
    ledger: Ledger,
    clock: FakeClock,
    name: str,
    status: RunStatus,
    *,
    task: str = "",
    pipeline: str = "",
    due_s: float = 5,
) -> Run:
    """Create a run in `status`, at a time of its own."""
    clock.sleep(0.25)
    run = ledger.create_for_task(task or name, f"{name}#1", actor="cron", pipeline=pipeline)
    for trigger in WAY_TO[status]:
        more = {"next_retry_at": clock.now() + timedelta(seconds=due_s)} if trigger is Trigger.RETRYABLE_ERROR else {}
        run = step(ledger, run, trigger, **more)
    return run


def claimed(ledger: Ledger, pipeline: str | None = None) -> list[str]:
    """Claim until nothing waits; return the tasks that a worker got."""
    found = []
    while run := ledger.claim("w", pipeline=pipeline):
        found.append(run.task_id)
    return found


def last_changed(run: Run) -> tuple[datetime, str]:
    return run.updated_at, run.run_id


def a_record(clock: FakeClock) -> dict[str, Any]:
    error = Refused(Code.UNAVAILABLE, "503 «занято»")
    return error_record(error, now=clock.now(), robot_id="story", correlation_id="t", retry_count=1)
