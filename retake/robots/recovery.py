"""Recovery from errors, as pure functions of policy and error: each robot's own protocol, and the one for all robots
(docs/protocol.md, section "Automatic recovery")."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from retake.errors import CodedError, ErrorClass
from retake.retrying.policy import RetryPolicy
from retake.robots.follow_ups import FILTER, Do, FollowUp, Level, When, when
from retake.settings.schema import YES_OR_NO, Field, Schema, SchemaChoice


class StepName(StrEnum):
    """The steps of a recovery."""

    WAIT_FOR_HEALTH_CHECK = "wait_for_health_check"  # wait until the other system reports that it is healthy
    RETRY_WITH_CIRCUIT_BREAKER = "retry_with_circuit_breaker"  # retry while the breaker allows it
    ESCALATE_TO_HUMAN = "escalate_to_human"  # a person decides
    CHECK_DEPENDENCIES = "check_dependencies"  # check everything that the work depends on
    RUN_SETUP_SCRIPTS = "run_setup_scripts"  # if the operator allows it
    MEND_BY_HAND = "mend_by_hand"  # wait until a person has fixed it
    RESTORE_SNAPSHOT = "restore_snapshot"  # the last one
    REBUILD_INDEXES = "rebuild_indexes"  # of the links
    VALIDATE_INTEGRITY = "validate_integrity"  # and continue only if it is intact


class RecoveryStep(NamedTuple):
    """One step of a recovery, and the errors after which it is taken."""

    step: StepName
    when: When = When()
    allowed: bool = True  # False: only a person may take it


def _recovery_step(step: StepName, **given: Any) -> RecoveryStep:
    return RecoveryStep(step, when(given), **given)


_OWN: Mapping[StepName, dict[str, Field]] = {
    StepName.RUN_SETUP_SCRIPTS: {"allowed": Field(YES_OR_NO, "whether it may be taken without a person")}
}
STEPS = SchemaChoice(
    "step", {step: Schema(partial(_recovery_step, step), FILTER | _OWN.get(step, {})) for step in StepName}
)


CORRECTED_RETRY_S = 60.0
"""Seconds between a correction and the retry."""

TO_A_PERSON = (
    FollowUp(Do.TICKET, what="find out why this fails, and fix it"),
    FollowUp(Do.TELL, recipient="operator", level=Level.ERROR),
)
TO_THE_MANAGEMENT = (
    FollowUp(Do.INCIDENT),
    FollowUp(Do.BACKUP_SYSTEM),
    FollowUp(Do.ESCALATE, recipient="management", what="see to the incident"),
)


def auto_recovery_protocol(
    error: CodedError,
    retry: RetryPolicy,
    *,
    repeat: int,
    random: Callable[[], float],
    is_auto_correctable: Callable[[str], bool] = lambda code: False,
) -> tuple[FollowUp, ...]:
    """Return the actions that follow an error of any robot, by its class.

    A is retried, after the delay of the robot's own policy before retry number `repeat`. B is corrected and retried
    after 60 seconds if there is a script for its code, and goes to a person otherwise. C opens an incident, switches to
    the backup system and goes to the management.
    """
    if error.error_class is ErrorClass.TEMPORARY:
        return (FollowUp(Do.DEFERRED_RETRY, after_s=retry.wait_s(repeat, random)),)
    if error.error_class is ErrorClass.CRITICAL:
        return TO_THE_MANAGEMENT
    if is_auto_correctable(error.code):
        return (FollowUp(Do.CORRECT), FollowUp(Do.DEFERRED_RETRY, after_s=CORRECTED_RETRY_S))
    return TO_A_PERSON


def steps_after(error: CodedError, steps: Sequence[RecoveryStep]) -> list[RecoveryStep]:
    """Return the steps for this error, in order."""
    return [step for step in steps if step.when.holds_for(error)]


def follow_ups_of(error: CodedError, actions: Sequence[FollowUp], *, corrected: bool = False) -> tuple[FollowUp, ...]:
    """Return the actions that follow the last failure: those of the robot's `actions` that apply to this error.

    If there are none, the protocol for all robots applies, except that an error of class A whose retries are used up
    goes to a person, as one of class B does. `corrected`: a script has fixed the cause of an error of class B; the
    correction and a retry then follow the robot's own actions.
    """
    own = tuple(action for action in actions if action.when.holds_for(error))
    if error.error_class is ErrorClass.TEMPORARY:
        return own or TO_A_PERSON
    general = auto_recovery_protocol(
        error, RetryPolicy(0), repeat=1, random=lambda: 0.5, is_auto_correctable=lambda code: corrected
    )
    return (*own, *general) if corrected else own or general
