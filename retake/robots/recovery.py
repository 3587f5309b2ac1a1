"""What leads out of an error, as pure functions of policy and error: the protocols that the robots have for themselves,
and the one that seed 003 has for all of them («Автоматическое восстановление»)."""

from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from retake.robots.follow_ups import FILTER, When, when
from retake.robots.form import Field, Form, Forms
from retake.rules import YES_OR_NO


class Step(StrEnum):
    """The steps that a robot's recovery may consist of."""

    WAIT_FOR_HEALTH_CHECK = "wait_for_health_check"  # until the other system says that it is well
    RETRY_WITH_CIRCUIT_BREAKER = "retry_with_circuit_breaker"  # the repeats, while the breaker lets them through
    ESCALATE_TO_HUMAN = "escalate_to_human"  # a person decides
    CHECK_DEPENDENCIES = "check_dependencies"  # ask everything that the work depends on how it is
    RUN_SETUP_SCRIPTS = "run_setup_scripts"  # where the operator allows it
    MEND_BY_HAND = "mend_by_hand"  # nothing goes on before a person has done it
    RESTORE_SNAPSHOT = "restore_snapshot"  # the last one
    REBUILD_INDEXES = "rebuild_indexes"  # of the links
    VALIDATE_INTEGRITY = "validate_integrity"  # and only then go on


class RecoveryStep(NamedTuple):
    """One step of a recovery, and after which errors it is taken."""

    step: Step
    when: When = When()
    allowed: bool = True  # False: only a person may take it


def _recovery_step(step: Step, **given: Any) -> RecoveryStep:
    return RecoveryStep(step, when(given), **given)


_OWN: Mapping[Step, dict[str, Field]] = {
    Step.RUN_SETUP_SCRIPTS: {"allowed": Field(YES_OR_NO, "whether it may be taken without a person")}
}
STEPS = Forms("step", {step: Form(partial(_recovery_step, step), FILTER | _OWN.get(step, {})) for step in Step})
