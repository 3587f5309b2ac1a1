"""The states of a run, and what leads from one to another: the diagram of seed 002, section 1, as data.

tests/runs/test_states.py draws the diagram from `TRANSITIONS` and lays it beside the seed's.
"""

from collections.abc import Mapping
from enum import StrEnum

from retake.errors import RunError


class RunStatus(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"  # nobody works on it yet
    RUNNING = "running"  # a worker has it, or a vendor's task of it is in flight
    RETRY_SCHEDULED = "retry_scheduled"  # it failed and is to be tried again at `next_retry_at`
    INTERRUPTED = "interrupted"  # whoever worked on it died; nobody has taken it up again yet
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"  # a person did not want it any more


class Trigger(StrEnum):
    """What makes a run change its state."""

    WORKER_CLAIM = "worker_claim"
    CANCEL_COMMAND = "cancel_command"
    COMPLETED = "completed"
    NON_RETRYABLE_ERROR = "non_retryable_error"
    RETRYABLE_ERROR = "retryable_error"
    PROCESS_RESTART = "process_restart"
    RETRY_DUE = "retry_due"
    RECOVERY_RESUME = "recovery_resume"
    RECOVERY_ABORT = "recovery_abort"


START = RunStatus.QUEUED

TRANSITIONS: Mapping[tuple[RunStatus, Trigger], RunStatus] = {
    (RunStatus.QUEUED, Trigger.WORKER_CLAIM): RunStatus.RUNNING,
    (RunStatus.QUEUED, Trigger.CANCEL_COMMAND): RunStatus.CANCELLED,
    #
    (RunStatus.RUNNING, Trigger.COMPLETED): RunStatus.SUCCEEDED,
    (RunStatus.RUNNING, Trigger.NON_RETRYABLE_ERROR): RunStatus.FAILED,
    (RunStatus.RUNNING, Trigger.RETRYABLE_ERROR): RunStatus.RETRY_SCHEDULED,
    (RunStatus.RUNNING, Trigger.PROCESS_RESTART): RunStatus.INTERRUPTED,
    (RunStatus.RUNNING, Trigger.CANCEL_COMMAND): RunStatus.CANCELLED,
    #
    (RunStatus.RETRY_SCHEDULED, Trigger.RETRY_DUE): RunStatus.RUNNING,
    (RunStatus.RETRY_SCHEDULED, Trigger.CANCEL_COMMAND): RunStatus.CANCELLED,
    #
    (RunStatus.INTERRUPTED, Trigger.RECOVERY_RESUME): RunStatus.RUNNING,
    (RunStatus.INTERRUPTED, Trigger.RECOVERY_ABORT): RunStatus.FAILED,
    (RunStatus.INTERRUPTED, Trigger.CANCEL_COMMAND): RunStatus.CANCELLED,
}
"""Every transition that there is. What is not here is refused."""

FINAL = frozenset({RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED})
"""Nothing leads out of these."""

OPEN = tuple(status for status in RunStatus if status not in FINAL)

TAKEN_UP = {
    RunStatus.INTERRUPTED: Trigger.RECOVERY_RESUME,
    RunStatus.RETRY_SCHEDULED: Trigger.RETRY_DUE,
    RunStatus.QUEUED: Trigger.WORKER_CLAIM,
}
"""What waits for work, in the order in which workers take it up, and by which trigger."""


class IllegalTransition(RunError):
    """The run is in a state from which that does not lead anywhere. Nothing was changed."""


def after(status: RunStatus, trigger: Trigger) -> RunStatus:
    """Where `trigger` leads from `status`. Raises IllegalTransition, which says what is possible instead."""
    try:
        return TRANSITIONS[status, trigger]
    except KeyError:
        possible = ", ".join(it for start, it in TRANSITIONS if start is status) or "nothing: it has ended"
        raise IllegalTransition(f"a run that is {status} knows no {trigger}; possible: {possible}") from None


def diagram() -> str:
    """The state diagram in Mermaid's language."""
    lines = ["stateDiagram-v2", f"    [*] --> {START}"]
    lines += [f"    {start} --> {end}: {trigger}" for (start, trigger), end in TRANSITIONS.items()]
    return "\n".join(lines) + "\n"
