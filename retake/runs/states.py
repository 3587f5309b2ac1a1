"""The states of a run and the transitions between them: docs/protocol.md, section "State diagram", as data.

tests/runs/test_states.py draws the diagram from `TRANSITIONS` and compares it with the protocol's.
"""

from collections.abc import Mapping
from enum import StrEnum

from retake.errors import RunError


class RunStatus(StrEnum):
    """The state of a run."""

    QUEUED = "queued"  # waits for a worker
    RUNNING = "running"  # a worker, or a vendor's task, is at work
    RETRY_SCHEDULED = "retry_scheduled"  # failed, and will be retried at `next_retry_at`
    INTERRUPTED = "interrupted"  # its worker died or stopped, and it has not been resumed yet
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"  # by a person


class Trigger(StrEnum):
    """The event that makes a run change its state."""

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
"""Every allowed transition."""

FINAL = frozenset({RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED})
"""The states that have no transition out of them."""

OPEN = tuple(status for status in RunStatus if status not in FINAL)

TAKEN_UP = {
    RunStatus.INTERRUPTED: Trigger.RECOVERY_RESUME,
    RunStatus.RETRY_SCHEDULED: Trigger.RETRY_DUE,
    RunStatus.QUEUED: Trigger.WORKER_CLAIM,
}
"""The states that wait for a worker, in the order in which workers claim them, and the trigger of each claim."""


class IllegalTransition(RunError):
    """The run's state does not allow this trigger. Nothing was changed."""


def after(status: RunStatus, trigger: Trigger) -> RunStatus:
    """Return the state after `trigger`. Raises IllegalTransition, whose message names the possible triggers."""
    try:
        return TRANSITIONS[status, trigger]
    except KeyError:
        possible = ", ".join(it for start, it in TRANSITIONS if start is status) or "nothing: it has ended"
        raise IllegalTransition(f"a run that is {status} knows no {trigger}; possible: {possible}") from None


def diagram() -> str:
    """Return the state diagram in Mermaid syntax."""
    lines = ["stateDiagram-v2", f"    [*] --> {START}"]
    lines += [f"    {start} --> {end}: {trigger}" for (start, trigger), end in TRANSITIONS.items()]
    return "\n".join(lines) + "\n"
