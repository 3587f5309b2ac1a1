"""Records of failures that are unusual, and runs that have them.

run_in(ledger, RunStatus.FAILED, "poster-1", "posters", RECORDS["long"])
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from retake.runs.run import STEP_DONE, Run
from retake.runs.states import RunStatus, Trigger

FIRST, LAST = "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"

ODD = "\u202e\x1b[31m<b>'\"&\n\t" + "long \u6f22\u5b57 " * 60
"""A text that is hostile, and longer than a line."""

WHOLE = {
    "error_id": "e-1", "correlation_id": "20260101-0000", "timestamp": "2026-01-01T00:00:00Z", "error_class": "B",
    "error_code": "ERR_BUSINESS_REJECTED", "robot_id": "NR.NSI.2.fetch", "message": "no", "recovery_actions": [],
    "details": {"retry_count": 2},
}  # fmt: skip
RECORDS: Mapping[str, Any] = {
    "whole": WHOLE,
    "none": None,
    "bare": {"error_code": "ERR_X"},
    "long": {**dict.fromkeys(("error_code", "robot_id", "correlation_id"), ODD), "message": f"\0{ODD}" * 20},
    "late": {**WHOLE, "timestamp": LAST, "message": "", "details": {"retry_count": -1}},
    "early": {
        "error_code": "ERR_X",
        "timestamp": FIRST,
        "details": {},
        "recovery_actions": [{"action": "RETRY", "delay_seconds": "soon"}],
    },
}
"""Records of failures."""

FOREIGN = {
    "error_code": 7, "error_class": [], "message": {"a": [1]}, "timestamp": 5, "details": [], "robot_id": {},
    "recovery_actions": {"action": 3},
}  # fmt: skip
"""A record by somebody who does not know what is in one."""


def run_in(ledger: Any, status: RunStatus, task: str, pipeline: str, error: Any = None) -> Run:
    """Create a run and bring it to a status."""
    run: Run = ledger.create_for_task(task, f"{task}#1", actor="worker", pipeline=pipeline)
    if status is RunStatus.QUEUED:
        return run
    run = ledger.move(run, Trigger.WORKER_CLAIM, actor="worker", worker="w1")
    if status is RunStatus.SUCCEEDED:
        ledger.note(run, STEP_DONE, {"step": "cut"}, actor="worker")
    trigger, more = {
        RunStatus.RUNNING: (None, {}),
        RunStatus.SUCCEEDED: (Trigger.COMPLETED, {}),
        RunStatus.FAILED: (Trigger.NON_RETRYABLE_ERROR, {"error": error}),
        RunStatus.RETRY_SCHEDULED: (
            Trigger.RETRYABLE_ERROR,
            {"error": error, "next_retry_at": run.updated_at + timedelta(hours=1)},
        ),
        RunStatus.INTERRUPTED: (Trigger.PROCESS_RESTART, {}),
        RunStatus.CANCELLED: (Trigger.CANCEL_COMMAND, {}),
    }[status]
    return ledger.move(run, trigger, actor="worker", **more) if trigger else run  # type: ignore[no-any-return]
